"""P2 on a GPU: momentum SGD under each policy, at half of in-core's peak, gives the bits of plain Chainer there."""
import pytest

from chainer_ooc.classify.policies import POLICIES
from support.gpu.gpu_training import ON_GPU, in_core_peak, plain, settled, tight_budget, train
from support.trainings.ooc_training import assert_same_bits

ITERATIONS = 5  # the first is recorded, and two more where kernels are compiled

#: Policies that need not swap in: they may recompute all that has to leave, or read it where it is.
MAY_RECOMPUTE = ('pooch', 'sublinear', 'unified')

#: Where a policy's floor is above this share of in-core's peak, all may fit beside it, and nothing need leave.
SHORT = 0.7


@pytest.mark.parametrize('policy', POLICIES)
@pytest.mark.parametrize('network', ON_GPU)
def test_policy_at_half_of_in_core_has_the_bits_of_plain_chainer(network, policy):
    budget = None if policy == 'keep' else tight_budget(network, policy)
    outcome = train(network, policy, ITERATIONS, budget=budget)
    assert_same_bits(outcome, plain(network, ITERATIONS))
    stats = settled(outcome.stats)
    if policy == 'keep':
        return
    assert max(each.peak_bytes for each in stats) <= budget
    if budget <= SHORT * in_core_peak(network) or policy.startswith('swap-all'):
        assert min(each.swapped_out_bytes + each.recomputed_calls for each in stats) > 0
        assert policy in MAY_RECOMPUTE or sum(each.swapped_in_bytes for each in stats) > 0


@pytest.mark.parametrize('policy', ['swap-all', 'pooch', 'superneurons'])
def test_half_of_in_core_is_short_of_memory_and_enough(policy):
    # Or the test above would say little: the residual network has 53 convolutions, none of which is large beside all.
    assert tight_budget('resnet', policy) <= SHORT * in_core_peak('resnet')


def test_plain_chainer_repeats_its_own_bits():
    # Otherwise nothing above says anything.
    for network in ON_GPU:
        assert_same_bits(train(network, None, ITERATIONS).bits, plain(network, ITERATIONS))


@pytest.mark.parametrize('policy', ['swap-all', 'pooch'])
def test_other_seeds_have_the_bits_of_plain_chainer_too(policy):
    budget = tight_budget('hidden', policy)
    for seed in (1, 2):
        assert_same_bits(train('hidden', policy, seed=seed, budget=budget), plain('hidden', seed=seed))
