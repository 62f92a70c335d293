"""P2: losses, gradients, parameters, running statistics and random streams are those of plain Chainer, to the bit."""
import pytest

from support.trainings import ooc_training
from support.trainings.ooc_networks import NETWORKS
from support.trainings.ooc_training import (
    POLICIES,
    SWAPPING,
    assert_same_bits,
    floor_of,
    plain,
    train,
    train_at_the_floor,
)


@pytest.mark.parametrize('policy', POLICIES)
@pytest.mark.parametrize('network', NETWORKS)
def test_policy_without_a_budget_gives_the_bits_of_plain_chainer(network, policy):
    assert_same_bits(train(network, policy), plain(network))


@pytest.mark.parametrize('policy', POLICIES)
@pytest.mark.parametrize('network', NETWORKS)
def test_policy_at_the_floor_gives_the_bits_of_plain_chainer(network, policy):
    training, floor_bytes = train_at_the_floor(network, policy)
    assert_same_bits(training.outcome, plain(network))
    assert {each.phase for each in training.outcome.stats[1:]} == {'run'}
    assert max(each.peak_bytes for each in training.outcome.stats[1:]) <= floor_bytes


@pytest.mark.parametrize('policy', POLICIES)
@pytest.mark.parametrize('network', NETWORKS)
def test_policy_at_twice_the_floor_gives_the_bits_of_plain_chainer(network, policy):
    assert_same_bits(train(network, policy, budget=2 * floor_of(network, policy)), plain(network))


@pytest.mark.parametrize('min_bytes', [1, 2000, 10**9])
@pytest.mark.parametrize('network', ['residual', 'hidden', 'views'])
def test_threshold_changes_no_bit(network, min_bytes):
    assert_same_bits(train(network, 'swap-all', min_bytes=min_bytes), plain(network))


@pytest.mark.parametrize('policy', SWAPPING)
@pytest.mark.parametrize('network', ['residual', 'hidden', 'inception'])
def test_several_profiled_iterations_change_no_bit(network, policy):
    outcome = train(network, policy, iterations=6, profile_iterations=3)
    assert [each.phase for each in outcome.stats] == ['profile'] * 3 + ['run'] * 3
    assert_same_bits(outcome, plain(network, 6))


@pytest.mark.parametrize('seed', range(4))
def test_other_seeds_give_the_bits_of_plain_chainer_too(seed):
    assert_same_bits(train('hidden', 'swap-all', seed=seed), plain('hidden', seed=seed))


def test_the_comparison_sees_a_difference_of_one_bit():
    bits = dict(plain('old'))
    dtype, shape, content = bits['loss 2']
    bits['loss 2'] = dtype, shape, bytes([content[0] ^ 1]) + content[1:]
    with pytest.raises(AssertionError):
        assert_same_bits(ooc_training.Outcome(bits), plain('old'))
