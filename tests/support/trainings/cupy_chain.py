"""A chain of functions with kernels of NumPy, on arrays of NumPy or of CuPy over host memory (`cupy_over_host`)."""
import chainer
import numpy as np

from support import cupy_over_host

SHAPE = (32, 64)
MAP_BYTES = 4 * 32 * 64


class Computed(chainer.FunctionNode):
    """Runs a NumPy function on arrays of either library; keeps inputs, outputs and a hidden array as it is told."""

    def __init__(self, xp, compute, gradient=None, keeps=(), hides=None):
        self._xp, self._compute, self._gradient, self._keeps, self._hides = xp, compute, gradient, keeps, hides

    def forward(self, inputs):
        self.retain_inputs(tuple(each for each in self._keeps if each != 'y'))
        if 'y' in self._keeps:
            self.retain_outputs((0,))
        if self._hides is not None:
            self.hidden = cupy_over_host.apply(self._xp, self._hides, *inputs)
        return cupy_over_host.apply(self._xp, self._compute, *inputs),

    def backward(self, indexes, grads):
        kept = [*self.get_retained_inputs(), *(self.get_retained_outputs() if 'y' in self._keeps else ())]
        if self._hides is not None:
            kept.append(chainer.Variable(self.hidden))
        return Computed(self._xp, self._gradient).apply((*grads, *kept))[0],


def squared(xp, x):
    return Computed(xp, lambda x: x * x, lambda gy, x: 2 * x * gy, keeps=(0,)).apply((x,))[0]


def tangent(xp, x):
    return Computed(xp, np.tanh, lambda gy, y: gy * (1 - y * y), keeps=('y',)).apply((x,))[0]


def masked(xp, x):
    return Computed(xp, lambda x: np.where(x > 0.1, x, 0), lambda gy, mask: gy * mask,
                    hides=lambda x: (x > 0.1).astype('f4')).apply((x,))[0]


def turned(xp, x):
    """A view of its input, as F.transpose gives it."""
    class Turned(chainer.FunctionNode):
        def forward(self, inputs):
            return inputs[0].T,

        def backward(self, indexes, grads):
            return Turned().apply(grads)

    return Turned().apply((x,))[0]


def loss_of(xp, x):
    for _ in range(2):
        for layer in (squared, tangent, masked, turned):
            x = layer(xp, x)
    return x


def array_of(xp, values):
    array = xp.empty(values.shape, values.dtype)
    (array if xp is np else cupy_over_host.seen(array))[...] = values
    return array


def gradients(xp, iterations, look=lambda y: None):
    """The outputs and gradients of some iterations as bytes."""
    random, found = np.random.RandomState(0), []
    for _ in range(iterations):
        x = chainer.Variable(array_of(xp, random.uniform(0.2, 1, SHAPE).astype('f4')))
        y = loss_of(xp, x)
        look(y)
        y.grad = array_of(xp, np.ones(y.shape, 'f4'))
        y.backward()
        for each in (y.array, x.grad):
            found.append((each if xp is np else cupy_over_host.seen(each)).tobytes())
        del x, y, each
    return found


def expected(iterations):
    with chainer.using_config('ooc', None):
        return gradients(np, iterations)
