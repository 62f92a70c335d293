"""Small networks for several ranks.

`NETWORKS` maps a name to a function of a communicator; it returns a model, which maps a batch to a loss, and a function
that makes the batch from a random state and its keyword `size`.
"""
import chainer
import chainer.functions as F
import chainer.links as L
import chainermn
import numpy as np

from support.trainings import ooc_networks


def alone(name):
    """A network of `ooc_networks` on each rank, with batches of another size on each."""
    def make(comm):
        model, batch = ooc_networks.NETWORKS[name]()
        return model, lambda random, size: batch(random, size=size + comm.rank)
    return make


def normalized_together(comm):
    """Batch normalization over all ranks' batches."""
    model, batch = ooc_networks.NETWORKS['residual']()
    return chainermn.links.create_mnbn_model(model, comm), lambda random, size: batch(random, size=size + comm.rank)


class Stage(chainer.Chain):
    """A part of a network that is spread over the ranks: maps of one channel count each, and a shortcut.

    Args:
        channels: of what comes in, or None where that is images.
        classes: of the last stage, whose output are scores; None for others.
    """

    def __init__(self, channels, classes=None):
        super().__init__()
        self.classes = classes
        with self.init_scope():
            self.conv0 = L.Convolution2D(channels, 6, 3, pad=1)
            self.conv1 = L.Convolution2D(6, 6, 3, pad=1)
            self.fc = None if classes is None else L.Linear(6, classes)

    def __call__(self, x):
        h = F.relu(self.conv0(x))
        h = F.tanh(self.conv1(h)) + F.sigmoid(h)
        return h if self.fc is None else self.fc(F.average_pooling_2d(h, h.shape[2:]))


class Spread(chainermn.MultiNodeChainList):
    """One stage on each rank, the first on rank 0: messages go forward and backward within an iteration."""

    def __init__(self, comm):
        super().__init__(comm)
        is_last = comm.rank == comm.size - 1
        self.is_last = is_last
        self.add_link(Stage(6 if comm.rank else 3, 5 if is_last else None),
                      rank_in=comm.rank - 1 if comm.rank else None, rank_out=None if is_last else comm.rank + 1)

    def __call__(self, x, t):
        y = super().__call__(x)
        return F.softmax_cross_entropy(y, t) if self.is_last else y


def spread(comm):
    """A network of as many stages as there are ranks, all of which see the same batches."""
    def batch(random, size):
        same = np.random.RandomState(size)
        return (same.uniform(-1, 1, (size, 3, 12, 12)).astype(np.float32), same.randint(0, 5, size).astype(np.int32))
    return Spread(comm), batch


NETWORKS = {'residual': alone('residual'), 'hidden': alone('hidden'), 'normalized-together': normalized_together,
            'spread': spread}
