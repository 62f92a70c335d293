"""A stand-in for NVIDIA's module ``cudnn``: it refuses what the real one refuses, and computes with NumPy.

A graph is a row of steps, and each step is only allowed after the one before. Arrays are reached through their
addresses, extents and strides, as a GPU would, so that a wrong stride or a wrong number (uid) gives wrong results.
Engines are made up: a name, what they need, and what they say of themselves.
"""
import ctypes
import enum
import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

from support.fake_cudnn_native import FIRST_NATIVE, Handle, Lowered

heur_mode = enum.Enum('heur_mode', 'A B FALLBACK OPENSOURCE')
numerical_note = enum.Enum('numerical_note', 'TENSOR_CORE DOWN_CONVERT_INPUTS REDUCED_PRECISION_REDUCTION FFT '
                           'NONDETERMINISTIC WINOGRAD')
data_type = enum.Enum('data_type', 'FLOAT DOUBLE HALF')
DTYPES = {data_type.FLOAT: np.float32, data_type.HALF: np.float16}


class GraphNotSupportedError(Exception):
    pass


@dataclass(frozen=True)
class Engine:
    """One suggestion of the made-up heuristics."""

    name: str = 'eng0'
    workspace_bytes: int = 0
    notes: tuple = ()
    modes: tuple = (heur_mode.A,)
    seconds: float = 1.0
    fault: Exception | None = None


class Tensor:
    def __init__(self, dim=None, stride=None, dtype=None, uid=None, scalar=False, virtual=False):
        self.dim, self.stride, self.dtype, self.uid = dim, stride, dtype, uid
        self.scalar, self.virtual = scalar, virtual

    def set_output(self, value):
        self.virtual = not value
        return self

    def set_data_type(self, value):
        assert value in DTYPES
        self.dtype = value
        return self

    def set_dim(self, value):
        assert type(value) is list
        self.dim = value
        return self

    def set_stride(self, value):
        assert type(value) is list
        self.stride = value
        return self

    def set_uid(self, value):
        assert type(value) is int
        self.uid = value
        return self

    def at(self, address):
        """The array that lies there."""
        dtype = np.dtype(DTYPES[self.dtype])
        elements = 1 + sum((extent - 1) * step for extent, step in zip(self.dim, self.stride, strict=True))
        flat = np.frombuffer((ctypes.c_uint8 * (elements * dtype.itemsize)).from_address(address), dtype)
        return np.lib.stride_tricks.as_strided(flat, self.dim, [step * dtype.itemsize for step in self.stride])


@dataclass
class Library:
    """The module.

    Attributes:
        engines: what heuristics suggest, best first.
        device: whose current stream kernels have to be queued on.
        graphs: every graph that was begun.
        handles: stream of each handle; None for a destroyed one.
        streams_set: how often a handle was given a stream.
        has_native: whether graphs have what `launch.direct` looks for.
    """

    device: object
    engines: list = field(default_factory=lambda: [Engine()])
    graphs: list = field(default_factory=list)
    handles: dict = field(default_factory=dict)
    streams_set: int = 0
    has_native: bool = True
    heur_mode = heur_mode
    numerical_note = numerical_note
    data_type = data_type
    cudnnGraphNotSupportedError = GraphNotSupportedError  # noqa: N815

    def backend_version(self):
        return 92800

    def create_handle(self):
        handle = Handle(f'handle {len(self.handles)}')
        self.handles[handle] = 0
        return handle

    def destroy_handle(self, handle):
        assert self.handles[handle] is not None
        self.handles[handle] = None

    def set_stream(self, handle, stream):
        assert self.handles[handle] is not None
        self.handles[handle] = stream
        self.streams_set += 1

    def pygraph(self, **arguments):
        graph = Graph(self, **arguments)
        self.graphs.append(graph)
        return graph

    @property
    def built(self):
        return [graph for graph in self.graphs if graph.engine is not None]


class Graph:
    STEPS = ('described', 'validated', 'lowered', 'suggested', 'supported', 'built')

    def __init__(self, library, *, name, io_data_type, intermediate_data_type, compute_data_type, handle):
        assert compute_data_type is intermediate_data_type is data_type.FLOAT
        assert library.handles[handle] is not None
        self.library, self.handle, self.step = library, handle, 'described'
        self.tensors, self.suggested, self.candidates, self.engine, self.runs = [], [], [], None, 0
        self.executed, self.selected_engine = 0, None
        if library.has_native:
            self._lowered_graph = Lowered(self)

    def tensor(self, *, dim, stride, data_type, name, uid, is_pass_by_value=False):
        assert self.step == 'described'
        assert type(dim) is type(stride) is list and len(dim) == len(stride) >= 4
        assert all(type(extent) is int and extent > 0 for extent in [*dim, *stride])
        assert type(uid) is int
        return self._register(Tensor(dim, stride, data_type, uid, is_pass_by_value))

    def _register(self, tensor):
        self.tensors.append(tensor)
        return tensor

    def _output(self):
        return self._register(Tensor(virtual=True))

    def conv_fprop(self, *, image, weight, padding, stride, dilation):
        y = self._output()
        self._convolution(image, weight, y, padding, stride, dilation, self._forward, [image, weight])
        return y

    def conv_dgrad(self, *, loss, filter, padding, stride, dilation):
        x = self._output()
        self._convolution(x, filter, loss, padding, stride, dilation, self._backward_data, [loss, filter])
        return x

    def conv_wgrad(self, *, image, loss, padding, stride, dilation):
        w = self._output()
        self._convolution(image, w, loss, padding, stride, dilation, self._backward_filter, [image, loss])
        return w

    def _convolution(self, x, w, y, padding, stride, dilation, compute, given):
        for numbers in (padding, stride, dilation):
            assert type(numbers) is list and all(type(number) is int for number in numbers)
        self.x, self.w, self.y, self.given = x, w, y, given
        self.padding, self.strides, self.dilation, self.compute = padding, stride, dilation, compute
        self.check = self._check_convolution

    def _check_convolution(self):
        (n, c, *size), (o, per_group, *kernel), (m, p, *out) = self.x.dim, self.w.dim, self.y.dim
        assert n == m and o == p and c % per_group == 0 and o % (c // per_group) == 0
        for extent, k, pad, step, dilate, result in zip(
                size, kernel, self.padding, self.strides, self.dilation, out, strict=True):
            assert result == (extent + 2 * pad - dilate * (k - 1) - 1) // step + 1

    def _positions(self):
        """For each element of the kernel: its index, and where the input it meets lies in the padded input."""
        for index in itertools.product(*map(range, self.w.dim[2:])):
            yield (..., *index), (..., *(
                slice(k * dilate, k * dilate + step * (out - 1) + 1, step)
                for k, dilate, step, out in zip(index, self.dilation, self.strides, self.y.dim[2:], strict=True)))

    def _groups(self):
        groups = self.x.dim[1] // self.w.dim[1]
        per_group = self.w.dim[0] // groups
        for g in range(groups):
            yield slice(g * self.w.dim[1], (g + 1) * self.w.dim[1]), slice(g * per_group, (g + 1) * per_group)

    def _padded(self, x=None):
        (n, c, *size) = self.x.dim
        padded = np.zeros([n, c, *(extent + 2 * pad for extent, pad in zip(size, self.padding, strict=True))])
        inner = padded[(..., *(slice(pad, pad + extent) for extent, pad in zip(size, self.padding, strict=True)))]
        if x is not None:
            inner[...] = x
        return padded, inner

    def _forward(self, x, w, y):
        padded, _ = self._padded(x)
        y[...] = self._sum_forward(padded, w.astype(float))

    def _sum_forward(self, padded, w):
        total = np.zeros(self.y.dim)
        for ins, outs in self._groups():
            for index, window in self._positions():
                total[:, outs] += np.einsum('nc...,oc->no...', padded[:, ins][window], w[outs][index])
        return total

    def _backward_data(self, x, w, y):
        padded, inner = self._padded()
        for ins, outs in self._groups():
            for index, window in self._positions():
                padded[:, ins][window] += np.einsum('no...,oc->nc...', y[:, outs].astype(float), w[outs][index])
        x[...] = inner

    def _backward_filter(self, x, w, y):
        padded, _ = self._padded(x)
        for ins, outs in self._groups():
            for index, window in self._positions():
                each = np.einsum('nc...,no...->oc...', padded[:, ins][window], y[:, outs].astype(float))
                w[outs][index] = each.sum(tuple(range(2, each.ndim)))

    def batchnorm(self, *, input, scale, bias, in_running_mean, in_running_var, epsilon, momentum):
        self.given = [input, scale, bias, in_running_mean, in_running_var, epsilon, momentum]
        self.results = [self._output() for _ in range(5)]
        self.check, self.compute = self._check_normalization, self._normalize
        self.maps = [input, self.results[0]]
        return list(self.results)

    def batchnorm_backward(self, *, grad, input, scale, mean, inv_variance):
        self.given = [grad, input, scale, mean, inv_variance]
        self.results = [self._output() for _ in range(3)]
        self.check, self.compute = self._check_normalization, self._denormalize
        self.maps = [grad, input, self.results[0]]
        return list(self.results)

    def _check_normalization(self):
        shape = self.maps[0].dim
        statistic = [1, shape[1], *(1 for _ in shape[2:])]
        for tensor in self.tensors:
            if tensor.scalar:
                assert tensor.dim == [1] * len(shape) and tensor.dtype is data_type.FLOAT
            elif tensor in self.maps:
                assert tensor.dim == shape and tensor.stride == self.maps[0].stride
            else:
                assert tensor.dim == statistic and tensor.dtype is data_type.FLOAT
        if shape[1] * np.dtype(DTYPES[self.maps[0].dtype]).itemsize % 16:
            raise GraphNotSupportedError('channels')

    def _normalize(self, x, gamma, beta, running_mean, running_var, epsilon, momentum, *results):
        axes = (0, *range(2, x.ndim))
        wide = x.astype(float)
        mean, var = wide.mean(axes, keepdims=True), wide.var(axes, keepdims=True)
        inv_std = (var + float(epsilon.item())) ** -0.5
        factor = float(momentum.item())
        found = ((wide - mean) * inv_std * gamma + beta, mean, inv_std,
                 running_mean * (1 - factor) + mean * factor, running_var * (1 - factor) + var * factor)
        for result, value in zip(results, found, strict=True):
            result[...] = value

    def _denormalize(self, gy, x, gamma, mean, inv_std, gx, ggamma, gbeta):
        axes = (0, *range(2, x.ndim))
        wide, x_hat = gy.astype(float), (x.astype(float) - mean) * inv_std
        gbeta[...] = wide.sum(axes, keepdims=True)
        ggamma[...] = (wide * x_hat).sum(axes, keepdims=True)
        elements = x.size // x.shape[1]
        gx[...] = gamma * inv_std * (wide - (x_hat * ggamma + gbeta) / elements)

    def _next(self, before, after):
        assert self.step == before, f'{after} must come after {before}, not after {self.step}'
        self.step = after

    def validate(self):
        self._next('described', 'validated')
        for tensor in self.tensors:
            assert not tensor.virtual, 'a result is not marked as output: cuDNN would not write it'
            assert tensor.dim and tensor.stride and tensor.dtype and tensor.uid is not None
            assert len(tensor.dim) == len(tensor.stride)
        uids = [tensor.uid for tensor in self.tensors]
        assert len(set(uids)) == len(uids)
        self.check()

    def build_operation_graph(self):
        self._next('validated', 'lowered')

    def create_execution_plans(self, modes):
        self._next('lowered', 'suggested')
        self.suggested = [engine for mode in modes for engine in self.library.engines if mode in engine.modes]
        self.candidates = list(self.suggested)
        self._plans = [SimpleNamespace(cpp_index=FIRST_NATIVE + number) for number in range(len(self.suggested))]
        if not self.candidates:
            raise GraphNotSupportedError('no engine')

    def deselect_engines(self, names):
        self._deselect(lambda engine: any(name in engine.name for name in names))

    def deselect_numeric_notes(self, notes):
        assert all(note in numerical_note for note in notes)
        self._deselect(lambda engine: set(notes) & set(engine.notes))

    def deselect_workspace_greater_than(self, limit):
        assert type(limit) is int
        self._deselect(lambda engine: engine.workspace_bytes > limit)

    def _deselect(self, unwanted):
        assert self.step == 'suggested', 'a filter before there are suggestions filters nothing'
        self.candidates = [engine for engine in self.candidates if not unwanted(engine)]

    def check_support(self):
        self._next('suggested', 'supported')
        if not self.candidates:
            raise GraphNotSupportedError('none is left')

    def build_plans(self):
        self._next('supported', 'built')
        self.engine = self.candidates[0]
        self._plan_index = self.suggested.index(self.engine)

    def get_execution_plan_count(self):
        return len(self.suggested)

    def get_plan_name_at_index(self, index):
        return self.suggested[index].name

    def build_plan_at_index(self, index):
        assert self.step == 'built'
        engine = self.suggested[index]
        if engine not in self.candidates:
            raise GraphNotSupportedError('deselected')
        self.engine, self._plan_index = engine, index

    def get_workspace_size(self):
        assert self.step == 'built'
        return self.engine.workspace_bytes

    def execute(self, pack, workspace, *, handle):
        assert self.step == 'built' and handle == self.handle
        assert set(pack) == {tensor.uid for tensor in self.tensors}
        assert all(type(number) is int for number in [*pack, *pack.values()])
        self.executed += 1
        self._queue(pack, workspace)

    def _queue(self, pack, workspace):
        assert self.library.handles[self.handle] == self.library.device.stream(), 'queued on another stream'
        self._check_scratch(workspace)
        assert all(pack[tensor.uid] % 16 == 0 for tensor in self.tensors if not tensor.scalar)
        if self.engine.fault is not None:
            raise self.engine.fault
        self.runs += 1
        self.library.device.elapsed_seconds += self.engine.seconds
        order = ([self.x, self.w, self.y] if hasattr(self, 'x') else [*self.given, *self.results])
        self.compute(*(tensor.at(pack[tensor.uid]) for tensor in order))

    def _check_scratch(self, workspace):
        if not self.engine.workspace_bytes:
            return
        assert self.library.device.lent[workspace] >= self.engine.workspace_bytes
        ctypes.memset(workspace, 0xff, self.engine.workspace_bytes)


class HostDevice:
    """Arrays of NumPy in the place of a GPU's."""

    def __init__(self):
        self.current_stream, self.lent, self.made, self.elapsed_seconds = 7, {}, [], 0.0

    def number(self):
        return 0

    def seconds_of(self, call):
        before = self.elapsed_seconds
        call()
        return self.elapsed_seconds - before

    def stream(self):
        return self.current_stream

    def address(self, array):
        assert array.flags.c_contiguous
        return int(array.ctypes.data)

    def empty(self, shape, dtype):
        self.made.append(shape)
        return np.empty(shape, dtype)

    def scratch(self, nbytes):
        array = np.empty(nbytes, np.uint8)
        self.lent[int(array.ctypes.data)] = nbytes
        return array, int(array.ctypes.data)


def module(version='1.32.0', backend=92800):
    """What `import cudnn` gives, as far as finding it goes."""
    return SimpleNamespace(__version__=version, backend_version=lambda: backend)


def current(dtype):
    """The settings of the calling thread, for arrays of `dtype`."""
    from chainer_ooc.kernels.cudnn import settings

    return settings.plan_settings(settings.entries(), dtype)
