"""Convolution and batch normalization by cuDNN: arrays -> operations -> arrays.

Each function says whether it did it, by True or its results. It does not where cuDNN has no kernel under the settings:
nothing is written then, and the caller takes Chainer's own kernels. Which it is depends on shapes and settings alone
(promise P2).

Arrays are of one dtype (float16 or float32), not empty, and with channels first or last, as in `operations`. Sums are
in float32 throughout.

Left out, as Chainer's own kernels are as good or cuDNN's graphs have no kernel: batch normalization with fixed
statistics, activations, softmax, dropout, and pooling (whose graph nodes are inference only, or keep other indexes than
Chainer needs for double backprop).
"""

from __future__ import annotations

from typing import Any

from chainer_ooc.kernels.cudnn.handles import Handle
from chainer_ooc.kernels.cudnn.operations import BatchNormalization, Convolution, Port, Shape
from chainer_ooc.kernels.cudnn.settings import PlanSettings

#: What cuDNN's kernels expect of an address, in bytes.
ALIGNMENT_BYTES = 16

_X, _W, _Y = Port.X, Port.W, Port.Y  # a member takes longer to look up than a name


def convolve(handle: Handle, settings: PlanSettings, result: Port, x: Any, w: Any, y: Any, windows: tuple[Shape, ...],
             last: tuple[bool, bool] = (False, False)) -> bool:
    """Writes one of the three arrays of a convolution, by the other two.

    The number of groups is that of x's channels to those of w. Extents that the stride skips are x's to say.

    Args:
        handle: the thread's, on the arrays' device.
        settings: that it is done under.
        result: Y for the convolution of `x` with `w`; W or X for the gradient by the filter, or by the input, which is
            the deconvolution of `y` with `w`.
        x: the input.
        w: the filter.
        y: the output.
        windows: stride, padding and dilation.
        last: whether the channels of `x` and `y` are last, and those of `w`.
    """
    call = result, x.shape, w.shape, y.shape, windows, last, x.dtype.char, settings
    answer = handle.recall(call)
    if answer is None:
        answer = handle.answer(call, _operation(result, x, w, y, windows, last), settings)
    if answer.plan is None:
        return False
    x, x_address = (x, _address(x)) if result == _X else _placed(x)
    w, w_address = (w, _address(w)) if result == _W else _placed(w)
    y, y_address = (y, _address(y)) if result == _Y else _placed(y)
    handle.launch(answer.plan, {_X: x_address, _W: w_address, _Y: y_address})
    return True


def batch_normalization_forward_training(
        handle: Handle, settings: PlanSettings, x: Any, gamma: Any, beta: Any, eps: float, *,
        channels_last: bool) -> tuple[Any, Any, Any] | None:
    """Returns the normalized `x`, and its statistics ``mean`` and ``inv_std``; None where cuDNN does not do it.

    `gamma`, `beta` and the statistics are float32 and 1-D; what they are is said in `BatchNormalization`. Nothing is
    allocated before there is a plan: where there is none, the caller has no more memory in use.
    """
    shape = _extents(x.shape, channels_last)
    plan = handle.find(BatchNormalization(True, shape, x.dtype.name, channels_last, float(eps)), settings)
    if plan is None:
        return None
    y, (mean, inv_std, *unused) = handle.empty(x.shape, x.dtype), [handle.empty_like(gamma) for _ in range(4)]
    gamma = _ready(gamma)
    handle.run(plan, {
        Port.X: _ready(x), Port.GAMMA: gamma, Port.BETA: _ready(beta), Port.Y: y, Port.MEAN: mean,
        Port.INV_STD: inv_std, Port.RUNNING_MEAN: gamma, Port.RUNNING_VAR: gamma, Port.NEXT_RUNNING_MEAN: unused[0],
        Port.NEXT_RUNNING_VAR: unused[1]})
    return y, mean, inv_std


def update_running_statistics(mean: Any, inv_std: Any, running_mean: Any, running_var: Any, eps: float, decay: float,
                              elements: int) -> None:
    """Moves the running statistics towards the batch's, in place, as Chainer's own kernels do.

    The variance is had back from `inv_std`: it is 1 / inv_std^2 - eps, exact to about 1e-7 of variance + eps.

    Args:
        mean: of the batch, float32.
        inv_std: of the batch, float32.
        running_mean: Chainer's, of any float dtype.
        running_var: likewise.
        eps: what inv_std has in it.
        decay: weight of what they were.
        elements: how many of a channel were normalized; the running variance is that of their population.
    """
    population = elements / max(elements - 1.0, 1.0)
    var = (inv_std ** -2 - eps).clip(0)
    running_mean *= decay
    running_mean += ((1 - decay) * mean).astype(running_mean.dtype, copy=False)
    running_var *= decay
    running_var += ((1 - decay) * population * var).astype(running_var.dtype, copy=False)


def batch_normalization_backward(
        handle: Handle, settings: PlanSettings, x: Any, gamma: Any, gy: Any, mean: Any, inv_std: Any, *,
        channels_last: bool) -> tuple[Any, Any, Any] | None:
    """Returns the gradients of the input, the scale and the shift; None where cuDNN does not do it.

    All but `x`, `gy` and the input's gradient are float32 and 1-D. As forward, nothing is allocated without a plan.
    """
    operation = BatchNormalization(False, _extents(x.shape, channels_last), x.dtype.name, channels_last)
    plan = handle.find(operation, settings)
    if plan is None:
        return None
    gx, ggamma, gbeta = handle.empty(x.shape, x.dtype), handle.empty_like(gamma), handle.empty_like(gamma)
    handle.run(plan, {Port.X: _ready(x), Port.Y: _ready(gy), Port.GAMMA: _ready(gamma), Port.MEAN: _ready(mean),
                       Port.INV_STD: _ready(inv_std), Port.GX: gx, Port.GGAMMA: ggamma, Port.GBETA: gbeta})
    return gx, ggamma, gbeta


def _operation(result: Port, x: Any, w: Any, y: Any, windows: tuple[Shape, ...],
               last: tuple[bool, bool]) -> Convolution:
    channels_last, filter_last = last
    shapes = (_extents(x.shape, channels_last), _extents(w.shape, filter_last), _extents(y.shape, channels_last))
    stride, pad, dilation = windows
    if len(pad) == 1:  # cuDNN has two axes at least; one more of a single element changes nothing
        shapes = (_with_row(shapes[0]), _with_row(shapes[1]), _with_row(shapes[2]))
        pad, stride, dilation = (0, *pad), (1, *stride), (1, *dilation)
    return Convolution(result, *shapes, tuple(pad), tuple(stride), tuple(dilation), x.dtype.name, channels_last,
                       filter_last)


def _extents(shape: Shape, channels_last: bool) -> Shape:
    """The extents in the order N, C, spatial of an array in either order."""
    return (shape[0], shape[-1], *shape[1:-1]) if channels_last else tuple(shape)


def _with_row(shape: Shape) -> Shape:
    return (*shape[:2], 1, *shape[2:])


def _ready(array: Any) -> Any:
    """The array, or a copy of it that is contiguous and begins where cuDNN can read it."""
    return _placed(array)[0]


def _placed(array: Any) -> tuple[Any, int]:
    """What `_ready` returns, and its address."""
    address = _address(array)
    if address % ALIGNMENT_BYTES or not array.flags.c_contiguous:
        array = array.copy(order='C')
        address = _address(array)
    return array, address


def _address(array: Any) -> int:
    pointer = getattr(array.data, 'ptr', None)  # CuPy's; tests have arrays of NumPy
    return int(array.ctypes.data if pointer is None else pointer)
