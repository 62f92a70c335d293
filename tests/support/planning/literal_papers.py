"""Chains of layers written out: each call reads a map and makes the next one, each step reads its call's input."""
from chainer_ooc.cost.costs import Costs
from chainer_ooc.problem import Problem, Standing
from chainer_ooc.trace import Call, FeatureMap, Step, Trace


def chain_problem(nbytes, budget_bytes, bytes_per_second=1.0, limit_seconds=60.0):
    """An iteration whose calls take a second each and allocate what they make.

    Args:
        nbytes: of the maps; the first one is the batch, map n the output of call n - 1, and the last call makes none.
        budget_bytes: of near memory.
        bytes_per_second: of the link, both ways.
        limit_seconds: of the search.
    """
    count = len(nbytes)
    maps = tuple(FeatureMap(each, size, each - 1 if each else None, False, True, False, each, (2 * count - 1 - each,),
                            (size,), 'uint8') for each, size in enumerate(nbytes))
    calls = tuple(Call(each, f'Layer{each}', (each,), (each + 1,) if each + 1 < count else (), (), 0.0,
                       nbytes[each + 1] if each + 1 < count else 0, repeatable=True) for each in range(count))
    steps = tuple(Step(count + each, count - 1 - each, (count - 1 - each,), 0.0, 0, 0) for each in range(count))
    trace = Trace('cuda', calls, steps, maps, 0.0, 0.0, 0.0)
    costs = Costs((1.0,) * trace.positions, bytes_per_second, bytes_per_second)
    return Problem(trace, costs, Standing(0, 0), budget_bytes, 1, limit_seconds)
