"""Trains behind a wall (RLIMIT_DATA) that leaves MPI nothing but what out-of-core gives back.

    walled.py POLICY MEGABYTES       the wall is so much above what the process has before it trains
"""
import resource
import sys

import chainer_ooc  # noqa: F401  before chainer

# isort: split
import chainer
import chainer.functions as F
import chainer.links as L
import chainermn
import numpy as np

from chainer_ooc.backends.host import limits
from support.ranks.launch import leave
from support.trainings.ooc_training import bits_of


class Network(chainer.ChainList):
    """60 MB of maps, and 20 MB of parameters, of which one is nearly all."""

    def __init__(self):
        super().__init__(*(L.Convolution2D(None, 16, 3, pad=1) for _ in range(14)), L.Linear(None, 600))

    def forward(self, x):
        for link in self[:14]:
            x = F.relu(link(x))
        return F.sum(self[14](F.average_pooling_2d(x, 2, 2)) ** 2) * 1e-3


comm = chainermn.create_communicator('naive')
np.random.seed(comm.rank)
model, x = Network(), np.random.randn(8, 3, 48, 48).astype('f')
with chainer.no_backprop_mode():
    model(x[:1])
optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.MomentumSGD(1e-9), comm).setup(model)
if sys.argv[1] != 'plain':
    chainer.config.ooc = sys.argv[1]
    wall = limits.kilobyte_fields('/proc/self/status')['VmData'] + (int(sys.argv[2]) << 20)
    resource.setrlimit(resource.RLIMIT_DATA, (wall, resource.RLIM_INFINITY))
for _ in range(4):
    optimizer.update(lambda: model(x))
resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY,) * 2)
leave({name: bits_of(each.array) for name, each in model.namedparams()})
