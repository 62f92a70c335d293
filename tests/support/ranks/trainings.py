"""Trains small networks on several ranks, under each policy of the command line, and leaves every bit.

    trainings.py NETWORK POLICY ...        POLICY: plain, or a policy, or one of support.trainings.verdict_mixes

`NETWORK+double` has gradients exchanged by a thread while the next iteration runs, and the update after that use them.

Batches have other sizes from iteration to iteration and from rank to rank. After `POLICY/floor` it is trained within
1.02 times the smallest budget that refusals name; else there is no budget.
"""
import sys

import chainer_ooc

# isort: split
import chainer
import chainermn
import numpy as np

from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.errors import InfeasibleBudgetError
from support.ranks import double_buffering, networks
from support.ranks.launch import leave
from support.trainings import verdict_mixes
from support.trainings.ooc_training import bits_of, ooc

#: Sizes of batches, iteration by iteration.
SIZES = (4, 4, 6, 4, 6, 3)


class Journal:
    """A communicator that notes what was asked of it, in order: the name of the method, and the shape of an array."""

    NOTED = ('send', 'recv', 'bcast', 'gather', 'scatter', 'allgather', 'alltoall', 'allreduce', '_multi_node_mean',
             'bcast_data', 'multi_node_mean_grad')

    def __init__(self, comm):
        self.lines = []
        for name in self.NOTED:
            setattr(comm, name, self._noting(name, getattr(comm, name)))
        self.comm = comm

    def _noting(self, name, act):
        def noting(*args, **kwargs):
            self.lines.append((name, *(each.shape for each in args if isinstance(each, np.ndarray))))
            return act(*args, **kwargs)
        return noting


def train(network, policy, budget=None):
    """Bits of losses, gradients before and after the exchange, parameters, statistics; and what it cost."""
    network, _, double = network.partition('+')
    journal = Journal(double_buffering.communicator() if double else chainermn.create_communicator('naive'))
    comm = journal.comm
    np.random.seed(comm.rank)  # the first update has rank 0's parameters sent to all
    model, batch = networks.NETWORKS[network](comm)
    optimizer = chainer.optimizers.MomentumSGD(0.01)
    if network != 'spread':  # whose ranks have parameters of their own
        optimizer = chainermn.create_multi_node_optimizer(optimizer, comm, double_buffering=bool(double))
    optimizer.setup(model)
    bits, stats = {}, []
    with ooc(policy, budget=budget):
        for number in range(len(SIZES)):
            loss = _loss(model, batch, comm, number)
            _note(bits, f'{number} own', model, 'grad')
            bits[f'{number} loss'] = bits_of(loss.array)
            del loss
            optimizer.update()
            _note(bits, f'{number} mean', model, 'grad')
            _note(bits, f'{number}', model, 'array')
            stats.append(chainer_ooc.stats())
    if double:
        optimizer.wait()
    for name, link in model.namedlinks():
        bits.update({f'{name} {each}': bits_of(np.asarray(getattr(link, each))) for each in sorted(link._persistent)})
    bits['random'] = np.random.get_state()[1].tobytes()
    chainer_ooc.reset()
    return {'bits': bits, 'stats': stats, 'journal': journal.lines}


def floor(network, policy):
    """The smallest budget that this rank's refusals name when it trains alone: one that is refused ends its iteration,
    and ranks that it leaves waiting wait for ever.
    """
    comm, nbytes = chainermn.create_communicator('naive'), 1
    while True:
        model, batch = networks.NETWORKS[network](comm)
        optimizer = chainer.optimizers.MomentumSGD(0.01).setup(model)
        try:
            with ooc(policy, budget=nbytes):
                for number in range(len(SIZES)):
                    _loss(model, batch, comm, number)
                    optimizer.update()
            return nbytes
        except InfeasibleBudgetError as error:
            nbytes = error.floor_bytes
        finally:
            chainer_ooc.reset()


def _loss(model, batch, comm, number):
    """Runs forward and backward on a batch of this rank's own."""
    loss = model(*batch(np.random.RandomState(100 * comm.rank + number), size=SIZES[number]))
    model.cleargrads()
    loss.backward()
    return loss


def _note(bits, label, model, attribute):
    for name, parameter in sorted(model.namedparams()):
        if getattr(parameter, attribute) is not None:
            bits[f'{label} {attribute} {name}'] = bits_of(getattr(parameter, attribute))


if __name__ == '__main__':
    POLICIES.update(verdict_mixes.POLICIES)
    network, *policies = sys.argv[1:]
    left = {}
    for each in policies:
        policy, _, where = each.partition('/')
        if policy == 'plain':
            left['plain', None] = train(network, None)
        else:
            nbytes = int(1.02 * floor(network, policy)) if where else None
            left[policy, nbytes] = train(network, policy, nbytes)
    leave(left)
