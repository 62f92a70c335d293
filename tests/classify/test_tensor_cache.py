"""SuperNeurons' cache: who leaves, when, and how it comes back. `X`: a position that needs more than the budget."""
import dataclasses
from collections import Counter

import pytest

from chainer_ooc.classify.kinds import are_of, segment_starts
from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.classify.policies.tensor_cache import MEMORY_CENTRIC, RECOMPUTATIONS, SPEED_CENTRIC, decide
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.plans.making import make_plan
from chainer_ooc.problem import Verdict
from chainer_ooc.schedule.schedule import SwapIn, lay_out

KEEP, SWAP, RECOMPUTE = Verdict
POLICY = POLICIES['tensor-cache']
KEEPING = POLICIES['keep']
AMPLE = 10**9

# Convolutions only, each retaining its input; the batch is the user's. A call allocates its output, 10, a step the
# gradient of its input, 10, beside the one that it is given.
#
# position     0    1    2    3   |  4    5    6    7
# map 0       ######################################     the user's
# map 1            #########################             read by call 1 and step 6
# map 2                 ###############                  read by call 2 and step 5
# map 3                      #####                       read by call 3 and step 4
# need        20   30   40   50     60   50   40   30
CONVOLUTIONS = [('conv', 10)] * 4


def floor_of(policy, network):
    with pytest.raises(InfeasibleBudgetError) as caught:
        make_plan(policy, network.problem(1))
    return caught.value.floor_bytes


def leaving(network, budget_bytes):
    """Of the maps that leave: the position after which they do."""
    decision = POLICY.decide(network.problem(budget_bytes))
    assert set(decision.leaves) <= {each for each, verdict in enumerate(decision.verdicts) if verdict is SWAP}
    return decision.leaves


@pytest.fixture
def convolutions(network_of):
    return network_of(*CONVOLUTIONS, foreign=True)


def test_where_everything_fits_nothing_is_transferred_and_nothing_runs_again(convolutions, resnet):
    for network in (convolutions, resnet):
        plan = make_plan(POLICY, network.problem(floor_of(KEEPING, network)))
        assert set(plan.verdicts) == {KEEP}
        assert (plan.swap_ins, plan.chains.calls_at) == ((), {})


def test_the_least_recently_used_map_leaves_at_the_moment_of_pressure(convolutions):
    # position     0    1    2    3   |  4    5    6    7
    # need        20   30   40   50     60   50   40   30
    # budget 59                          X                  map 1 leaves after 3
    assert floor_of(KEEPING, convolutions) == 60
    assert leaving(convolutions, 59) == {1: 3}


def test_pressure_in_forward_makes_it_leave_in_forward(convolutions):
    # position     0    1    2    3   |  4    5    6    7
    # need        20   30   40   50     60   50   40   30
    # budget 49                   X                         map 1 leaves after 2
    #                            40     50   40
    #                                    X                  map 2 leaves after 3
    assert leaving(convolutions, 49) == {1: 2, 2: 3}


def test_a_map_that_is_in_use_is_locked(convolutions):
    # budget 39: position 2 reads map 2, position 3 reads map 3, step 4 too
    #              0    1    2    3   |  4    5    6    7
    #                        X                              map 1 leaves after 1
    #                             X                         map 2 after 2
    #                                    X                  needs 40 with what it uses: refused
    assert leaving(convolutions, 39) == {1: 1, 2: 2}
    assert floor_of(POLICY, convolutions) == 40


def test_a_map_that_a_later_call_reads_is_not_sent_away(new_network):
    # map 1 is the least recently made, but the sum at the end reads it once more
    network = new_network(10, foreign=True)
    for _ in range(4):
        network.add('conv', 10)
    network.add('add', 10, 4, 1)
    network.add('conv', 10)
    for budget_bytes in range(30, 80):
        leaves = leaving(network, budget_bytes)
        assert leaves.get(1, AMPLE) >= 4
        assert all(position >= network.trace.maps[each].last_forward_use for each, position in leaves.items())


def test_cheap_maps_go_first_and_are_recomputed(network_of):
    # conv relu conv relu ...: the activations' outputs are the convolutions' inputs; with batch normalisation between
    # them both are kept, and only the activation is cheap
    network = network_of(*[('conv', 10), ('bn', 10), ('relu', 10)] * 4, ('loss', 1), foreign=True)
    budget_bytes = floor_of(KEEPING, network) - 1
    decision = POLICY.decide(network.problem(budget_bytes))
    assert Counter(decision.verdicts)[SWAP] == 0
    assert Counter(decision.verdicts)[RECOMPUTE] > 0
    labels = {network.trace.calls[each - 1].label for each, verdict in enumerate(decision.verdicts)
              if verdict is RECOMPUTE}
    assert labels == {'ReLU'}


def test_transfers_come_when_cheap_maps_are_not_enough(network_of):
    network = network_of(*[('conv', 10), ('bn', 10), ('relu', 10)] * 8, ('loss', 1), foreign=True)
    swapped = [Counter(POLICY.decide(network.problem(budget_bytes)).verdicts)[SWAP]
               for budget_bytes in range(floor_of(KEEPING, network), 80, -10)]
    assert swapped[:3] == [0, 0, 0]
    assert swapped == sorted(swapped)
    assert swapped[-1] > 2


def test_what_joins_two_segments_is_not_recomputed(resnet):
    trace = resnet.trace
    joins = {each.index for each in trace.calls if each.label == 'Add'}
    assert joins <= segment_starts(trace)
    expensive = are_of(trace, segment_starts(trace))
    blocks = [each.id for each in trace.maps if each.producer is not None
              and trace.calls[each.producer].label == 'ReLU' and each.producer - 1 in joins]
    assert len(blocks) == 16
    assert all(expensive[each] for each in blocks)
    inner = [each for each in trace.maps if each.retained and each.producer is not None
             and trace.calls[each.producer].label == 'ReLU' and each.id not in blocks]
    assert len(inner) == 33
    assert not any(expensive[each.id] for each in inner)


def test_a_product_of_two_maps_of_one_segment_is_as_cheap_as_they(new_network):
    network = new_network(10)
    h = network.add('conv', 10)
    network.add('add', 10, network.add('relu', 10, h), h)
    assert segment_starts(network.trace) == {0}


def test_a_swap_in_starts_with_the_checkpoint_before_its_use_if_memory_is_there(convolutions):
    # position                3   |  4    5    6    7
    # need without map 1     50     50   40   40   30
    # budget 59                           [=== U           19 are free at 5: it starts with the convolution before
    plan = make_plan(POLICY, convolutions.problem(59))
    assert plan.swap_ins == (SwapIn(1, 5, 6),)
    # need without 1 and 2   40     40   40   40   30
    # budget 49                           U                map 2: 9 are free at 4, too little for 10
    #                                          U           map 1: likewise at 5
    plan = make_plan(POLICY, convolutions.problem(49))
    assert plan.swap_ins == (SwapIn(2, 5, 5), SwapIn(1, 6, 6))


def test_swap_ins_wait_for_products_of_matrices_and_for_no_cheap_layer(network_of):
    # position   0     1     2     3     4   |  5     6     7     8     9
    # layer     conv  relu  fc    relu  loss   loss  relu  fc    relu  conv
    network = network_of(('conv', 10), ('relu', 10), ('fc', 10), ('relu', 10), ('loss', 1))
    starts = POLICY.decide(network.problem(1)).starts
    assert (starts.ahead, starts.gates) == (1, (7, 9))


def test_an_earlier_step_may_need_more_when_a_later_one_is_relieved(new_network):
    # At the budget the replay relieves a step by having a map made again; the chain of an earlier step becomes longer
    # by that, needs more than the budget, and has to be relieved too.
    network = new_network(10, foreign=True)
    network.add('relu', 30)
    network.add('relu', 10)
    network.add('add', 20, 2, 0)
    network.add('pool', 30)
    problem = network.problem(80)
    assert lay_out(problem, POLICY.decide(problem)).floor_bytes <= 80


def shared_of(network, budget_bytes):
    decision = POLICY.decide(network.problem(budget_bytes))
    return decision.shares_chains, Counter(decision.verdicts)[RECOMPUTE]


def test_a_segment_smaller_than_the_largest_layer_is_speed_centric(network_of):
    # four cheap layers of 10, and a layer of 100
    network = network_of(('conv', 10), *[('lrn', 10)] * 4, ('conv', 10), ('conv', 100), ('conv', 10), ('loss', 1),
                         foreign=True)
    shared, recomputed = shared_of(network, floor_of(KEEPING, network) - 1)
    assert recomputed > 0
    assert len(shared) == recomputed


def test_a_segment_larger_than_the_largest_layer_is_memory_centric(network_of):
    network = network_of(('conv', 10), *[('lrn', 10)] * 9, ('conv', 10), ('loss', 1), foreign=True)
    shared, recomputed = shared_of(network, floor_of(KEEPING, network) - 40)
    assert recomputed > 1
    assert shared == frozenset()


def test_speed_centric_runs_least_and_memory_centric_needs_least(network_of):
    network = network_of(('conv', 10), *[('lrn', 10)] * 9, ('conv', 10), ('loss', 1), foreign=True)
    decision = decide(network.problem(floor_of(KEEPING, network) - 40), MEMORY_CENTRIC)
    assert Counter(decision.verdicts)[RECOMPUTE] >= 4
    runs, needs = {}, {}
    for shared in (True, False):
        schedule = lay_out(network.problem(AMPLE), dataclasses.replace(decision, shares_chains=shared))
        runs[shared] = sum(len(calls) for calls in schedule.chains.calls_at.values())
        needs[shared] = schedule.floor_bytes
    assert runs[True] < runs[False]
    assert needs[True] >= needs[False]


def test_the_options_are_named(network_of):
    network = network_of(*CONVOLUTIONS)
    assert decide(network.problem(30), SPEED_CENTRIC).shares_chains is True
    assert decide(network.problem(30), MEMORY_CENTRIC).shares_chains is False
    with pytest.raises(ValueError, match='memory-centric'):
        decide(network.problem(30), 'fast')


@pytest.mark.parametrize('recomputation', RECOMPUTATIONS)
def test_plans_keep_within_the_budget_or_are_refused_with_one_that_works(resnet, recomputation, planned_or_refused):
    policy = dataclasses.replace(POLICY, decide=lambda problem: decide(problem, recomputation))
    assert planned_or_refused(policy, resnet, range(5_000, 90_000, 10_000)) >= 7


def test_where_a_chain_does_not_fit_its_maps_are_transferred(resnet):
    # a chain needs its bases and what it makes beside the step itself: without transfers instead of it, the floor is
    # far above that of swapping everything
    assert floor_of(POLICY, resnet) < 1.3 * floor_of(POLICIES['swap-all'], resnet)


def test_ten_decisions_are_equal(resnet):
    first = POLICY.decide(resnet.problem(20_000))
    assert all(POLICY.decide(resnet.problem(20_000)) == first for _ in range(9))
