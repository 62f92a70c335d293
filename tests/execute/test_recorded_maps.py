"""Where no plan is known, what fits into a share of the budget stays; beyond that the oldest maps leave first."""
import chainer
import chainer.functions as F
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.execute import manager
from chainer_ooc.execute.iteration import waiting
from support.trainings.ooc_training import Training, assert_same_bits, ooc, plain

POLICIES = ('keep', 'swap-all', 'pooch', 'sublinear')


MAP_BYTES, SCALARS_BYTES = 1 << 18, 1000
MAPS = 24


def chain(iterations=1):
    """Gradients of a training in which each function has one map, as bytes, and what each iteration was like."""
    found = []
    for number in range(iterations):
        x = chainer.Variable(np.random.RandomState(number).uniform(-1, 1, MAP_BYTES // 4).astype('f4'))
        h = x
        for _ in range(MAPS):
            h = F.tanh(h)
        F.sum(h).backward()
        found.append(x.grad.tobytes())
    return found


def moved_bytes(stats):
    return [each.swapped_out_bytes + each.swapped_in_bytes for each in stats]


@pytest.mark.parametrize('budget', [None, 1 << 30])
@pytest.mark.parametrize('policy', POLICIES)
def test_a_recorded_iteration_moves_nothing_that_fits(policy, budget):
    """All of it went to the disk and came back, on machines with room for a hundred times as much."""
    with ooc(policy, budget=budget):
        training = Training('residual')
        training.iterate(3)
        training.finish()
    stats = training.outcome.stats
    assert (stats[0].phase, moved_bytes(stats)[0], stats[0].faults) == ('profile', 0, 0)
    assert (moved_bytes(stats)[-1] > 0) == (policy == 'swap-all')
    assert_same_bits(training.outcome, plain('residual', 3))


@pytest.mark.parametrize('maps', [20, 14])
@pytest.mark.parametrize('policy', ['swap-all', 'pooch', 'sublinear'])
def test_beyond_the_share_maps_leave_before_memory_is_short(monkeypatch, policy, maps):
    monkeypatch.setattr(waiting, 'SHARE_AT_HAND', 0.5)
    monkeypatch.setattr(waiting, 'UNCERTAIN_BYTES', 0)
    with ooc(None):
        expected = chain(3)
    budget = maps * MAP_BYTES + SCALARS_BYTES
    with ooc(policy, budget=budget):
        assert chain() == expected[:1]
        stats, away = chainer_ooc.stats(), MAPS - maps // 2
        assert (stats.phase, manager.current().memory.tally.evictions) == ('profile', 0)
        assert away - 3 <= stats.swapped_out_bytes // MAP_BYTES <= away + 3, 'but for what was in use'
        assert stats.peak_bytes <= budget
        assert chain(3) == expected


def test_within_a_small_budget_all_that_can_leaves_at_once():
    """What a process has beside its arrays is as much, and near a limit the system ends it."""
    with ooc('swap-all', budget=500_000_000):
        chain()
        assert chainer_ooc.stats().swapped_out_bytes >= (MAPS - 3) * MAP_BYTES
