"""Policy unified: what does not fit is read where the system pages it, with the bits of plain Chainer."""
import pytest
from ooc_networks import NETWORKS
from ooc_training import assert_same_bits, floor_of, plain, train, train_at_the_floor


@pytest.mark.parametrize('network', NETWORKS)
def test_training_without_a_budget_gives_the_bits_of_plain_chainer_and_maps_nothing(network):
    outcome = train(network, 'unified')
    assert_same_bits(outcome, plain(network))
    assert [(each.faults, each.swap) for each in outcome.stats[2:]] == [(0, 0)] * 2


@pytest.mark.parametrize('network', NETWORKS)
def test_training_at_the_floor_gives_the_bits_of_plain_chainer_within_the_budget(network):
    training, floor_bytes = train_at_the_floor(network, 'unified')
    assert_same_bits(training.outcome, plain(network))
    assert {each.phase for each in training.outcome.stats[1:]} == {'run'}
    assert max(each.peak_bytes for each in training.outcome.stats[1:]) <= floor_bytes
    assert [each.swapped_in_bytes for each in training.outcome.stats[1:]] == [0] * 3
    assert training.outcome.stats[-1].swap > 0


@pytest.mark.parametrize('network', NETWORKS)
def test_training_at_twice_the_floor_gives_the_bits_of_plain_chainer(network):
    assert_same_bits(train(network, 'unified', budget=2 * floor_of(network, 'unified')), plain(network))
