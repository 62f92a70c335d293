"""What has to hold for what `on_gpu.py` leaves, on GPUs and where the program itself is tried on the host."""
import itertools

POLICIES = 'keep', 'swap-all', 'pooch'

#: Policies, and whether gradients are exchanged beside the next iteration.
CASES = list(itertools.product(POLICIES, (False, True)))


def check(left, policy, double):
    """Bits, budget and plan of all ranks under a policy.

    Args:
        left: what each rank has left, in their order.
        policy: of `CASES`.
        double: of `CASES`.
    """
    for rank, each in enumerate(left):
        found, expected = each[policy, double], each['plain', double]['bits']
        assert [label for label in expected if found['bits'][label] != expected[label]] == [], f'rank {rank}'
        under_plan = [stats for stats in found['stats'] if stats.phase == 'run']
        assert under_plan
        assert found['budget'] is None or max(stats.peak_bytes for stats in under_plan) <= found['budget']
        assert policy != 'swap-all' or min(stats.swapped_out_bytes for stats in under_plan) > 0
        assert found['decision'] == left[0][policy, double]['decision']
        assert found['to_come'] == 0  # by now all buffers are there
    parameters = [{label: bits for label, bits in each[policy, double]['bits'].items() if 'parameter' in label}
                  for each in left]
    assert all(each == parameters[0] for each in parameters)
