"""Small iterations written out: a row for each call, for its step, and for each map. Links carry 1 byte per second."""
import itertools

from chainer_ooc.classify.search import evaluate
from chainer_ooc.cost.costs import measured
from chainer_ooc.problem import Decision, Problem, Standing, Verdict, can_recompute, everything
from chainer_ooc.trace import Call, FeatureMap, Step, Trace

SHORT = {Verdict.KEEP: 'K', Verdict.SWAP: 'S', Verdict.RECOMPUTE: 'R'}


def literal_problem(calls, steps, maps, budget_bytes, limit_seconds=60.0):
    """A problem.

    Args:
        calls: (seconds, peak bytes) of each; what it reads and makes follows from the maps.
        steps: (seconds, peak bytes) of the step of the last call, of the one before, and so on.
        maps: (nbytes, call that makes it, calls that read it, calls whose step reads it, calls that make it again or
            not at all as `again`).
        budget_bytes: what near memory may hold.
        limit_seconds: of the search.
    """
    last = len(calls) - 1
    made = [FeatureMap(
        each, nbytes, producer, False, bool(uses), False, max((producer, *readers)),
        tuple(sorted(len(calls) + last - use for use in uses)), (nbytes,), 'uint8', written=not again)
        for each, (nbytes, producer, readers, uses, again) in enumerate(maps)]
    trace = Trace(
        'host',
        tuple(Call(index, f'Layer{index}', tuple(each for each, row in enumerate(maps) if index in row[2]),
                   tuple(each for each, row in enumerate(maps) if index == row[1]), (), seconds, peak,
                   repeatable=True) for index, (seconds, peak) in enumerate(calls)),
        tuple(Step(len(calls) + number, last - number,
                   tuple(each for each, row in enumerate(maps) if last - number in row[3]), seconds, peak, 0)
              for number, (seconds, peak) in enumerate(steps)),
        tuple(made), 1.0, 1.0, 1.0)
    return Problem(trace, measured(trace), Standing(0, 0), budget_bytes, 1, limit_seconds)


def drawn(verdicts):
    """'KSR': a letter for each map."""
    return ''.join(SHORT[each] for each in verdicts)


def seconds_of(problem, letters):
    """The simulated time of some verdicts; infinite if they do not fit."""
    verdicts = tuple({short: verdict for verdict, short in SHORT.items()}[each] for each in letters)
    return evaluate(problem, Decision(verdicts)).seconds


def times_of_all(problem):
    """The simulated time of every combination of verdicts that is possible, by its letters."""
    swapped = everything(problem.trace, problem.min_bytes)
    choices = [('KSR' if again else 'KS') if leaves is Verdict.SWAP else 'K'
               for leaves, again in zip(swapped, can_recompute(problem.trace, problem.min_bytes), strict=True)]
    return {''.join(each): seconds_of(problem, ''.join(each)) for each in itertools.product(*choices)}
