"""Segments whose borders stay: `[m]` is a border, kept; what lies between is recomputed."""
from collections import Counter

import pytest

from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.classify.policies.sublinear import decide
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.plans.making import make_plan
from chainer_ooc.problem import Verdict

KEEP, SWAP, RECOMPUTE = Verdict
POLICY = POLICIES['sublinear']
AMPLE = 10**9


def floor_of(network):
    with pytest.raises(InfeasibleBudgetError) as caught:
        make_plan(POLICY, network.problem(1))
    return caught.value.floor_bytes


def keep_floor(network):
    with pytest.raises(InfeasibleBudgetError) as caught:
        make_plan(POLICIES['keep'], network.problem(1))
    return caught.value.floor_bytes


def drawn(network, budget_bytes):
    """'..#..#': each map that could be recomputed, in order; # is kept."""
    problem = network.problem(budget_bytes)
    verdicts = decide(problem).verdicts
    return ''.join('#' if verdicts[each.id] is KEEP else '.' for each in problem.trace.maps
                   if each.retained and each.producer is not None)


def test_where_everything_fits_nothing_runs_again(network_of):
    network = network_of(*[('relu', 10)] * 16)
    assert drawn(network, keep_floor(network)) == '#' * 16
    assert make_plan(POLICY, network.problem(AMPLE)).chains.calls_at == {}


def test_with_the_least_memory_about_the_square_root_of_the_maps_stay(network_of):
    # 16 maps of one size; a border goes as soon as backward has passed it, so that a few more than four are cheap
    network = network_of(*[('relu', 10)] * 16)
    segments = drawn(network, floor_of(network)).split('#')
    assert 3 <= len(segments) <= 6
    assert max(len(each) for each in segments) <= 5
    assert floor_of(network) <= 10 * (4 + 4 + 4)  # borders, a segment, and what a step allocates beside


def test_memory_grows_as_the_square_root_of_depth(network_of):
    floors = {depth: floor_of(network_of(*[('relu', 10)] * depth)) for depth in (16, 64, 256)}
    assert floors[64] < 2.2 * floors[16]
    assert floors[256] < 2.2 * floors[64]


def test_each_call_runs_at_most_once_more(network_of):
    network = network_of(*[('relu', 10)] * 64)
    plan = make_plan(POLICY, network.problem(floor_of(network)))
    again = Counter(call for calls in plan.chains.calls_at.values() for call in calls)
    assert set(again.values()) == {1}
    assert plan.chains.shared is True


def test_more_memory_makes_less_run_again(network_of):
    network = network_of(*[('relu', 10)] * 64)
    low, high = floor_of(network), keep_floor(network)
    seconds = [make_plan(POLICY, network.problem(low + part * (high - low) // 8)).seconds for part in range(9)]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] > seconds[4] > seconds[8]


def test_segments_are_measured_in_bytes_too(network_of):
    # Six large maps, then sixty small ones. Where little memory is lacking each large one is a segment of its own, and
    # two small ones are; segments of equal numbers of maps would have large ones run again as well.
    network = network_of(*[('relu', 100)] * 6, *[('relu', 5)] * 60)
    assert drawn(network, keep_floor(network) - 80) == '######' + '.#' * 30


def test_nothing_is_ever_swapped_and_what_cannot_be_recomputed_stays(network_of, resnet):
    for budget_bytes in (1, 30_000, 50_000, AMPLE):
        assert SWAP not in decide(resnet.problem(budget_bytes)).verdicts
    stuck = network_of(*[('relu', 10)] * 16, repeatable=False)
    assert set(decide(stuck.problem(1)).verdicts) == {KEEP}


def test_borders_lie_where_no_shortcut_passes(new_network):
    # Residual blocks, such as x -> a -> b -> c = b + x: a border at a or b would be passed by the shortcut. They are of
    # different lengths, so that no regular cut meets their ends by chance.
    #      x  a  b [c] a  b  d  e  f [c] ...
    network, ends = new_network(10, foreign=True), set()
    for length in (2, 5, 3, 7, 2, 4, 6, 3, 5):
        start = len(network.layers)
        for _ in range(length):
            network.add('relu', 10)
        network.add('add', 10, len(network.layers), start)
        ends.add(network.add('relu', 10))
    verdicts = decide(network.problem(floor_of(network))).verdicts
    kept = {each.id for each in network.trace.maps if each.retained and each.producer is not None
            and verdicts[each.id] is KEEP}
    assert kept
    assert kept <= ends


def test_plans_keep_within_the_budget_or_are_refused_with_one_that_works(resnet, planned_or_refused):
    assert 0 < planned_or_refused(POLICY, resnet, range(10_000, 90_000, 10_000)) < 8


def test_ten_decisions_are_equal(resnet):
    first = decide(resnet.problem(40_000))
    assert all(decide(resnet.problem(40_000)) == first for _ in range(9))
