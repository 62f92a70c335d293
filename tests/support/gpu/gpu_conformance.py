"""The cases of tests/conformance with their arrays on a GPU.

The tables are written for the host: arguments that are arrays are sent to the device here, and while a case's function
runs, so are the arrays that its lambda finds in its module (labels, masks, grids), whose names stand for copies on the
device meanwhile.
"""
import contextlib
import copy
import sys
import types

import chainer
import cupy
import numpy as np

from support.conformance.conformance_cases import Feature
from support.conformance.conformance_runs import Run, run
from support.gpu.gpu_training import DEVICE, drawn, on_host, seed_device

ALIKE_RELATIVE, ALIKE_ABSOLUTE = 1e-3, 1e-4

#: Functions whose backward adds to one place from many threads at once, so that the order of sums, and with it the last
#: bits, differ from run to run also in plain Chainer. They are compared as numbers.
ATOMIC = {
    'as_strided': 'adds gradients of overlapping elements by cupyx.scatter_add or atomicAdd',
    'get_item': 'by lists: cupyx.scatter_add',
    'scatter_add': 'cupyx.scatter_add',
    'resize_images': 'cupyx.scatter_add into the corners',
    'spatial_transformer_sampler': 'cupyx.scatter_add into the corners',
    'deformable_convolution_2d_sampler': 'uses spatial_transformer_sampler',
    'DeformableConvolution2D': 'uses spatial_transformer_sampler',
    'embed_id': 'atomicAdd for words that occur twice',
    'EmbedID': 'uses embed_id',
    'black_out': 'uses embed_id',
    'BlackOut': 'uses embed_id',
    'negative_sampling': 'atomicAdd for samples that occur twice',
    'NegativeSampling': 'uses negative_sampling',
    'BinaryHierarchicalSoftmax': "atomicAdd for a tree's inner nodes",
    'sparse_matmul': 'atomicAdd in the product with a sparse matrix',
    'roi_average_align_2d': 'atomicAdd where regions overlap',
    'roi_average_pooling_2d': 'atomicAdd where regions overlap',
    'roi_max_align_2d': 'atomicAdd where regions overlap',
    'roi_max_pooling_2d': 'atomicAdd where regions overlap',
    'connectionist_temporal_classification': 'atomicAdd for labels that occur twice',
}

#: Cases that Chainer 7.8.1 cannot run on a GPU, each with its reason. None is known before they have run on one.
NOT_ON_GPU: dict[str, str] = {}


def sent(value):
    """The same with arrays on the device, within tuples and lists too."""
    if isinstance(value, np.ndarray):
        return chainer.get_device(DEVICE).send(value)
    if isinstance(value, (list, tuple)) and value and all(isinstance(each, np.ndarray) for each in value):
        return type(value)(sent(each) for each in value)
    if isinstance(value, chainer.DeviceResident):
        moved = copy.deepcopy(value)
        moved.to_device(DEVICE)
        return moved
    return value


def _stand_in(name, value):
    """What a name of a table's module stands for while a case runs."""
    if value is np:
        return cupy
    if isinstance(value, types.FunctionType) and name in ('labels', 'numbers'):
        return lambda *args, **attributes: sent(value(*args, **attributes))
    return sent(value)


@contextlib.contextmanager
def tables_on_gpu():
    """Names of the tables' modules stand for arrays on the device meanwhile."""
    saved = []
    try:
        for module in [each for name, each in sys.modules.items() if name.startswith('support.conformance.cases_')]:
            for name, value in list(vars(module).items()):
                replacement = None if name.startswith('__') or name == 'CASES' else _stand_in(name, value)
                if replacement is not None and replacement is not value:
                    saved.append((module, name, value))
                    setattr(module, name, replacement)
        yield
    finally:
        for module, name, value in saved:
            setattr(module, name, value)


class GpuRun(Run):
    """A run with all arrays on the GPU."""

    def __init__(self, case, layout='plain'):
        seed_device(0)
        super().__init__(case, layout)

    def _gain(self, random, given):
        gain = super()._gain(random, given)
        if gain is not None:
            gain.to_device(DEVICE)
        return gain

    def _lasting(self, random, given):
        lasting = super()._lasting(random, given)
        if isinstance(lasting, (chainer.Parameter, chainer.Link)):
            lasting.to_device(DEVICE)
            return lasting
        return lasting if isinstance(lasting, Feature) else sent(lasting)

    def _leaf(self, random, given):
        leaf = super()._leaf(random, given)
        if leaf is not None:
            leaf.to_device(DEVICE)
        return leaf

    def _forward(self, number, leaves):
        with tables_on_gpu():
            return super()._forward(number, leaves)

    def _note(self, number, what, array):
        super()._note(number, what, None if array is None else on_host(array))

    def _note_state(self, number, leaves):
        super()._note_state(number, leaves)
        for place, lasting in enumerate(self.lasting):
            if isinstance(lasting, cupy.ndarray):
                self._note(number, f'argument {place}', lasting)
        self._note(number, 'random stream of the device', drawn(2))


def differing(found, expected):
    """The labels whose bits differ."""
    return [label for label in sorted({*found, *expected}) if found.get(label) != expected.get(label)]


def unlike(found, expected):
    """The labels whose numbers differ by more than the order of sums explains."""
    wrong = []
    for label in differing(found, expected):
        one, other = found.get(label), expected.get(label)
        if None in (one, other) or one[:2] != other[:2] or 'random stream' in label:
            wrong.append(label)
            continue
        numbers = [np.frombuffer(each[2], each[0]) for each in (one, other)]
        if not np.allclose(*numbers, rtol=ALIKE_RELATIVE, atol=ALIKE_ABSOLUTE, equal_nan=True):
            wrong.append(label)
    return wrong


def repeats(case, layout):
    """Whether plain Chainer gives the same bits twice."""
    first, second = (run(case, None, layout, GpuRun).bits for _ in range(2))
    return not differing(first, second)
