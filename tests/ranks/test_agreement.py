"""Which plan ranks follow in common, and the messages that carry it; of one process, with a network made here."""
import os
import random
import subprocess
import sys
import types
from collections import deque

import pytest

from chainer_ooc.ranks import agreement as agreements
from chainer_ooc.ranks.agreement import Agreement, Messages, Offer, communicator


class Network:
    """Ranks whose messages arrive in order, and as late as a test wants."""

    def __init__(self, size):
        self.boxes = [deque() for _ in range(size)]
        self.ranks = [Agreement(_Post(self, rank)) for rank in range(size)]

    def settle(self):
        """Has all ranks look until nothing is on its way."""
        while any(self.boxes):
            for each in self.ranks:
                each.look()

    def told(self, key='k'):
        return [each.told(key) for each in self.ranks]


class _Post:
    def __init__(self, network, rank):
        self._network, self.rank = network, rank

    def post(self, receiver, message):
        self._network.boxes[receiver].append(message)

    def take(self):
        box = self._network.boxes[self.rank]
        return [box.popleft() for _ in range(len(box))]


def test_the_plan_of_the_rank_with_the_least_room_is_for_all_and_of_equals_that_of_the_lowest():
    network = Network(3)
    network.ranks[2].offer('k', 500, 'c')
    network.settle()
    assert network.told() == [None, None, (500, 2, 'c')]
    network.ranks[1].offer('k', 500, 'b')
    network.settle()
    assert network.told() == [None, (500, 1, 'b'), (500, 1, 'b')]
    network.ranks[0].offer('k', 900, 'a')
    network.settle()
    assert network.told() == 3 * [(500, 1, 'b')]


def test_a_rank_that_holds_the_plan_replaces_it_whatever_its_room_is_now():
    network = Network(2)
    for rank in (0, 1):
        network.ranks[rank].offer('k', 500, 'first')
    network.settle()
    network.ranks[0].offer('k', 800, 'second')
    network.settle()
    assert network.told() == 2 * [(800, 0, 'second')]


def test_a_rank_is_told_of_keys_that_it_has_offered_a_plan_for_alone():
    network = Network(2)
    network.ranks[0].offer('k', 500, 'a')
    network.ranks[1].offer('other', 500, 'b')
    network.settle()
    assert network.told('k') == [(500, 0, 'a'), None]
    assert network.told('other') == [None, (500, 1, 'b')]


@pytest.mark.parametrize('seed', range(20))
def test_ranks_that_look_at_any_time_come_to_agree(seed):
    draws, network = random.Random(seed), Network(4)
    latest = {}
    for number in range(40):
        rank = draws.randrange(4)
        if draws.random() < 0.4:
            latest[rank] = number
            network.ranks[rank].offer('k', draws.choice((100, 200)), number)
        else:
            network.ranks[rank].look()
    network.settle()
    told = [each for rank, each in enumerate(network.told()) if rank in latest]
    assert len(set(told)) == 1
    assert told[0].plan == latest[told[0].rank]  # and not one that its rank has replaced


def test_a_rank_that_was_told_the_same_again_has_the_same_object():
    network = Network(2)
    network.ranks[0].offer('k', 500, (1, 2))
    network.ranks[1].offer('k', 500, (3, 4))
    network.settle()
    before = network.told()
    network.ranks[1].offer('k', 700, (3, 4))
    network.settle()
    assert all(one is other for one, other in zip(before, network.told(), strict=True))


def test_what_is_known_is_bounded(monkeypatch):
    monkeypatch.setattr(agreements, 'KEYS', 3)
    network = Network(2)
    for number in range(10):
        network.ranks[1].offer(f'k{number}', 500, 'plan')
        network.settle()
    assert [network.ranks[1].told(f'k{number}') is not None for number in range(10)] == 7 * [False] + 3 * [True]
    assert len(network.ranks[0]._directory._entries) == 3


def test_a_rank_that_forgets_is_told_again_when_it_offers():
    network = Network(2)
    for rank in (0, 1):
        network.ranks[rank].offer('k', 500, rank)
    network.settle()
    network.ranks[1].forget()
    assert network.ranks[1].told('k') is None
    network.ranks[1].offer('k', 500, 1)
    network.settle()
    assert network.ranks[1].told('k') == Offer(500, 0, 0)


class Wire:
    """What mpi4py's communicator does, as seen by one rank; a message is over when its receiver has begun to take it.

    Attributes:
        sent: what is on its way from here, by receiver.
        arrived: what is on its way to here; None stands for one whose bytes are not there yet.
    """

    rank, size = 0, 3

    def __init__(self):
        self.sent, self.arrived = [], deque()

    def isend(self, message, receiver):
        self.sent.append(_Request(receiver, message))
        return self.sent[-1]

    def improbe(self):
        return self.arrived.popleft() if self.arrived else None


class _Request:
    def __init__(self, receiver, message, is_over=False):
        self.receiver, self.message, self.is_over = receiver, message, is_over

    def irecv(self):
        return self

    def test(self):
        return self.is_over, self.message


def test_one_message_is_on_its_way_to_each_rank_and_behind_it_the_newest_of_each_key():
    wire = Wire()
    messages = Messages(wire)
    for number in range(5):
        messages.post(1, ('k', number))
    messages.post(1, ('other', 0))
    messages.post(2, ('k', 0))
    assert [(each.receiver, each.message) for each in wire.sent] == [(1, ('k', 0)), (2, ('k', 0))]
    messages.take()
    assert len(wire.sent) == 2
    for _ in range(3):
        wire.sent[0].is_over = wire.sent[-1].is_over = True
        messages.take()
    assert [each.message for each in wire.sent[2:]] == [('k', 4), ('other', 0)]


def test_a_message_whose_bytes_have_not_arrived_is_not_waited_for_and_keeps_its_place():
    wire = Wire()
    messages = Messages(wire)
    late, early = _Request(0, ('k', 'first')), _Request(0, ('k', 'second'), is_over=True)
    wire.arrived += [late, early]
    assert messages.take() == []
    late.is_over = True
    assert messages.take() == [('k', 'first'), ('k', 'second')]


@pytest.mark.parametrize(('changed', 'usable'), [
    ({}, True), ({'process': -1}, False), ({'ended': True}, False), ({'threads': 2}, False),
    ({'threads': 1}, True), ({'threads': 1, 'main': False}, False)])
def test_nothing_is_sent_by_a_forked_child_or_after_mpi_has_ended_or_beside_threads_it_is_not_made_for(
        monkeypatch, changed, usable):
    case = {'process': os.getpid(), 'ended': False, 'threads': 3, 'main': True, **changed}
    monkeypatch.setitem(sys.modules, 'chainer._ooc', types.SimpleNamespace(messages=('comm', case['process'])))
    monkeypatch.setitem(sys.modules, 'mpi4py.MPI', types.SimpleNamespace(
        THREAD_MULTIPLE=3, THREAD_SERIALIZED=2, Query_thread=lambda: case['threads'],
        Is_thread_main=lambda: case['main'], Is_finalized=lambda: case['ended']))
    assert (communicator() == 'comm') is usable


def test_a_process_without_other_ranks_has_no_agreement():
    assert agreements.agreement() is None
    agreements.forget()


ALONE = """
import sys
import chainer_ooc
import chainer, chainer.links as L, numpy as np
chainer.config.ooc, chainer.config.ooc_min_bytes = 'swap-all', 0
model = L.Linear(4, 3)
optimizer = chainer.optimizers.SGD().setup(model)
for _ in range(3):
    optimizer.update(lambda: chainer.functions.sum(model(np.ones((2, 4), 'f')) ** 2))
assert chainer_ooc.plan() is not None
print([name for name in sys.modules if name.split('.')[0] in ('mpi4py', 'chainermn')])
"""


def test_a_training_of_one_process_imports_no_mpi():
    done = subprocess.run([sys.executable, '-W', 'ignore', '-c', ALONE], capture_output=True, text=True)
    assert done.stdout == '[]\n', done.stderr
