"""Convolutions of all kinds: their arrays, values and gradients of both orders."""
import contextlib

import chainer
import chainer.functions as F
import numpy as np
from hypothesis import strategies as st

LAYOUTS = ['C', 'transposed', 'mirrored', 'broadcast']
ONE_TO_THREE_AXES = st.integers(1, 3)


def laid_out(array, layout):
    """The same values (for 'broadcast': of the first image) in another memory layout."""
    if layout == 'transposed':
        return np.ascontiguousarray(array.swapaxes(0, -1)).swapaxes(0, -1)
    if layout == 'mirrored':
        return np.ascontiguousarray(array[..., ::-1])[..., ::-1]
    if layout == 'broadcast':
        return np.broadcast_to(array[:1], array.shape)
    return array


def computed(entries, function, arrays, layout='C', *, twice=True):
    """Calls a function under entries of chainer.config; returns its result, the gradients and, if `twice`, theirs."""
    random = np.random.default_rng(1)
    with contextlib.ExitStack() as stack:
        for name, value in entries.items():
            stack.enter_context(chainer.using_config(name, value))
        inputs = [chainer.Variable(array) for array in arrays]
        y = function(*inputs)
        gy = chainer.Variable(laid_out(random.standard_normal(y.shape).astype(y.dtype), layout))
        gradients = chainer.grad([y], inputs, [gy], enable_double_backprop=True)
        results = [y, *gradients]
        if twice:
            weights = [random.standard_normal(g.shape).astype(g.dtype) for g in gradients]
            total = sum(F.sum(g * w) for g, w in zip(gradients, weights, strict=True))
            results += [g for g in chainer.grad([total], [*inputs, gy]) if g is not None]
        return [result.array for result in results]


def assert_close(ours, theirs, tolerance):
    assert [(a.shape, a.dtype) for a in ours] == [(a.shape, a.dtype) for a in theirs]
    for a, b in zip(ours, theirs, strict=True):
        scale = np.abs(b).max(initial=0)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(scale, 1e-3))


@st.composite
def convolutions(draw, axes=ONE_TO_THREE_AXES, transposed=False):
    """Arrays and keyword arguments of a convolution, or of a deconvolution if `transposed`."""
    ndim = draw(axes)
    kernel, stride, pad, dilate = (
        tuple(draw(st.integers(low, high)) for _ in range(ndim)) for low, high in ((1, 3), (1, 3), (0, 2), (1, 2)))
    cover_all = not transposed and draw(st.booleans())
    size = tuple(max(1, (k - 1) * d + 1 - 2 * p) + draw(st.integers(0, 4 if ndim < 3 else 2))
                 for k, p, d in zip(kernel, pad, dilate, strict=True))
    if transposed:
        least = [-(-(2 * p - (k - 1) * d) // s) + 1 for k, p, d, s in zip(kernel, pad, dilate, stride, strict=True)]
        size = tuple(map(max, size, least))
    groups = draw(st.integers(1, 3))
    channels = [groups * draw(st.integers(1, 3)) for _ in range(2)]
    batch = draw(st.integers(1, 5))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    weights = random.standard_normal((channels[1], channels[0] // groups, *kernel))
    arrays = [random.standard_normal((batch, channels[transposed], *size)), weights]
    if draw(st.booleans()):
        arrays.append(random.standard_normal(channels[not transposed]))
    layouts = draw(st.tuples(*[st.sampled_from(LAYOUTS[:3])] * 2))
    arrays[:2] = map(laid_out, arrays, layouts)
    options = {'stride': stride, 'pad': pad, 'dilate': dilate, 'groups': groups}
    return arrays, {**options, **({'cover_all': cover_all} if not transposed else {})}


# Image, weights and options such that each way through the code is taken: pointwise by image and stacked, columns by
# image and stacked, the mirrored kernel and its opposite, whole images and rows.
SHAPES = {
    'pointwise': ((4, 16, 16, 17), (8, 16, 1, 1), {}),
    'pointwise, small maps': ((4, 16, 7, 7), (8, 16, 1, 1), {}),
    'pointwise, stride 2': ((4, 16, 29, 28), (8, 16, 1, 1), {'stride': 2}),
    'mirrored': ((4, 8, 20, 21), (8, 8, 3, 3), {'pad': 1}),
    'not mirrored': ((2, 8, 20, 21), (80, 8, 3, 3), {'pad': 1}),
    'small maps': ((9, 24, 7, 7), (16, 24, 3, 3), {'pad': 1}),
    'first layer': ((3, 3, 41, 43), (16, 3, 7, 7), {'stride': 2, 'pad': 3}),
    'groups': ((3, 12, 15, 15), (18, 4, 5, 5), {'pad': 2, 'groups': 3}),
    'depthwise': ((3, 12, 15, 15), (12, 1, 3, 3), {'pad': 1, 'groups': 12}),
    'dilated': ((3, 6, 23, 23), (6, 6, 3, 3), {'dilate': 2, 'pad': 2}),
}


def arrays_for(shape, dtypes=(np.float32,) * 3):
    x, weights, _ = SHAPES[shape]
    random = np.random.default_rng(2)
    return [random.standard_normal(size).astype(dtype)
            for size, dtype in zip((x, weights, weights[:1]), dtypes, strict=True)]


def convolve(shape):
    return lambda *x: F.convolution_2d(*x, **SHAPES[shape][2])
