"""Trains on one GPU a rank, in plain ChainerMN and out-of-core, and leaves every bit.

    on_gpu.py DEVICE       DEVICE: cuda, with pure_nccl; or host, with naive, which tries the program itself

Each rank sees the GPU of its number on the machine alone.
"""
import os
import sys

import chainer_ooc
from chainer_ooc.ranks.node import node

if sys.argv[1] == 'cuda':  # before CuPy is imported
    visible = os.environ.get('CUDA_VISIBLE_DEVICES', '').split(',')
    os.environ['CUDA_VISIBLE_DEVICES'] = visible[node().rank] if visible != [''] else str(node().rank)

# isort: split
import chainer
import chainermn
import numpy as np

from chainer_ooc.execute.graphs.times import Times
from chainer_ooc.execute.recording.expected import to_come_bytes
from support.ranks import double_buffering
from support.ranks.launch import leave
from support.trainings.ooc_networks import NETWORKS
from support.trainings.ooc_training import bits_of, ooc

ITERATIONS = 8
POLICIES = 'keep', 'swap-all', 'pooch'
#: Of a batch, by device: on a GPU maps are large beside what its allocator rounds up.
SIZES = {'host': {'size': 16}, 'cuda': {'size': 32, 'side': 48}}
#: Of what policy keep has at its highest.
SHARE = 0.95


def communicator(device, double):
    """A communicator for the device; the host has none for double buffering but a stand-in."""
    if device == 'cuda':
        return chainermn.create_communicator('pure_nccl')
    return double_buffering.communicator() if double else chainermn.create_communicator('naive')


def train(device, policy, double=False, budget=None):
    """Bits by label, statistics of each iteration, the last decision, and what exchanges were expected to keep."""
    comm = communicator(device, double)
    where = chainer.get_device('@cupy:0' if device == 'cuda' else '@numpy')
    np.random.seed(comm.rank)  # the first update has rank 0's parameters sent to all
    model, batch = NETWORKS['residual']()
    model.to_device(where)
    where.use()
    optimizer = chainermn.create_multi_node_optimizer(
        chainer.optimizers.MomentumSGD(0.01), comm, double_buffering=double).setup(model)
    bits, stats = {}, []
    with ooc(policy, budget=budget):
        for number in range(ITERATIONS):
            arrays = batch(np.random.RandomState(100 * comm.rank + number), **SIZES[device])
            loss = model(*(where.send(each) for each in arrays))
            model.cleargrads()
            loss.backward()
            bits[f'loss {number}'] = on_host(loss.array)
            del loss
            optimizer.update()
            stats.append(chainer_ooc.stats())
        plan, to_come = chainer_ooc.plan(), to_come_bytes(list(model.params()))
    if double:
        optimizer.wait()
    bits.update({f'parameter {name}': on_host(each.array) for name, each in sorted(model.namedparams())})
    chainer_ooc.reset()
    return {'bits': bits, 'stats': stats, 'decision': None if plan is None else plan.decision(),
            'budget': budget, 'to_come': to_come}


def on_host(array):
    return bits_of(np.asarray(chainer.get_device('@numpy').send(array)))


Times.note = lambda self, timing: False  # plans are not made anew for what a machine was busy with
left, device = {}, sys.argv[1]
with chainer.using_config('cudnn_deterministic', True), chainer.using_config('autotune', False):
    for double in (False, True):
        left['plain', double] = train(device, None, double)
        budget = None
        for policy in POLICIES:
            found = left[policy, double] = train(device, policy, double, budget)
            if policy == 'keep':
                budget = int(SHARE * max(each.peak_bytes for each in found['stats']))
leave(left)
