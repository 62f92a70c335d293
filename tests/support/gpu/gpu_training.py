"""`ooc_training` with model and batches on a GPU, and networks whose maps are worth swapping there.

The networks are those of tests/execute: one like ResNet, one like AlexNet, one like GoogLeNet, whose parameters are
small beside their maps, so that half of in-core's peak is a budget; and a real residual network that is thin. Batches
are large enough for maps beside which the pieces in which a device gives memory, 2 MiB at least, are small.
"""
import contextlib
import functools

import chainer
import numpy as np

import chainer_ooc
from chainer_ooc.errors import InfeasibleBudgetError
from models.resnet import ResNet, units_of
from support.trainings.ooc_networks import NETWORKS, _images
from support.trainings.ooc_training import Outcome, Training, bits_of, ooc

SHARE = 0.5
FLOOR_MARGIN = 1.03  # recordings of one graph differ by some kilobytes, and so do their floors
#: More than any of them takes in-core. Without a budget memory comes in pieces that suit a whole card, and pieces that
#: something still lives in stay as they are.
AMPLE = '2GB'
DEVICE = '@cupy:0'


def _thin_resnet():
    return ResNet(units_of(16), classes=5, width=8)


#: name -> (makes the model, keywords of its batch)
ON_GPU = {
    'residual': (lambda: NETWORKS['residual']()[0], {'size': 512, 'side': 48}),
    'hidden': (lambda: NETWORKS['hidden']()[0], {'size': 512, 'side': 48}),
    'inception': (lambda: NETWORKS['inception']()[0], {'size': 512, 'side': 48}),
    'resnet': (_thin_resnet, {'size': 512, 'side': 64}),
}


def on_host(array):
    """The array or number as NumPy's, wherever it is."""
    cuda = chainer.backends.cuda
    return np.asarray(cuda.to_cpu(array) if isinstance(array, cuda.ndarray) else array)


def seed_device(seed):
    """Sets the device's random stream, which dropout draws from; without cuRAND there is none, and no dropout."""
    import cupy
    with contextlib.suppress(ImportError, RuntimeError):
        cupy.random.seed(seed)


def drawn(count):
    """The next numbers of that stream, as NumPy's."""
    import cupy
    with contextlib.suppress(ImportError, RuntimeError):
        return on_host(cupy.random.random_sample(count))
    return np.zeros(0)


class GpuTraining(Training):
    """A training on the first GPU.

    Args:
        network: a name in `ON_GPU`.
        batch: other keywords of the batch, such as its size.
    """

    def __init__(self, network, seed=0, **batch):
        np.random.seed(seed)
        seed_device(seed)
        make, sizes = ON_GPU[network]
        self.model, self.sizes = make(), {**sizes, **batch}
        with chainer.using_config('ooc', None), chainer.using_config('train', False), chainer.no_backprop_mode():
            self.model(*_images(np.random.RandomState(0), **{**self.sizes, 'size': 2}))  # gives links their parameters
        self.model.to_device(DEVICE)
        self.optimizer = chainer.optimizers.MomentumSGD(lr=0.01, momentum=0.9).setup(self.model)
        self.outcome, self.number = Outcome(), 0

    def forward(self, **batch):
        arrays = _images(np.random.RandomState(self.number), **{**self.sizes, **batch})
        return self.model(*(chainer.get_device(DEVICE).send(each) for each in arrays))

    def note(self, label, array):
        self.outcome.bits[label] = bits_of(on_host(array))

    def finish(self):
        self.note('random stream of the device', drawn(8))
        self.model.to_device('@numpy')
        return super().finish()


def train(network, policy=None, iterations=4, seed=0, hooks=(), batch=None, **entries):
    """Trains on the GPU under a policy, or in plain Chainer when that is None."""
    entries.setdefault('min_bytes', 10_000)
    with chainer.using_config('ooc', None) if policy is None else ooc(policy, **entries):
        training = GpuTraining(network, seed, **(batch or {}))
        for hook in hooks:
            hook.__enter__()
        try:
            training.iterate(iterations)
        finally:
            for hook in reversed(hooks):
                hook.__exit__(None, None, None)
        return training.finish()


@functools.cache
def plain(network, iterations=4, seed=0):
    """The bits of plain Chainer on the GPU."""
    return train(network, None, iterations, seed).bits


@functools.cache
def in_core_peak(network, size=None):
    """The peak of policy keep, bytes."""
    chainer_ooc.reset()
    try:
        outcome = train(network, 'keep', 3, batch={} if size is None else {'size': size}, budget=AMPLE)
        return max(each.peak_bytes for each in outcome.stats)
    finally:
        chainer_ooc.reset()


@functools.cache
def tight_budget(network, policy, size=None, allocator='virtual'):
    """Half of in-core's peak, or just above the floor that a refusal names with this allocator where that is more."""
    half = int(SHARE * in_core_peak(network, size))
    return max(half, least_budget(half // 2, lambda budget: train(
        network, policy, 4, budget=budget, allocator=allocator, batch={} if size is None else {'size': size})))


def least_budget(budget, run):
    """Just above the floor that refusals of `run(budget)` name, from one on that the program's own arrays fit in.

    Beyond a budget an allocator of a device gives nothing, to the first iteration either: so the floors of the first
    refusals are of what the iteration had come to.
    """
    is_enough = False
    while not is_enough:
        chainer_ooc.reset()
        try:
            run(budget)
            is_enough = True
        except InfeasibleBudgetError as refused:
            budget, is_enough = int(FLOOR_MARGIN * refused.floor_bytes), not refused.doubt
    chainer_ooc.reset()
    return budget


def settled(stats):
    """The stats of the iterations under a plan; those before compiled kernels or planned for cuDNN, twice at most."""
    phases = [each.phase for each in stats]
    recorded = phases.index('run')
    assert recorded <= 3 and phases == ['profile'] * recorded + ['run'] * (len(stats) - recorded)
    return stats[recorded:]
