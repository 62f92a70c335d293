"""Small graphs written out, as the analytic costs see them: labels, shapes, and which array is which map."""
import itertools
import math

import numpy as np

from chainer_ooc.trace import ArrayForm, Call, FeatureMap, Step, Trace


def graph(*rows):
    """A trace of calls (label, inputs, outputs); map `n` has 4 * (n + 1) float32 elements, and 0 is the batch.

    An input 'p7' is a parameter of 7 float32 elements.
    """
    count = 1 + max(each for _, *arrays in rows for each in itertools.chain(*arrays) if not isinstance(each, str))
    producer = {each: index for index, (_, inputs, outputs) in enumerate(rows)
                for each in outputs if each not in inputs}
    maps = tuple(FeatureMap(each, 16 * (each + 1), producer.get(each), False, False, False, 0, (), (each + 1, 4),
                            'float32') for each in range(count))
    calls = tuple(Call(
        index, label, tuple(-1 if isinstance(each, str) else each for each in inputs), tuple(outputs), (),
        0.0, 0, forms(inputs), forms(outputs))
        for index, (label, inputs, outputs) in enumerate(rows))
    steps = tuple(Step(len(rows) + number, len(rows) - 1 - number, (), 0.0, 0, 0) for number in range(len(rows)))
    return Trace('host', calls, steps, maps, 0.0, 0.0, 0.0)


def forms(arrays):
    return tuple(ArrayForm('<f4', (int(each[1:]),) if isinstance(each, str) else (each + 1, 4)) for each in arrays)


def layer(label, x, parameters, y, hidden=(), kept=(), dtype='float32'):
    """One call and its step, by shapes: map 0 is x, 1 is y, then what it hides; the step reads those of `kept`."""
    itemsize = np.dtype(dtype).itemsize

    def all_of(*shapes):
        return tuple(ArrayForm(f'<f{itemsize}', shape) for shape in shapes)

    maps = tuple(FeatureMap(
        number, itemsize * math.prod(shape), None if number == 0 else 0, False, number in kept, False, 0,
        (1,) if number in kept else (), shape, dtype) for number, shape in enumerate([x, y, *hidden]))
    call = Call(0, label, (0, *(-1 for _ in parameters)), (1,), tuple(range(2, 2 + len(hidden))),
                0.0, 0, all_of(x, *parameters), all_of(y))
    return Trace('host', (call,), (Step(1, 0, tuple(kept), 0.0, 0, 0),), maps, 0.0, 0.0, 0.0)
