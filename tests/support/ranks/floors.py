"""Which budgets are named under an optimizer of one rank and of all of them, and whether they work.

Left is, for each, the floor and the doubt of the first refusal, and whether 1.02 times the largest floor of all ranks
was enough.
"""
import chainer_ooc

# isort: split
import chainer
import chainer.functions as F
import chainer.links as L
import chainermn
import numpy as np

from chainer_ooc.errors import InfeasibleBudgetError
from support.ranks.launch import leave
from support.trainings.ooc_training import ooc

comm = chainermn.create_communicator('naive')


def train(is_multi_node, budget):
    np.random.seed(0)
    model = chainer.Sequential(*(layer for _ in range(3) for layer in (L.Linear(200, 200), F.tanh)), L.Linear(200, 2))
    optimizer = chainer.optimizers.SGD()
    if is_multi_node:
        optimizer = chainermn.create_multi_node_optimizer(optimizer, comm)
    optimizer.setup(model)
    x = np.random.RandomState(comm.rank).rand(32, 200).astype('f')
    with ooc('swap-all', budget=budget):
        for _ in range(5):
            optimizer.update(lambda: F.sum(model(x) ** 2))


def named(is_multi_node):
    try:
        train(is_multi_node, 1)
    except InfeasibleBudgetError as error:
        refused = error.floor_bytes, error.doubt
    chainer_ooc.reset()
    largest = max(comm.mpi_comm.allgather(refused[0]))
    train(is_multi_node, int(1.02 * largest))  # a refusal would end all ranks
    peak_bytes = chainer_ooc.stats().peak_bytes
    chainer_ooc.reset()
    return *refused, peak_bytes <= int(1.02 * largest)


leave({is_multi_node: named(is_multi_node) for is_multi_node in (False, True)})
