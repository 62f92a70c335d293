"""Chainer's updaters for several devices: on the CPU one of them works, the other says what it lacks."""
import chainer
import numpy as np
import pytest

import chainer_ooc
from support.trainings.ooc_networks import NETWORKS
from support.trainings.ooc_training import assert_same_bits, bits_of, ooc


def train(policy, budget=None):
    """Bits after 5 updates of a ParallelUpdater whose two devices are both the host, and the stats of each."""
    np.random.seed(0)
    model, batch = NETWORKS['residual']()
    x, t = batch(np.random.RandomState(0), size=16)
    optimizer = chainer.optimizers.MomentumSGD(0.01).setup(model)
    iterator = chainer.iterators.SerialIterator(chainer.datasets.TupleDataset(x, t), 8, shuffle=False)
    updater = chainer.training.updaters.ParallelUpdater(
        iterator, optimizer, devices={'main': '@numpy', 'second': '@numpy'})
    stats = []
    with ooc(policy, budget=budget):
        for _ in range(5):
            updater.update()
            stats.append(chainer_ooc.stats())
    return {name: bits_of(each.array) for name, each in model.namedparams()}, stats


@pytest.mark.parametrize('policy', ['keep', 'swap-all', 'pooch'])
def test_a_parallel_updater_gives_the_bits_of_plain_chainer(policy):
    expected, _ = train(None)
    found, stats = train(policy)
    assert_same_bits(found, expected)
    assert policy != 'swap-all' or stats[-1].swapped_out_bytes > 0


def test_a_multiprocess_parallel_updater_needs_gpus():
    model, _ = NETWORKS['residual']()
    optimizer = chainer.optimizers.MomentumSGD(0.01).setup(model)
    with pytest.raises(Exception, match='NCCL is not enabled'):
        chainer.training.updaters.MultiprocessParallelUpdater([], optimizer, devices=[0, 1])
