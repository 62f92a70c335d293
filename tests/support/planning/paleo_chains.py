"""Chains of layers as the formulas of OOC-Paleo see them, for the simulator.

Call i makes map i, which is retained, read by no later call, and read by the step of call i::

    position   0  1  2 | 3  4  5
    map 0      m        .  .  u
    map 2            m  u

So a map leaves when its layer ends, and its layer's step is the only one that waits for it.
"""
from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.cost.costs import Costs
from chainer_ooc.papers.paleo_formulas import passes_of
from chainer_ooc.problem import Problem, Standing, Verdict
from chainer_ooc.schedule.schedule import lay_out
from chainer_ooc.simulate.simulator import simulate
from chainer_ooc.simulate.timeline import Stream
from chainer_ooc.trace import Call, FeatureMap, Step, Trace

AMPLE = 10**9


def chain(forward, backward, sizes, budget=AMPLE, out=0.0, back=1.0, latency=0.0, loss_bytes=0):
    """A problem.

    Args:
        forward: seconds of each call, the first layer's first.
        backward: seconds of each layer's step, in the same order of layers.
        sizes: bytes of each layer's map.
        budget: bytes.
        out: bytes per second of swap-outs; 0: they take no time.
        back: bytes per second of swap-ins.
        latency: seconds of each copy.
        loss_bytes: scratch memory of the last call: in backward it is free.
    """
    count = len(sizes)
    allocated = [*sizes[:-1], sizes[-1] + loss_bytes]
    calls = tuple(Call(each, '', (), (each,), (), 0.0, allocated[each]) for each in range(count))
    steps = tuple(Step(count + each, count - 1 - each, (count - 1 - each,), 0.0, 0, 0) for each in range(count))
    maps = tuple(FeatureMap(each, nbytes, each, False, True, False, each, (2 * count - 1 - each,), (nbytes,), 'uint8')
                 for each, nbytes in enumerate(sizes))
    costs = Costs((*map(float, forward), *map(float, reversed(backward))), out, back, latency)
    return Problem(Trace('host', calls, steps, maps, 0.0, 0.0, 0.0), costs, Standing(0, 0), budget, 1)


def simulated(policy, problem):
    """(seconds of forward, seconds of backward, ids of the swapped maps) of a policy.

    Forward ends with its last computation; where copies are waited for, with the last swap-out.
    """
    schedule = lay_out(problem, POLICIES[policy].decide(problem))
    timeline = simulate(problem, schedule)
    last = problem.trace.backward_start - 1
    end = next(task.end_seconds for task in timeline.tasks if task.stream is Stream.COMPUTE and task.subject == last)
    gone = [task.end_seconds for task in timeline.tasks if schedule.synchronous and task.stream is Stream.COPY_OUT]
    end = max([end, *gone])
    swapped = {each for each, verdict in enumerate(schedule.verdicts) if verdict is Verdict.SWAP}
    return end, timeline.seconds - end, swapped


def passes(problem, swapped):
    """Forward and backward for the formulas."""
    return passes_of(problem.trace, problem.costs, swapped)


def everything(problem):
    """Ids of all maps that have bytes."""
    return {each.id for each in problem.trace.maps if each.nbytes}


def streamed_seconds(backward):
    """Backward if the link never pauses: each layer begins when the one before has ended and its own data is there."""
    now = arrived = 0.0
    for seconds, swap_seconds in zip(backward.seconds, backward.swap_seconds, strict=True):
        arrived += swap_seconds
        now = max(now, arrived if swap_seconds else now) + seconds
    return now
