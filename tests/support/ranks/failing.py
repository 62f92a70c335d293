"""Trains with a multi-node checkpoint after every second iteration, and has rank 1 fail in the sixth.

    failing.py FAULT POLICY FOLDER       FAULT: none, killed, disk, budget, error

Goes on from the checkpoint in FOLDER, if there is one, to the eighth iteration; left are the bits of parameters and
their gradients, and before the fault the time.
"""
import functools
import os
import resource
import signal
import sys
import time

import chainer_ooc  # noqa: F401  before chainer

# isort: split
import chainer
import chainermn
import numpy as np

from support.ranks.launch import leave
from support.trainings.ooc_networks import NETWORKS
from support.trainings.ooc_training import bits_of, ooc

ITERATIONS, FAULTY = 8, 5


def fail(fault):
    leave(time.time())
    if fault == 'killed':
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == 'disk':
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1))
        chainer.config.ooc_spill_dir = f'{os.environ["RANKS_LEAVE"]}/other'  # a new file, which cannot grow
        chainer.config.ooc_budget = 1  # else maps stay in memory
    elif fault == 'budget':
        chainer.config.ooc_budget = 1
    else:
        raise LookupError('the program itself has failed')


def main(fault, policy, folder):
    comm = chainermn.create_communicator('naive')
    np.random.seed(0)
    model, batch = NETWORKS['residual']()
    random = np.random.RandomState(comm.rank)
    data = [tuple(each[0] for each in batch(random, size=1)) for _ in range(24)]
    optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.MomentumSGD(0.01), comm).setup(model)
    iterator = chainer.iterators.SerialIterator(data, 4, shuffle=False)
    updater = chainer.training.StandardUpdater(iterator, optimizer)
    checkpoint = chainermn.create_multi_node_checkpointer('a.training', comm, path=folder)
    checkpoint.maybe_load(updater, optimizer)
    began = updater.iteration
    with ooc(policy or None):
        while updater.iteration < ITERATIONS:
            if updater.iteration == FAULTY - 1 and fault == 'error':  # as tools do that show errors in their own way
                sys.excepthook = functools.partial(sys.__excepthook__)
            if updater.iteration == FAULTY and fault != 'none' and comm.rank == 1:
                fail(fault)
            updater.update()
            if updater.iteration % 2 == 0 and updater.iteration < ITERATIONS:
                checkpoint.save(updater, updater.iteration)
    leave({'began': began, 'bits': {
        **{name: bits_of(each.array) for name, each in model.namedparams()},
        **{f'{name} grad': bits_of(each.grad) for name, each in model.namedparams()},
        **{name: np.asarray(value).tobytes() for name, value in _persistent(model)}}})


def _persistent(model):
    return ((f'{path} {name}', getattr(link, name)) for path, link in model.namedlinks() for name in link._persistent)


main(sys.argv[1], '' if sys.argv[2] == 'plain' else sys.argv[2], sys.argv[3])
