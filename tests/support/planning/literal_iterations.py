"""Literal iterations for the simulator, and timelines as drawings.

A link moves a byte in a second unless a test says otherwise, and all figures are small whole numbers. A drawing has a
column for each second. Computations are shown by the digit of their position, copies by the letter of their map::

    seconds  0....5....0
    compute  0011..22        position 2 waits for two seconds
    out      ..aaaa
    in       ......bb
"""
import dataclasses
import string

from chainer_ooc.cost.costs import Costs
from chainer_ooc.problem import EARLY, Decision, Problem, Standing, Verdict
from chainer_ooc.schedule.schedule import lay_out
from chainer_ooc.simulate.simulator import simulate
from chainer_ooc.simulate.timeline import Stream
from chainer_ooc.trace import Call, FeatureMap, Step, Trace

LETTERS, DIGITS = string.ascii_lowercase, string.digits + string.ascii_uppercase
AMPLE = 1000


def make_problem(forward, backward, maps, budget=AMPLE, allocates=None, reads=None, out=1, back=1, latency=0,
                 standing=(0, 0), slowdown=0.0, recalls=True):
    """A literal iteration, and the machine that it runs on.

    Args:
        forward: seconds of each call.
        backward: seconds of each step.
        maps: by letter, in alphabetical order: (bytes, producer, last forward use, backward uses) and, if not as usual,
            a dict of attributes.
        budget: bytes.
        allocates: by position, what a computation allocates at its highest.
        reads: by call, the letters of the maps that it reads: what a recomputation needs to know.
        out: bytes per second of swap-outs, 0 if they take no time.
        back: the same of swap-ins.
        latency: seconds of each copy.
        standing: bytes in forward, in backward.
        slowdown: computations beside copies take 1 + slowdown times as long.
        recalls: see `Problem`.
    """
    allocates, reads, made = allocates or {}, reads or {}, list(maps)
    assert made == list(LETTERS[:len(made)])
    calls = tuple(
        Call(index, f'L{index}', tuple(map(LETTERS.index, reads.get(index, ''))),
             tuple(made.index(each) for each in made if maps[each][1] == index), (), 0.0,
             allocates.get(index, 0), repeatable=True)
        for index in range(len(forward)))
    steps = tuple(
        Step(position, -1, tuple(made.index(each) for each in made if position in maps[each][3]), 0.0,
             allocates.get(position, 0), 0)
        for position in range(len(forward), len(forward) + len(backward)))
    trace = Trace('host', calls, steps, tuple(_map(number, *maps[each]) for number, each in enumerate(made)), 0.0,
                  0.0, 0.0)
    costs = Costs(tuple(map(float, (*forward, *backward))), float(out), float(back), float(latency), slowdown)
    return Problem(trace, costs, Standing(*standing), budget, 1, recalls=recalls)


def _map(number, nbytes, producer, last, uses, attributes=None):
    usual = FeatureMap(number, nbytes, producer, False, bool(uses), False, last, tuple(uses), (nbytes,), 'uint8')
    return dataclasses.replace(usual, **(attributes or {}))


def run_problem(problem, keep='', again='', begin=None, leaves=None, synchronous=False, shares_chains=None,
                mapped=False):
    """Simulates a literal decision.

    Args:
        problem: see `make_problem`.
        keep: letters of the maps that are kept.
        again: letters of those that are recomputed; the others are swapped.
        begin: by letter, the position with which a swap-in may start; else as early as the demand allows.
        leaves: by letter, the position after which a map leaves.
        synchronous: see `Decision`.
        shares_chains: see `Decision`.
        mapped: see `Decision`.
    """
    verdicts = tuple(
        Verdict.RECOMPUTE if LETTERS[each.id] in again
        else Verdict.KEEP if LETTERS[each.id] in keep or not each.retained else Verdict.SWAP
        for each in problem.trace.maps)
    schedule = lay_out(problem, Decision(
        verdicts, EARLY, {LETTERS.index(each): position for each, position in (leaves or {}).items()}, synchronous,
        shares_chains, mapped))
    swap_ins = tuple(dataclasses.replace(each, start=(begin or {}).get(LETTERS[each.map], each.start))
                     for each in schedule.swap_ins)
    return simulate(problem, dataclasses.replace(schedule, swap_ins=swap_ins))


def draw(timeline):
    """The drawing of a timeline whose times are whole seconds."""
    length = int(max((task.end_seconds for task in timeline.tasks), default=0))
    rows = ['seconds  ' + ('0....5....' * (length // 10 + 1))[:length]]
    for stream, name in ((Stream.COMPUTE, 'compute'), (Stream.COPY_OUT, 'out'), (Stream.COPY_IN, 'in')):
        marks = ['.'] * length
        for task in timeline.tasks:
            if task.stream is stream:
                begun, ended = int(task.start_seconds), int(task.end_seconds)
                assert (begun, ended) == (task.start_seconds, task.end_seconds), 'a drawing has whole seconds'
                assert set(marks[begun:ended]) <= {'.'}, f'{name} does two things at a time'
                marks[begun:ended] = (DIGITS if stream is Stream.COMPUTE else LETTERS)[task.subject] * (ended - begun)
        rows.append((f'{name:9}' + ''.join(marks)).rstrip('.').rstrip())
    return '\n'.join(rows)


class Shown:
    """A timeline that tests compare with a drawing and with literal figures."""

    def __init__(self, timeline):
        self.timeline = timeline

    def is_drawn(self, drawing):
        lines = [line.strip() for line in drawing.strip().splitlines()]
        assert draw(self.timeline).splitlines() == lines
        return True

    @property
    def stalls(self):
        """(position, letter, seconds, cause) of each."""
        return [(each.position, LETTERS[each.map], each.seconds, each.cause.value) for each in self.timeline.stalls]

    @property
    def memory(self):
        """What near memory holds at each position, and the peak."""
        return list(self.timeline.near_bytes), self.timeline.peak_bytes
