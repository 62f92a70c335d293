"""What is computed, as a value that names a plan and can describe itself to a cuDNN graph.

cuDNN's graphs say what each tensor is (extents and strides in elements, always in the order N, C, spatial) and what
connects them. Chainer's arrays are C-contiguous in one of two orders, which differ in the strides alone:

=============== ================= =====================
order           array's shape     strides of (N, C, H, W)
=============== ================= =====================
channels first  (N, C, H, W)      (C H W, H W, W, 1)
channels last   (N, H, W, C)      (H W C, 1, W C, C)
=============== ================= =====================

Every tensor that takes part is given by the caller, so its number in the graph (uid) is fixed here: `Port`.
Convolution means cross-correlation, in Chainer as in cuDNN.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Shape = tuple[int, ...]

#: Scratch of small operations, and what CuPy's own cuDNN module allowed until somebody asked for another limit.
SMALL_WORKSPACE_BYTES = 8 << 20

#: What the kernels of tensor cores want a pixel's channels to be a multiple of, in bytes.
CHANNELS_BYTES = 16


class Port(enum.IntEnum):
    """The number (uid) of a tensor in every graph of this package."""

    X = 1
    W = 2
    Y = 3
    GAMMA = 4
    BETA = 5
    MEAN = 6
    INV_STD = 7
    EPSILON = 8
    MOMENTUM = 9
    RUNNING_MEAN = 10
    RUNNING_VAR = 11
    NEXT_RUNNING_MEAN = 12
    NEXT_RUNNING_VAR = 13
    GX = 14
    GGAMMA = 15
    GBETA = 16


def strides(shape: Shape, channels_last: bool) -> Shape:
    """Returns the strides, in elements, of a contiguous array with the extents (N, C, spatial...)."""
    order = (0, *range(2, len(shape)), 1) if channels_last else tuple(range(len(shape)))
    found, step = [0] * len(shape), 1
    for axis in reversed(order):
        found[axis] = step
        step *= shape[axis]
    return tuple(found)


@dataclass(frozen=True)
class Convolution:
    """One convolution, or one of its two gradients: all three are told by the same three tensors.

    Attributes:
        result: which of the tensors is computed from the other two: Y forward, W for its gradient, X for the data's.
        x_shape: extents (N, C, spatial...) of the input, or its gradient.
        w_shape: extents (out channels, C / groups, spatial...) of the filter.
        y_shape: extents (N, out channels, spatial...) of the output; not told by the others where a stride skips
            the input's last elements.
        pad, stride, dilation: one number per spatial axis.
        dtype: of all three, as NumPy names it.
        channels_last: order of x and y.
        filter_last: order of W.
    """

    result: Port
    x_shape: Shape
    w_shape: Shape
    y_shape: Shape
    pad: Shape
    stride: Shape
    dilation: Shape
    dtype: str
    channels_last: bool = False
    filter_last: bool = False

    def usual_workspace_bytes(self) -> int:
        """Scratch that a plan may use where no limit is set.

        Tensor cores compute with channels last. For arrays with channels first each of their engines wants a copy of
        the three tensors in that order, and only engines without tensor cores are within a smaller limit; see
        ``benchmarks/engines.py``. The largest convolution of ResNet50 thus needs twice its arrays, at the most.
        """
        itemsize = np.dtype(self.dtype).itemsize
        unit = CHANNELS_BYTES // itemsize
        copies = sum(shape[0] * -(-shape[1] // unit) * unit * math.prod(shape[2:]) * itemsize
                     for shape in (self.x_shape, self.w_shape, self.y_shape))
        return SMALL_WORKSPACE_BYTES + copies

    def describe(self, library: Any, graph: Any) -> None:
        """Writes the three tensors and the operation into an empty graph."""
        dtype = data_type(library, self.dtype)
        layouts = {Port.X: (self.x_shape, self.channels_last), Port.W: (self.w_shape, self.filter_last),
                   Port.Y: (self.y_shape, self.channels_last)}
        given = {port: declare_input(graph, port, shape, last, dtype)
                 for port, (shape, last) in layouts.items() if port != self.result}
        declare_output(self._operation(graph, given), self.result, *layouts[self.result], dtype)

    def _operation(self, graph: Any, given: dict[Port, Any]) -> Any:
        windows = {'padding': list(self.pad), 'stride': list(self.stride), 'dilation': list(self.dilation)}
        if self.result == Port.Y:
            return graph.conv_fprop(image=given[Port.X], weight=given[Port.W], **windows)
        if self.result == Port.X:
            return graph.conv_dgrad(loss=given[Port.Y], filter=given[Port.W], **windows)
        return graph.conv_wgrad(image=given[Port.X], loss=given[Port.Y], **windows)


@dataclass(frozen=True)
class BatchNormalization:
    """Batch normalization over all axes but the channels', in training: forward, or backward.

    The graph's node ``batchnorm``, and what Chainer's arguments are there:

    ==================================== ==================================================================
    node                                 Chainer
    ==================================== ==================================================================
    input, scale, bias                   x, gamma, beta; scale and bias are float32, with extents (1, C, 1, 1)
    epsilon                              eps, added to the variance under the root; a float32 on the host
    Y                                    y
    mean, inv_var                        what Chainer keeps for backward as ``mean`` and ``inv_std``: the batch's
                                         mean, and 1 / sqrt(variance + eps), where the variance is a sum divided by
                                         m, the number of elements of a channel; float32
    in_running_mean, in_running_var,     nothing: the node insists on them and gets scratch. The running
    momentum, next_running_mean,         statistics follow from mean and inv_var in `facade`, by Chainer's formula
    next_running_var                     (1 - decay is what the node calls momentum; variance divided by m - 1)
    ==================================== ==================================================================

    ``batchnorm_backward`` takes grad (gy), input, scale, mean and inv_variance as above, and gives DX, DScale, DBias.

    What cuDNN 9.28 has for them on a GPU of compute capability 9.0, as its heuristics say:

    - one engine, compiled at run time, for channels whose bytes (C times the item size) are a multiple of 16;
    - it computes with channels last. Channels first, it copies each map that it reads or writes into its scratch, so
      that it needs two maps of it forward, and three backward. Where the workspace limit is below that, which the usual
      one mostly is, the kernels of `normalization` are taken, which need none;
    - none for ``batchnorm_inference`` by itself: it is there to be fused with neighbours. Chainer's own elementwise
      kernel reads and writes each element once, which is all that there is to gain.

    Attributes:
        forward: True forward, False backward.
        x_shape: extents (N, C, spatial...) of the input.
        dtype: of x, y and their gradients.
        channels_last: their order.
        eps: added to the variance; None backward, where it is in inv_std.
    """

    forward: bool
    x_shape: Shape
    dtype: str
    channels_last: bool
    eps: float | None = None

    def usual_workspace_bytes(self) -> int:
        """Scratch that a plan may use where no limit is set; what needs more, our own kernels do without."""
        return SMALL_WORKSPACE_BYTES

    def is_hopeless(self, workspace_bytes: int) -> bool:
        """Whether cuDNN need not be asked: asking compiles kernels, and takes a second or more."""
        itemsize = np.dtype(self.dtype).itemsize
        if self.x_shape[1] * itemsize % 16:
            return True
        copies = 0 if self.channels_last else 2 if self.forward else 3
        return copies * int(np.prod(self.x_shape)) * itemsize > workspace_bytes

    def describe(self, library: Any, graph: Any) -> None:
        """Writes the tensors and the operation into an empty graph."""
        dtype = data_type(library, self.dtype)
        x = declare_input(graph, Port.X, self.x_shape, self.channels_last, dtype)
        gamma = self._statistic(library, graph, Port.GAMMA)
        if self.forward:
            self._describe_forward(library, graph, x, gamma)
            return
        gy = declare_input(graph, Port.Y, self.x_shape, self.channels_last, dtype)
        mean, inv_std = (self._statistic(library, graph, port) for port in (Port.MEAN, Port.INV_STD))
        gx, *sums = graph.batchnorm_backward(grad=gy, input=x, scale=gamma, mean=mean, inv_variance=inv_std)
        declare_output(gx, Port.GX, self.x_shape, self.channels_last, dtype)
        self._declare_statistics(library, sums, (Port.GGAMMA, Port.GBETA))

    def _describe_forward(self, library: Any, graph: Any, x: Any, gamma: Any) -> None:
        beta, running_mean, running_var = (
            self._statistic(library, graph, port) for port in (Port.BETA, Port.RUNNING_MEAN, Port.RUNNING_VAR))
        epsilon, momentum = (self._scalar(library, graph, port) for port in (Port.EPSILON, Port.MOMENTUM))
        y, *rest = graph.batchnorm(input=x, scale=gamma, bias=beta, in_running_mean=running_mean,
                                   in_running_var=running_var, epsilon=epsilon, momentum=momentum)
        declare_output(y, Port.Y, self.x_shape, self.channels_last, data_type(library, self.dtype))
        self._declare_statistics(
            library, rest, (Port.MEAN, Port.INV_STD, Port.NEXT_RUNNING_MEAN, Port.NEXT_RUNNING_VAR))

    @property
    def statistic_shape(self) -> Shape:
        """Extents of what is there once per channel."""
        return (1, self.x_shape[1], *(1 for _ in self.x_shape[2:]))

    def _statistic(self, library: Any, graph: Any, port: Port) -> Any:
        return declare_input(graph, port, self.statistic_shape, self.channels_last, library.data_type.FLOAT)

    def _scalar(self, library: Any, graph: Any, port: Port) -> Any:
        ones = [1] * len(self.x_shape)
        return graph.tensor(dim=ones, stride=ones, data_type=library.data_type.FLOAT, is_pass_by_value=True,
                            name=port.name.lower(), uid=int(port))

    def _declare_statistics(self, library: Any, tensors: list[Any], ports: tuple[Port, ...]) -> None:
        for tensor, port in zip(tensors, ports, strict=True):
            declare_output(tensor, port, self.statistic_shape, self.channels_last, library.data_type.FLOAT)


Operation = Convolution | BatchNormalization


def data_type(library: Any, dtype: str) -> Any:
    """Returns cuDNN's name of a NumPy dtype; only these two are used here."""
    return {'float32': library.data_type.FLOAT, 'float16': library.data_type.HALF}[dtype]


def declare_input(graph: Any, port: Port, shape: Shape, channels_last: bool, dtype: Any) -> Any:
    """Returns a tensor that an operation reads; `dtype` is cuDNN's."""
    return graph.tensor(dim=list(shape), stride=list(strides(shape, channels_last)), data_type=dtype,
                        name=port.name.lower(), uid=int(port))


def declare_output(tensor: Any, port: Port, shape: Shape, channels_last: bool, dtype: Any) -> None:
    """Makes an operation's result a tensor that the caller gives, with everything that cuDNN would else infer."""
    stride = list(strides(shape, channels_last))
    tensor.set_output(True).set_data_type(dtype).set_dim(list(shape)).set_stride(stride).set_uid(int(port))
