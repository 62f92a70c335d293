"""The policies that only keep and swap, each on every network: same bits as in-core, within the budget or refused."""
import contextlib

import pytest

import chainer_ooc
from chainer_ooc.errors import InfeasibleBudgetError
from support.combinations import spread
from support.trainings.ooc_networks import NETWORKS
from support.trainings.ooc_training import Training, assert_same_bits, in_core_peak, ooc, plain, train

POLICIES = ['vdnn-all', 'vdnn-conv', 'vdnn++', 'capacity', 'lms', 'window']

@pytest.mark.parametrize('policy', POLICIES)
@pytest.mark.parametrize('network', NETWORKS)
def test_training_without_a_budget_gives_the_bits_of_plain_chainer(network, policy):
    outcome = train(network, policy)
    assert_same_bits(outcome, plain(network))
    assert [each.phase for each in outcome.stats] == ['profile', 'run', 'run', 'run']
    assert [each.faults for each in outcome.stats[2:]] == [0, 0]


@pytest.mark.parametrize(('network', 'policy'), spread(list(NETWORKS), POLICIES, every=3))
def test_training_between_the_floor_of_swap_all_and_in_core_gives_the_bits_of_plain_chainer_or_is_refused(
        network, policy):
    in_core_bytes = in_core_peak(network)
    training = Training(network)
    with ooc(policy, budget=1):
        training.iterate()  # recordings differ, as the meter counts Python's objects too: all budgets are of this one
    with ooc('swap-all', budget=1), pytest.raises(InfeasibleBudgetError) as swapping_all:
        training.iterate()
    low = swapping_all.value.floor_bytes
    budget = (low + max(low, in_core_bytes)) // 2
    with ooc(policy, budget=budget), contextlib.suppress(InfeasibleBudgetError):
        training.iterate()
    if training.number == 1:
        with ooc(policy, budget=budget), pytest.raises(InfeasibleBudgetError) as refused:
            training.iterate()
        assert policy in ('vdnn-conv', 'lms')
        assert refused.value.floor_bytes > budget
        budget = refused.value.floor_bytes
    with ooc(policy, budget=budget):
        training.iterate(5 - training.number)
    assert_same_bits(training.finish(), plain(network, 5))
    assert [each.phase for each in training.outcome.stats] == ['profile'] + ['run'] * 4
    assert [each.peak_bytes for each in training.outcome.stats[1:] if each.peak_bytes > each.budget_bytes] == []


@pytest.mark.parametrize('policy', ['capacity', 'lms', 'window'])
def test_a_larger_budget_moves_less(policy):
    high = in_core_peak('residual')
    training, moved = Training('residual'), []
    chainer_ooc.reset()
    with ooc(policy, budget=1):
        training.iterate()  # the one recording from which all plans are made
        with pytest.raises(InfeasibleBudgetError) as refused:
            training.iterate()
    low = refused.value.floor_bytes
    for budget in (low, low + low // 8, 2 * max(low, high)):  # in-core may need less than the noise above the floor
        with ooc(policy, budget=budget):
            training.iterate(2)
        moved.append(training.outcome.stats[-1].swap)
    assert moved == sorted(moved, reverse=True)
    assert moved[0] > 0 and moved[-1] == 0


def test_vdnn_conv_swaps_less_than_vdnn_all():
    assert 0 < train('residual', 'vdnn-conv').stats[-1].swap < train('residual', 'vdnn-all').stats[-1].swap
