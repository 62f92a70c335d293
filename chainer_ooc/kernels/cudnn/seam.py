"""What Chainer's functions call on a GPU (patch 0070): their arguments to `facade`, or None for Chainer's own kernels.

Chainer's switch ``cuda.cudnn_enabled`` stays False: it promises all of CuPy's cudnn module (recurrent networks, dropout
states, spatial transformers), to users' code as well. So the functions that are served here ask before they look at it,
and all others take their CuPy kernels. Where CuPy does have its cuDNN (CuPy 13 with cuDNN 8), Chainer uses that.
"""

from __future__ import annotations

import functools
from typing import Any

from chainer import memory_layouts
from chainer.backends import cuda
from chainer.utils import conv

from chainer_ooc.kernels import outs_of, steps_of
from chainer_ooc.kernels.cudnn import facade, handles, normalization, settings
from chainer_ooc.kernels.cudnn.operations import Port

Arrays = tuple[Any, ...]
Serving = tuple[handles.Handle, settings.PlanSettings]


def convolution(function: Any, x: Any, w: Any, b: Any) -> Arrays | None:
    """Convolution2DFunction and ConvolutionND on a GPU."""
    layouts = function.input_layouts[:2]
    serving = None if function.cover_all else _serving(x, w)
    if serving is None:
        return _leave(layouts, x, w)
    steps = steps_of(function)
    shape = _convolved(x.shape, w.shape, steps, layouts)
    if shape is None:
        return None  # Chainer's own way says what is wrong
    y = serving[0].empty(shape, x.dtype)
    if not _convolve(serving, Port.Y, x, w, y, steps, layouts):
        return _leave(layouts, x, w)
    return _finished(function, y, b, layouts[0])


def convolution_grad_w(function: Any, x: Any, gy: Any) -> Arrays | None:
    """Convolution2DGradW and ConvolutionNDGradW on a GPU."""
    x_layout, gy_layout = function.input_layouts
    if x_layout != gy_layout:
        return _leave((x_layout, gy_layout), x, gy)
    layouts = x_layout, getattr(function, 'w_layout', None)
    serving = None if function.cover_all or x.dtype != function.W_dtype else _serving(x, gy)
    if serving is None:
        return _leave(layouts, x, gy)
    w_shape = (function.W_shape if hasattr(function, 'W_shape')
               else (gy.shape[1], x.shape[1] // function.groups, *function.ksize))
    gw = serving[0].empty(_raw(w_shape, layouts[1]), x.dtype)
    if not _convolve(serving, Port.W, x, gw, gy, steps_of(function), layouts):
        return _leave(layouts, x, gy)
    return gw,


def deconvolution(function: Any, x: Any, w: Any, b: Any) -> Arrays | None:
    """Deconvolution2DFunction and DeconvolutionND on a GPU, when their output size is known."""
    layouts = function.input_layouts[:2]
    serving = None if function.cover_all else _serving(x, w)
    if serving is None:
        return _leave(layouts, x, w)
    y = serving[0].empty(_deconvolved(x.shape, w.shape, outs_of(function), function.groups, layouts), x.dtype)
    if not _convolve(serving, Port.X, y, w, x, steps_of(function), layouts):
        return _leave(layouts, x, w)
    return _finished(function, y, b, layouts[0])


def _convolve(serving: Serving, result: Port, x: Any, w: Any, y: Any, steps: Any, layouts: Any) -> bool:
    last = layouts[0] is not None, layouts[1] is not None
    return min(x.size, w.size, y.size) > 0 and facade.convolve(*serving, result, x, w, y, steps, last)


def _finished(function: Any, y: Any, b: Any, layout: Any) -> Arrays:
    """A map with its bias, one number a channel or None, and in its layout."""
    if b is not None:
        y += b.reshape(-1, *(1 for _ in y.shape[2:])) if layout is None else b
    if layout is not None:
        function.output_layouts = (layout,)
    return y,


def _leave(layouts: Any, *arrays: Any) -> Arrays | None:
    """None, which leaves a call to Chainer's own kernels.

    Raises:
        RuntimeError: they would take the last axis for the first, as only cuDNN knows channels last.
    """
    if any(layouts) and not cuda.cudnn_enabled:
        given = ', '.join(f'{each.dtype}{list(each.shape)}' for each in arrays)
        raise RuntimeError(
            f'cuDNN does not serve a convolution with channels last of {given}, and nothing else does. Make the model '
            'with chainer.config.compute_mode = None, or give cuDNN more scratch: '
            'chainer.backends.cuda.set_max_workspace_size(bytes).')
    return None


@functools.lru_cache(maxsize=handles.MOST_PLANS)
def _convolved(x_shape: Any, w_shape: Any, steps: Any, layouts: Any) -> Any:
    """The shape of a convolution's output as it lies in memory, or None where it has no elements."""
    x_shape, w_shape = _semantic(x_shape, layouts[0]), _semantic(w_shape, layouts[1])
    outs = tuple(conv.get_conv_outsize(extent, k, s, p, d=d) for extent, k, s, p, d in zip(
        x_shape[2:], w_shape[2:], *steps, strict=True))
    return None if min(outs) < 1 else _raw((x_shape[0], w_shape[0], *outs), layouts[0])


@functools.lru_cache(maxsize=handles.MOST_PLANS)
def _deconvolved(x_shape: Any, w_shape: Any, outs: Any, groups: int, layouts: Any) -> Any:
    """The shape of a deconvolution's output as it lies in memory."""
    return _raw((x_shape[0], _semantic(w_shape, layouts[1])[1] * groups, *outs), layouts[0])


def _semantic(shape: Any, layout: Any) -> Any:
    return memory_layouts._transpose_shape(shape, layout, None)


def _raw(shape: Any, layout: Any) -> Any:
    return shape if layout is None else memory_layouts._transpose_shape(tuple(shape), None, layout)


def _serving(*arrays: Any) -> Serving | None:
    """What serves, where arrays are such as cuDNN is asked about, the user lets it be asked, and it is there."""
    dtype = arrays[0].dtype
    if dtype.char not in 'fe':  # float32 and float16; dtype.name is made anew at each look
        return None
    for array in arrays:
        if array.dtype != dtype or not array.size:
            return None
    read = settings.entries()
    if cuda.cudnn_enabled or getattr(cuda, '_cudnn_disabled_by_user', False) or not settings.is_wanted(read):
        return None
    current = handles.current()
    return None if current is None else (current, settings.plan_settings(read, dtype))


def _channels_first(array: Any, layout: Any, xp: Any) -> Any:
    """A map as the kernels beside cuDNN's know it."""
    return array if layout is None else xp.ascontiguousarray(memory_layouts._transpose_array(array, layout, None))


def _laid_out(array: Any, layout: Any, xp: Any) -> Any:
    """Such a map as it lies in memory in a layout."""
    return array if layout is None else xp.ascontiguousarray(memory_layouts._transpose_array(array, None, layout))


def _per_channel(ndim: int) -> tuple[tuple[int, ...], Any]:
    """Over which axes of such a map a channel's statistics are taken, and what gives them as many axes."""
    return (0, *range(2, ndim)), (None, slice(None), *(None for _ in range(2, ndim)))


def _is_for_our_kernels(axis: Any, *arrays: Any) -> bool:
    """Whether the user lets Chainer's own kernels be replaced, and ours normalize such arrays."""
    return settings.wanted() and normalization.serves(axis, *arrays)


class BatchNormalization:
    """Batch normalization in training, in the form that Chainer's function picks one in.

    By cuDNN where it needs no more scratch than it may have, else by kernels of our own.

    Args:
        own: Chainer's general implementation, for what neither does.
    """

    def __init__(self, own: Any) -> None:
        self._own = own

    def forward(self, axis: Any, gamma: Any, x: Any, x_layout: Any, xp: Any, expander: Any, beta: Any, eps: float,
                decay: float, running_mean: Any, running_var: Any) -> Arrays:
        """Normalizes; see Chainer's ``GeneralBatchNormalizationImpl``."""
        last = x_layout is not None
        serving = self._serving(x, gamma)
        found = None if serving is None else facade.batch_normalization_forward_training(
            *serving, x, gamma, beta, eps, channels_last=last)
        if found is not None:
            y, mean, inv_std = found
            if running_mean is not None:
                facade.update_running_statistics(mean, inv_std, running_mean, running_var, eps, decay,
                                                 x.size // mean.size)
            return y, x_layout, running_mean, running_var, mean, None, inv_std, None
        x, axis, expander = _channels_first(x, x_layout, xp), *_per_channel(x.ndim)
        if _is_for_our_kernels(axis, x, gamma):
            y, mean, var, inv_std = normalization.forward(x, gamma, beta, eps, decay, running_mean, running_var)
            rest: Arrays = (running_mean, running_var, mean, var, inv_std, None)
        else:
            y, _, *rest = self._own.forward(
                axis=axis, gamma=gamma, x=x, x_layout=None, xp=xp, expander=expander, beta=beta, eps=eps, decay=decay,
                running_mean=running_mean, running_var=running_var)
        return _laid_out(y, x_layout, xp), x_layout, *rest

    def backward(self, axis: Any, gamma: Any, gy: Any, x: Any, x_layout: Any, xp: Any, expander: Any, mean: Any,
                 inv_std: Any, eps: float, var: Any, forward_data: Any) -> Arrays:
        """Computes the gradients; the statistics may be from either way forward."""
        serving = self._serving(x, gamma, gy)
        found = None if serving is None else facade.batch_normalization_backward(
            *serving, x, gamma, gy, mean, inv_std, channels_last=x_layout is not None)
        if found is not None:
            gx, ggamma, gbeta = found
            return gx, x_layout, ggamma, gbeta
        x, gy = (_channels_first(each, x_layout, xp) for each in (x, gy))
        axis, expander = _per_channel(x.ndim)  # Chainer gives those of channels first for any layout
        if _is_for_our_kernels(axis, x, gamma, gy):
            gx, ggamma, gbeta = normalization.backward(x, gamma, gy, mean, inv_std)
        else:
            gx, _, ggamma, gbeta = self._own.backward(
                axis, gamma, gy, x, None, xp, expander, mean, inv_std, eps, var, forward_data)
        return _laid_out(gx, x_layout, xp), x_layout, ggamma, gbeta

    def _serving(self, x: Any, gamma: Any, *gradients: Any) -> Serving | None:
        """None also for a gamma of float16: Chainer expects statistics in float16 then, and cuDNN's are float32."""
        return None if x.ndim != 4 or gamma.dtype.char != 'f' else _serving(x, *gradients)
