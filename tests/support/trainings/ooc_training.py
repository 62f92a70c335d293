"""Trains a small network twice, in plain Chainer and out-of-core, and compares every bit.

What counts as equal is P2: losses, parameters, gradients, persistent values (running statistics) and the state of the
random stream. Arrays are compared as bytes, so that a NaN or a negative zero counts too.
"""
import contextlib
import functools
import gc
import os
from dataclasses import dataclass, field

import chainer
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.execute import sessions
from support.trainings.ooc_networks import NETWORKS

POLICIES = ('keep', 'swap-all-naive', 'swap-all')
SWAPPING = ('swap-all-naive', 'swap-all')


@dataclass
class Outcome:
    """What training left: label -> bytes, and the stats of each iteration."""

    bits: dict = field(default_factory=dict)
    stats: list = field(default_factory=list)


@contextlib.contextmanager
def ooc(policy='swap-all', *, min_bytes=0, budget=None, **entries):
    """Sets chainer.config.ooc* for a while."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(chainer.using_config('ooc_min_bytes', min_bytes))
        stack.enter_context(chainer.using_config('ooc_budget', budget))
        for name, value in entries.items():
            stack.enter_context(chainer.using_config(f'ooc_{name}', value))
        stack.enter_context(chainer.using_config('ooc', policy))
        yield


def bits_of(array):
    """Dtype, shape and content of an array, as one comparable value."""
    return (array.dtype.str, array.shape, array.tobytes())


class Training:
    """A model, its optimizer and its batches, step by step.

    Args:
        network: a name in `NETWORKS`.
    """

    def __init__(self, network, seed=0):
        np.random.seed(seed)
        self.model, self.batch = NETWORKS[network]()
        with chainer.using_config('ooc', None), chainer.using_config('train', False), chainer.no_backprop_mode():
            self.model(*self.batch(np.random.RandomState(0)))  # gives links their parameters
        self.optimizer = chainer.optimizers.MomentumSGD(lr=0.01, momentum=0.9)
        self.optimizer.setup(self.model)
        self.outcome = Outcome()
        self.number = 0

    def iterate(self, count=1, run_backward=None, **batch):
        """Runs iterations and notes their bits; `run_backward` calls what it is given, and waits for it."""
        for _ in range(count):
            loss = self.forward(**batch)
            self.model.cleargrads()
            run_backward(loss.backward) if run_backward else loss.backward()
            self.note_gradients()
            self.optimizer.update()
            self.note(f'loss {self.number}', loss.array)
            del loss
            self.outcome.stats.append(chainer_ooc.stats())
            self.number += 1
        return self.outcome

    def forward(self, **batch):
        """The loss of the next batch."""
        return self.model(*self.batch(np.random.RandomState(self.number), **batch))

    def note(self, label, array):
        self.outcome.bits[label] = bits_of(array)

    def note_gradients(self):
        for name, parameter in sorted(self.model.namedparams()):
            if parameter.grad is not None:
                self.note(f'gradient {self.number} {name}', parameter.grad)

    def finish(self):
        """Adds what is left at the end: parameters, persistent values, the random stream."""
        for name, parameter in sorted(self.model.namedparams()):
            if parameter.array is not None:
                self.note(f'parameter {name}', parameter.array)
        for link_name, link in self.model.namedlinks():
            for name in sorted(link._persistent):
                self.note(f'persistent {link_name}/{name}', np.asarray(getattr(link, name)))
        kind, keys, position, *_ = np.random.get_state()
        self.outcome.bits['random stream'] = (kind, keys.tobytes(), position)
        return self.outcome


def train(network, policy=None, iterations=4, seed=0, **entries):
    """Trains under a policy, or in plain Chainer when that is None."""
    if policy is None:
        with chainer.using_config('ooc', None):
            training = Training(network, seed)
            training.iterate(iterations)
            return training.finish()
    with ooc(policy, **entries):
        training = Training(network, seed)
        training.iterate(iterations)
        return training.finish()


@functools.cache
def plain(network, iterations=4, seed=0):
    """The bits of plain Chainer."""
    return train(network, None, iterations, seed).bits


@functools.cache
def floor_of(network, policy, min_bytes=0):
    """The smallest budget that the policy says it can work with."""
    chainer_ooc.reset()
    try:
        train(network, policy, 1, min_bytes=min_bytes)  # what Python makes when code runs first is not measured
        chainer_ooc.reset()
        train(network, policy, 2, min_bytes=min_bytes, budget=1)
    except InfeasibleBudgetError as error:
        return error.floor_bytes
    finally:
        chainer_ooc.reset()
    raise AssertionError(f'{network}: a budget of one byte was found feasible')


def train_at_the_floor(network, policy):
    """Trains 4 iterations: one recorded, the others at the budget that a refusal names; that budget comes back too."""
    training = Training(network)
    with ooc(policy, budget=1):
        training.iterate()
        with pytest.raises(InfeasibleBudgetError) as refused:
            training.iterate()
    with ooc(policy, budget=refused.value.floor_bytes):
        training.iterate(3)
    training.finish()
    return training, refused.value.floor_bytes


@functools.cache
def in_core_peak(network, min_bytes=0):
    """The peak of policy keep, bytes."""
    chainer_ooc.reset()
    try:
        return train(network, 'keep', 3, min_bytes=min_bytes).stats[-1].peak_bytes
    finally:
        chainer_ooc.reset()


def assert_same_bits(outcome, expected):
    """Compares everything, and names what differs."""
    bits = outcome.bits if isinstance(outcome, Outcome) else outcome
    assert sorted(bits) == sorted(expected)
    assert [label for label in bits if bits[label] != expected[label]] == []


def spill_bytes():
    """Sizes of this process's files without a name: the spill files."""
    total = 0
    for number in os.listdir('/proc/self/fd'):
        try:
            target = os.readlink(f'/proc/self/fd/{number}')
            if '(deleted)' in target and target.startswith('/'):
                total += os.fstat(int(number)).st_size
        except OSError:  # the descriptor of listdir itself
            continue
    return total


def live_storages():
    """Number of blocks of memory that sessions still look after, those of tests without a session aside."""
    from chainer_ooc.execute.storage.account import book_deaths
    from chainer_ooc.execute.storage.storage import Storage
    gc.collect()
    book_deaths()
    return sum(1 for each in gc.get_objects() if type(each) is Storage
               and (each.memory.closed or not each.memory.backend._closed))


def send_all_away():
    """As memory that is short would."""
    session = sessions.current()
    for storage in [] if session is None else session.memory.storages():
        storage.memory.swap_out(storage)
    if session is not None:
        session.memory.settle()
