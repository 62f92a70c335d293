"""Trains with a policy by which each rank decides otherwise, and leaves the decision that each iteration followed.

    planning.py CASE ...       CASE: plain, alike, graph, setting, budgets, default, off, alone, parts

`by-rank` swaps every map on rank 0, and on rank n each map but the n first of these.
"""
import sys

import chainer_ooc

# isort: split
import chainer
import chainermn
import numpy as np

from chainer_ooc.backends.host.backend import HostBackend
from chainer_ooc.classify.policies import POLICIES, Policy
from chainer_ooc.execute.graphs.times import Times
from chainer_ooc.problem import Decision, Verdict, changed, everything
from chainer_ooc.ranks.agreement import Messages
from support.ranks.launch import leave
from support.trainings.ooc_networks import NETWORKS
from support.trainings.ooc_training import bits_of, ooc

ITERATIONS = 7


def by_rank(comm):
    """The policy on a rank."""
    def decide(problem):
        verdicts = everything(problem.trace, problem.min_bytes)
        swapped = [number for number, verdict in enumerate(verdicts) if verdict is Verdict.SWAP]
        return Decision(changed(verdicts, swapped[:comm.rank], Verdict.KEEP))
    return Policy('by-rank', 'for tests', decide)


def main(case, comm, everybody):
    """Decisions by iteration, and bits at the end. `alone` has iterations without the others, `parts` a reset."""
    np.random.seed(0)
    model, batch = NETWORKS['residual']()
    optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.MomentumSGD(0.01), comm).setup(model)
    size = 4 + (comm.rank == comm.size - 1) if case == 'graph' else 4
    first, last = comm.rank == 0, comm.rank == comm.size - 1
    budgets = {'budgets': 10**9 - 10**6 * comm.rank, 'default': None}
    decisions = []

    def iterate(update):
        loss = model(*batch(np.random.RandomState(comm.rank), size=size))
        model.cleargrads()
        loss.backward()
        del loss
        update()
        if case == 'alike':  # whose messages of any tag are the program's alone
            comm.send_obj(number, (comm.rank + 1) % comm.size)
            assert comm.recv_obj((comm.rank - 1) % comm.size) == number
        plan = chainer_ooc.plan()
        decisions.append(None if plan is None else plan.decision())

    with ooc(None if case in ('off', 'plain') and (first or case == 'plain') else 'by-rank',
             min_bytes=1 if case == 'setting' and last else 0,
             budget=budgets.get(case, 10**9)):
        for number in range(ITERATIONS):
            if case == 'alone' and first and number == 3:
                with chainer.no_backprop_mode(), chainer.using_config('train', False):
                    model(*batch(np.random.RandomState(0), size=size))
                for _ in range(3):
                    iterate(lambda: None)
            if case == 'parts':
                everybody.mpi_comm.barrier()  # parts of one rank would be done before others have begun
                if number == 3:
                    chainer_ooc.reset()
            iterate(optimizer.update)
        if case == 'alone' and not first:
            for _ in range(3):
                iterate(lambda: None)
    chainer_ooc.reset()
    return {'decisions': decisions, 'bits': {name: bits_of(each.array) for name, each in model.namedparams()}}


def posts_of(act):
    """What `act` gives, and how many messages were sent to other ranks' managers meanwhile."""
    posted, post = [], Messages.post
    Messages.post = lambda self, receiver, message: (posted.append(receiver), post(self, receiver, message))
    try:
        return {**act(), 'posts': len(posted)}
    finally:
        Messages.post = post


def default_budget_bytes(backend, held_bytes, latest_bytes):
    """What is free differs from rank to rank."""
    return 10**9 - 10**6 * comm.rank


HostBackend.default_budget_bytes = default_budget_bytes
Times.note = lambda self, timing: False  # plans are not made anew for what a machine was busy with
comm = chainermn.create_communicator('naive')
POLICIES['by-rank'] = by_rank(comm)
left = {}
for each in sys.argv[1:]:
    part = comm.split(comm.rank % 2, comm.rank) if each == 'parts' else comm
    left[each] = posts_of(lambda case=each, part=part: main(case, part, comm))
leave(left)
