"""P2 and P3 on several ranks: the bits of plain ChainerMN on each, within each rank's budget, with changing shapes."""
import functools

import pytest

from support.ranks.launch import run

#: Policies by network, with `/floor` within the smallest budget that works; `recompute-all` of `verdict_mixes` has
#: every map recomputed that can be.
TRAININGS = {
    'residual': ('swap-all', 'swap-all/floor', 'pooch/floor', 'recompute-all', 'recompute-all/floor'),
    'hidden': ('swap-all', 'recompute-all'),
    'normalized-together': ('swap-all', 'recompute-all'),
    'spread': ('swap-all', 'recompute-all'),
    'residual+double': ('swap-all', 'recompute-all'),
}
CASES = [(network, policy) for network, policies in TRAININGS.items() for policy in policies]


@pytest.fixture(scope='session')
def trained(ranks, tmp_path_factory):
    """For a network, what each rank has left: by policy and budget, and that of plain ChainerMN."""
    return functools.cache(lambda network: run(
        ranks, 'trainings.py', network, 'plain', *TRAININGS[network], folder=tmp_path_factory.mktemp('trainings')))


@pytest.mark.parametrize(('network', 'policy'), CASES)
def test_each_rank_has_the_bits_of_plain_chainermn(trained, network, policy):
    for rank, left in enumerate(trained(network)):
        expected = left['plain', None]['bits']
        bits = left[_case(policy, left)]['bits']
        assert [label for label in expected if bits[label] != expected[label]] == [], f'rank {rank}'
        assert bits.keys() == expected.keys()


@pytest.mark.parametrize('network', [each for each in TRAININGS if each != 'spread'])
def test_ranks_have_equal_parameters_and_gradients_of_their_own(trained, network):
    first, *others = (left['plain', None]['bits'] for left in trained(network))
    not_exchanged = '01' if '+double' in network else '0'  # an update has what was exchanged after the one before
    for other in others:
        assert all(other[label] == bits for label, bits in first.items()
                   if ' mean ' in label and label[0] not in not_exchanged)
        assert any(other[label] != bits for label, bits in first.items() if ' own ' in label)


@pytest.mark.parametrize(('network', 'policy'), CASES)
def test_ranks_communicate_as_often_and_in_the_same_order_as_in_plain_chainermn(trained, network, policy):
    for left in trained(network):
        assert left[_case(policy, left)]['journal'] == left['plain', None]['journal']


@pytest.mark.parametrize(('network', 'policy'), CASES)
def test_maps_leave_and_are_recomputed_on_each_rank(trained, network, policy):
    for left in trained(network):
        under_plans = [each for each in left[_case(policy, left)]['stats'] if each.phase == 'run']
        assert under_plans
        assert 'swap-all' not in policy or min(each.swapped_out_bytes for each in under_plans) > 0
        # What an iteration would recompute is swapped out where it is recorded too, as another size of its graph comes.
        recomputing = [each for each in under_plans if each.recomputed_calls > 0]
        if 'recompute-all' in policy:
            most_bytes = max(each.swapped_out_bytes for each in recomputing)
            assert all(each in recomputing or each.swapped_out_bytes > most_bytes for each in under_plans)


@pytest.mark.parametrize('policy', TRAININGS['spread'])
def test_what_comes_before_a_message_is_in_the_plan(trained, policy):
    for left in trained('spread'):
        under_plans = [each for each in left[policy, None]['stats'] if each.phase == 'run']
        assert min(each.keep + each.swap + each.recompute for each in under_plans) > 5


@pytest.mark.parametrize(('network', 'policy'), [case for case in CASES if '/floor' in case[1]])
def test_each_rank_keeps_within_its_budget(trained, network, policy):
    for left in trained(network):
        case = _case(policy, left)
        assert max(each.peak_bytes for each in left[case]['stats'] if each.phase == 'run') <= case[1]


def _case(policy, left):
    """The key of what a rank has left under a policy."""
    name, _, at_floor = policy.partition('/')
    case, = (each for each in left if each[0] == name and (each[1] is not None) == bool(at_floor))
    return case
