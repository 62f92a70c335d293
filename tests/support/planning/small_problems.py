"""Problems of at most six maps, drawn by a seed, and the courses that they have.

A call makes one or two maps and reads up to two; a step reads what its call retained. Budgets lie between what the
iteration needs when everything is away and what it needs when everything stays, where waits and recomputations matter.
"""
import dataclasses
import itertools
import random

from chainer_ooc.classify.search import evaluate
from chainer_ooc.cost.costs import Costs
from chainer_ooc.problem import Decision, Problem, Standing, Starts, Verdict, can_leave, can_recompute, everything
from chainer_ooc.schedule.schedule import lay_out
from chainer_ooc.trace import Call, FeatureMap, Step, Trace

AMPLE, MOST_MAPS = 10 ** 9, 6


def draw_problem(seed, most_calls=MOST_MAPS, most_maps=MOST_MAPS):
    """A problem; equal seeds give equal ones."""
    rng = random.Random(seed)
    trace = _trace(rng, most_calls, most_maps)
    problem = Problem(trace, _costs(rng, trace), Standing(rng.choice([0, 0, 7]), rng.choice([0, 0, 5])), AMPLE,
                      rng.choice([1, 1, 4]), recalls=rng.random() < 0.7)
    least, most = (lay_out(problem, Decision(verdicts)).floor_bytes for verdicts in (
        everything(problem.trace, problem.min_bytes), (Verdict.KEEP,) * len(problem.trace.maps)))
    least, most = min(least, most) - rng.choice([0, 0, 0, 9]), max(least, most)
    return dataclasses.replace(problem, budget_bytes=rng.randint(least, most))


def _trace(rng, most_calls, most_maps):
    calls = rng.randint(2, most_calls)
    sizes, producers, inputs = [rng.randint(1, 20)], [None], []
    for call in range(calls):
        newest = range(max(0, len(sizes) - 2), len(sizes))
        inputs.append(tuple(sorted({rng.choice(newest) for _ in range(rng.choice([1, 1, 2]))})))
        for _ in range(rng.choice([1, 1, 1, 2])):
            if len(sizes) < most_maps:
                sizes.append(rng.choice([rng.randint(1, 20), sizes[-1]]))
                producers.append(call)
    uses = [set() for _ in sizes]
    for call in range(calls):
        for each in (*inputs[call], *(number for number, producer in enumerate(producers) if producer == call)):
            if rng.random() < 0.4:
                uses[each].add(2 * calls - 1 - call)
    maps = tuple(_map(rng, number, sizes[number], producers[number], max(
        [producers[number] or 0, *(call for call in range(calls) if number in inputs[call])]), uses[number], calls)
        for number in range(len(sizes)))
    forward = tuple(Call(call, f'L{call}', inputs[call], tuple(
        number for number, producer in enumerate(producers) if producer == call), (), 0.0,
        sum(sizes[number] for number, producer in enumerate(producers) if producer == call) + rng.choice([0, 0, 6]),
        repeatable=rng.random() < 0.85) for call in range(calls))
    backward = tuple(Step(calls + number, calls - 1 - number, tuple(
        each.id for each in maps if calls + number in each.backward_uses), 0.0, rng.choice([0, 0, 4, 12]),
        rng.choice([0, 0, 3])) for number in range(calls))
    return Trace('host', forward, backward, maps, 0.0, 0.0, 0.0)


def _map(rng, number, nbytes, producer, last, uses, calls):
    retained = bool(uses) or rng.random() < 0.2
    return FeatureMap(
        number, nbytes, producer, False, retained, rng.random() < 0.05, last, tuple(sorted(uses)), (nbytes,), 'uint8',
        last_alive=rng.choice([-1, -1, min(calls, last + 1)]), held=bool(uses) and rng.random() < 0.05,
        reused=bool(uses) and rng.random() < 0.05, written=rng.random() < 0.05,
        last_held=rng.choice([-1, -1, -1, min(calls - 1, last + 1)]))


def _costs(rng, trace):
    speeds = [0.0, 1.0, 2.0, 2.5, 4.0, 8.0]
    return Costs(tuple(rng.choice([0.0, 1.0, 2.0, 3.0, 5.0, 8.0, 0.7]) for _ in range(trace.positions)),
                 rng.choice(speeds), rng.choice(speeds), rng.choice([0.0, 0.0, 0.5]), rng.choice([0.0, 0.0, 0.0, 0.6]))


def decisions(problem, most, seed=0):
    """All decisions: verdicts, leaves, starts, and what chains share; of each verdicts' rest a sample if it is large.

    Yields:
        Decision: first the verdicts alone, then with the rest.
    """
    rng = random.Random(seed)
    trace = problem.trace
    again = can_recompute(trace, problem.min_bytes)
    ways = [[Verdict.KEEP, *[Verdict.SWAP] * can_leave(each, problem.min_bytes), *[Verdict.RECOMPUTE] * again[each.id]]
            for each in trace.maps]
    for verdicts in itertools.product(*ways):
        yield Decision(verdicts)
        yield from _rest(trace, verdicts, most, rng)


def _rest(trace, verdicts, most, rng):
    swapped = [each for each, verdict in enumerate(verdicts) if verdict is Verdict.SWAP]
    again = [each for each, verdict in enumerate(verdicts) if verdict is Verdict.RECOMPUTE]
    start, end = trace.backward_start, trace.positions
    choices = [
        *(list(range(trace.maps[each].leaves_at, start)) for each in swapped),
        *(list(range(start, (*trace.maps[each].backward_uses, end - 1)[0] + 1)) for each in swapped),
        *([False, True] for _ in again)]
    count = 1
    for each in choices:
        count *= len(each)
    sample = ([rng.choice(each) for each in choices] for _ in range(most))
    for row in itertools.product(*choices) if count <= most else sample:
        leaves, starts, shares = row[:len(swapped)], row[len(swapped):2 * len(swapped)], row[2 * len(swapped):]
        early = count > most and rng.random() < 0.2
        yield Decision(verdicts, Starts(positions=None if early else dict(zip(swapped, starts, strict=True))),
                       dict(zip(swapped, leaves, strict=True)),
                       shares_chains=frozenset(itertools.compress(again, shares)))


def best_seconds(problem, most=40):
    """The time of the fastest course."""
    return min(evaluate(problem, each).seconds for each in decisions(problem, most))
