"""Whole trainings on the chaos device, in every run; `pytest tests/execute --backend chaos` has all of them on it.

What a copy must not see or be seen by is NaN there, so equal bits mean that every copy was waited for (P1, P2), and
that faults of the device leave the bytes in one tier (P9).
"""
import contextlib
import gc
import itertools
import traceback

import chainer
import chainer.functions as F
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.errors import SpillError
from chainer_ooc.execute.storage.states import State
from chainer_ooc.execute.storage.storage import Storage
from support.chaos import ChaosBackend
from support.combinations import spread
from support.devices import chosen
from support.trainings.ooc_networks import NETWORKS
from support.trainings.ooc_training import SWAPPING, Training, assert_same_bits, ooc, plain, train_at_the_floor


@contextlib.contextmanager
def chaos(seed=0, **limits):
    """Puts trainings on chaos; gives the backends that are made."""
    chainer_ooc.reset()
    with chosen(lambda spill_dir: ChaosBackend(seed, **limits)) as made:
        yield made
        chainer_ooc.reset()


def source_misuses(made):
    return [misuse for backend in made for misuse in backend.misuses if 'source' in misuse]


@pytest.mark.parametrize(('network', 'policy', 'seed'), spread(list(NETWORKS), SWAPPING, range(3), every=3))
def test_late_copies_change_no_bit(network, policy, seed):
    with chaos(seed) as made, ooc(policy):
        training = Training(network)
        training.iterate(4)
        training.finish()
    assert_same_bits(training.outcome, plain(network))
    assert source_misuses(made) == []
    assert sum(each.swapped_in_bytes for each in training.outcome.stats) > 0


@pytest.mark.parametrize(
    ('network', 'policy', 'seed'), spread(['residual', 'hidden', 'inception'], SWAPPING, range(3), every=3))
def test_late_copies_change_no_bit_where_memory_is_short(network, policy, seed):
    with chaos(seed) as made:
        training, floor_bytes = train_at_the_floor(network, policy)
    assert_same_bits(training.outcome, plain(network))
    assert source_misuses(made) == []
    assert max(each.peak_bytes for each in training.outcome.stats[1:]) <= floor_bytes


def test_a_seed_repeats_a_training_copy_by_copy():
    def events():
        with chaos(5) as made, ooc('swap-all'):
            Training('residual').iterate(3)
        return made[0].events

    assert events() == events()


@pytest.mark.parametrize('seed', range(3))
@pytest.mark.parametrize('act', ['swap_out', 'swap_in'])
@pytest.mark.parametrize('policy', SWAPPING)
def test_a_copy_that_fails_loses_nothing(policy, act, seed):
    """A failed swap-in is tried again; a failed swap-out is told, and its map is still there."""
    with chaos(seed) as made, ooc(policy):
        x = chainer.Variable(np.arange(3000, dtype=np.float32))
        kept = [x * 1e-3]
        F.sqrt(kept[0])  # now there is a backend
        made[0].fail_next(act, 3)
        for _ in range(6):
            try:
                kept.append(F.tanh(kept[-1]))
            except SpillError:
                continue
        for before, after in itertools.pairwise(kept):
            assert np.array_equal(_read(after), np.tanh(_read(before)))
    assert any(event.endswith('fails') for event in made[0].events)


def _read(variable):
    for _ in range(3):
        try:
            return variable.array
        except SpillError:
            continue
    return variable.array


def test_far_memory_that_is_too_small_is_told_and_more_of_it_helps():
    with chaos(far_bytes=20_000), ooc('swap-all'):
        training = Training('residual')
        with pytest.raises(SpillError, match='far memory of the chaos backend is too small'):
            training.iterate(4)
    with chaos(), ooc('swap-all'):
        training = Training('residual')
        training.iterate(4)
    assert_same_bits(training.finish(), plain('residual'))


def test_near_memory_that_is_short_costs_time_only():
    with chaos(near_bytes=40_000) as made, ooc('swap-all', budget='2MB'):
        training = Training('residual')
        training.iterate(4)
    assert_same_bits(training.finish(), plain('residual'))
    assert source_misuses(made) == []


# Found by chaos


def arriving():
    gc.collect()
    return [each for each in gc.get_objects() if type(each) is Storage and each.state is State.ARRIVING]


def let_everything_leave(backend):
    """All swap-outs end, and the next function lets go of what they moved."""
    backend._streams.drain()
    F.identity(chainer.Variable(np.zeros(1, np.float32)))


def test_no_map_arrives_that_no_backward_reads_any_more():
    # call       0 exp    1 sin .. 4 sin    5 exp of 0
    # backward            4, 3              5            then 4, 3 and 2 are asked for, of which only 2 is still to come
    with chaos() as made, ooc('swap-all'):
        x = chainer.Variable(np.linspace(0, 1, 3000, dtype=np.float32))
        short = long = F.exp(x)
        for _ in range(4):
            long = F.sin(long)
        loss = F.sum(long) + F.sum(F.exp(short))
        let_everything_leave(made[0])
        loss.backward()
        assert arriving() == []


class FailsInBackward(chainer.FunctionNode):
    def forward(self, inputs):
        return inputs[0] * 1,

    def backward(self, indexes, grads):
        raise ZeroDivisionError


def test_a_graph_that_dies_keeps_a_block_until_its_swap_in_has_ended():
    """On a GPU the copy would write into what the memory's next owner has there."""
    with chaos() as made, ooc('swap-all'):
        y = chainer.Variable(np.linspace(0, 1, 3000, dtype=np.float32))
        for _ in range(4):
            y = F.sin(y)
        made[0]._streams.drain()
        loss = F.sum(FailsInBackward().apply((y,))[0])
        with pytest.raises(ZeroDivisionError) as failed:
            loss.backward()
        assert arriving() != []
        traceback.clear_frames(failed.tb)
        del y, loss, failed
        gc.collect()
    assert made[0].misuses == []


def test_an_interrupt_right_after_a_swap_in_has_started_keeps_its_block(monkeypatch):
    swap_in = ChaosBackend.swap_in

    def interrupted(*args):
        swap_in(*args)  # what it returns is lost, as between the call and the assignment of its result
        raise KeyboardInterrupt

    with chaos() as made, ooc('swap-all'):
        x = chainer.Variable(np.linspace(0, 1, 3000, dtype=np.float32))
        y = F.sin(x)
        z = F.sin(y)
        let_everything_leave(made[0])
        monkeypatch.setattr(ChaosBackend, 'swap_in', interrupted)
        with pytest.raises(KeyboardInterrupt) as failed:
            y.array.sum()
        traceback.clear_frames(failed.tb)
        monkeypatch.undo()
        assert np.array_equal(z.array, np.sin(y.array))
    assert made[0].misuses == []
