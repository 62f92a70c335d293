"""A stand-in for kernels that CuPy compiles: NumPy evaluates their texts, as far as C++ and Python read them alike.

Types are found as CuPy finds them: a letter is the dtype of the arrays that are given for it, and scalars take it.
"""
import numpy as np


class Kernels:
    """Has the place of `chainer.backends.cuda.elementwise` and `reduce`.

    Attributes:
        read, written: elements of the arrays of each kernel.
    """

    def __init__(self):
        self.read, self.written = [], []

    def elementwise(self, in_params, out_params, operation, name):
        names, results = _parameters(in_params), _parameters(out_params)

        def kernel(*given):
            types, values = _bound(names + results, given)
            exec(operation, {'rsqrt': lambda value: 1 / np.sqrt(value)}, values)
            shape = np.broadcast_shapes(*(np.shape(values[each]) for _, each in names))
            made = []
            for (letter, each), target in zip(results, given[len(names):] or [None] * len(results), strict=True):
                if target is None:
                    target = np.empty(shape, types[letter])
                target[...] = values[each]
                made.append(target)
            self._note(given, made)
            return made[0] if len(made) == 1 else tuple(made)
        return kernel

    def reduce(self, in_params, out_params, map_expr, reduce_expr, post_map_expr, identity, name):
        assert (reduce_expr, identity) == ('a + b', '0')
        (letter, result), = _parameters(out_params)
        assert post_map_expr == f'{result} = a'

        def kernel(*given, axis):
            types, values = _bound(_parameters(in_params), given)
            casts = {name: lambda value, dtype=dtype: value.astype(dtype) for name, dtype in types.items()}
            made = np.sum(eval(map_expr, casts, values), axis=axis, dtype=types[letter])
            self._note(given, [made])
            return made
        return kernel

    def _note(self, given, made):
        self.read.append([each.size for each in given if isinstance(each, np.ndarray)])
        self.written.append([each.size for each in made])


def _parameters(text):
    """(letter of the type, name) of each."""
    return [tuple(each.split()) for each in text.split(',')]


def _bound(parameters, given):
    types, values = {}, {}
    for (letter, name), value in zip(parameters, given, strict=False):
        if isinstance(value, np.ndarray):
            assert types.setdefault(letter, value.dtype) == value.dtype, f'{name} is {value.dtype}, not {types[letter]}'
        values[name] = value
    for letter, name in parameters[:len(given)]:
        if not isinstance(values[name], np.ndarray):
            values[name] = types[letter].type(values[name])
    return types, values
