"""Where swap-ins start. Every iteration here has calls 0..2 and steps 3..7 unless it is drawn otherwise.

In the drawings `[==` is a swap-in from its start up to the position before its use `U`.
"""
import dataclasses

import numpy as np
import pytest

from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.cost.costs import measured
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.plans import making
from chainer_ooc.problem import EARLY as SOON
from chainer_ooc.problem import WITH_THE_STEP_BEFORE, Problem, Standing, Verdict
from chainer_ooc.schedule.chains import find_chains
from chainer_ooc.schedule.schedule import SwapIn, schedule_swap_ins

KEEP, SWAP = Verdict.KEEP, Verdict.SWAP
EARLY, NAIVE, KEEPING = POLICIES['swap-all'], POLICIES['swap-all-naive'], POLICIES['keep']
NOTHING = Standing(0, 0)


def make_plan(policy, trace, standing, budget_bytes, min_bytes):
    return making.make_plan(policy, Problem(trace, measured(trace), standing, budget_bytes, min_bytes))


@pytest.fixture
def starts(trace_of):
    """Starts of the swap-ins of maps (nbytes, first backward use) in memory of which so much is free."""
    def starts(free_bytes, *maps, early=True):
        trace = trace_of([0] * 3, [0] * (len(free_bytes) - 3), [(nbytes, 0, 0, [use]) for nbytes, use in maps])
        before = np.array(free_bytes, np.int64)
        verdicts = (SWAP,) * len(maps)
        swap_ins = schedule_swap_ins(
            trace, verdicts, find_chains(trace, verdicts), before, SOON if early else WITH_THE_STEP_BEFORE)
        assert before.tolist() == free_bytes, 'the argument was changed'
        assert [each.use for each in swap_ins] == sorted(use for _, use in maps)
        return [(each.map, each.start) for each in swap_ins]
    return starts


def test_with_room_everywhere_a_swap_in_starts_with_backward(starts):
    # position  0  1  2 | 3  4  5  6  7
    # free      9  9  9   9  9  9  9  9
    # map 0 (4)           [========= U
    assert starts([9] * 8, (4, 6)) == [(0, 3)]


def test_a_swap_in_starts_after_the_last_position_without_room_for_it(starts):
    # position  0  1  2 | 3  4  5  6  7
    # free      9  9  9   9  3  9  9  9       3 is too little for 4
    # map 0 (4)                 [=  U
    assert starts([9, 9, 9, 9, 3, 9, 9, 9], (4, 6)) == [(0, 5)]


def test_room_for_exactly_its_bytes_is_enough(starts):
    # position  0  1  2 | 3  4  5  6  7
    # free      9  9  9   4  4  4  0  0
    # map 0 (4)           [======= U
    assert starts([9, 9, 9, 4, 4, 4, 0, 0], (4, 6)) == [(0, 3)]


def test_without_room_before_its_use_a_swap_in_starts_with_it(starts):
    # position  0  1  2 | 3  4  5  6  7
    # free      9  9  9   9  9  3  0  9       its bytes at 6 itself are in the demand already
    # map 0 (4)                    U
    assert starts([9, 9, 9, 9, 9, 3, 0, 9], (4, 6)) == [(0, 6)]


def test_what_is_free_in_forward_is_not_used(starts):
    # position  0  1  2 | 3  4
    # map 0 (4)           U
    assert starts([9, 9, 9, 0, 0], (4, 3)) == [(0, 3)]


def test_a_swap_in_takes_its_bytes_from_the_next(starts):
    # position  0  1  2 | 3  4  5  6  7
    # free      9  9  9   9  9  9  9  9
    # map 0 (6)           [======= U          leaves 3 at 3, 4 and 5
    # map 1 (4)                    [=  U
    assert starts([9] * 8, (6, 6), (4, 7)) == [(0, 3), (1, 6)]


def test_two_that_fit_beside_each_other_start_together(starts):
    # position  0  1  2 | 3  4  5  6  7
    # map 0 (5)           [======= U
    # map 1 (4)           [========== U
    assert starts([9] * 8, (5, 6), (4, 7)) == [(0, 3), (1, 3)]


def test_a_swap_in_never_overtakes_the_one_that_is_needed_first(starts):
    # position  0  1  2 | 3  4  5  6  7
    # free      9  9  9   3  3  9  9  9
    # map 0 (4)                 [= U          must wait until 5
    # map 1 (1)                 [==== U       would fit at 3 but goes behind it
    assert starts([9, 9, 9, 3, 3, 9, 9, 9], (4, 6), (1, 7)) == [(0, 5), (1, 5)]


def test_the_order_is_that_of_the_uses_then_of_the_ids(starts):
    # position  0  1  2 | 3  4  5  6  7
    # map 1 (1)           [= U
    # map 0 (1)           [========== U
    # map 2 (1)           [========== U
    assert starts([9] * 8, (1, 7), (1, 4), (1, 7)) == [(1, 3), (0, 3), (2, 3)]


def test_a_naive_swap_in_starts_with_the_computation_before_its_use(starts):
    # position  0  1  2 | 3  4  5  6  7
    # map 0 (4)                 [= U
    # map 1 (4)                       [=   U = 8
    assert starts([9] * 9, (4, 6), (4, 8), early=False) == [(0, 5), (1, 7)]


def test_a_naive_swap_in_without_room_there_starts_with_its_use(starts):
    # position  0  1  2 | 3  4  5  6  7
    # free      9  9  9   9  9  3  9  9
    # map 0 (4)                    U
    assert starts([9, 9, 9, 9, 9, 3, 9, 9], (4, 6), early=False) == [(0, 6)]


def test_a_naive_swap_in_for_the_first_step_starts_with_it_not_in_forward(starts):
    # position  0  1  2 | 3  4
    # map 0 (4)           U
    assert starts([9] * 5, (4, 3), early=False) == [(0, 3)]


def test_naive_swap_ins_for_one_step_share_the_position_before(starts):
    # position  0  1  2 | 3  4  5  6  7
    # free                      9
    # map 0 (5)                 [= U
    # map 1 (5)                    U          no room beside map 0
    # map 2 (1)                    U          would fit at 5, but goes behind map 1
    assert starts([9] * 8, (5, 6), (5, 6), (1, 6), early=False) == [(0, 5), (1, 6), (2, 6)]


def test_only_swapped_maps_that_backward_reads_come_back(trace_of):
    trace = trace_of([0], [0, 0], [(1, 0, 0, [1]), (1, 0, 0, []), (1, 0, 0, [2])])
    verdicts = (KEEP, SWAP, SWAP)
    assert schedule_swap_ins(trace, verdicts, find_chains(trace, verdicts), np.full(3, 9), SOON) == (SwapIn(2, 1, 2),)


# --- whole plans: a chain of three calls, each of which makes a map of 10 that the next reads and both steps need -----
#
# position    0    1    2  |  3    4    5
# computing  10   10   10     5    5    5
# map 0           [=====   ...          =      kept: up to 5; swapped: 1, then 5
# map 1                =   ...     =====       swapped: 2, then 4 to 5
# map 2                       ======           swapped: 3 to 4
CHAIN = [(10, 0, 1, [5]), (10, 1, 2, [4, 5]), (10, 2, 2, [3, 4])]
WORK = [10, 10, 10], [5, 5, 5]


def test_keep_needs_the_whole_chain_at_once(trace_of):
    # position    0    1    2  |  3    4    5
    # computing  10   10   10     5    5    5
    # maps        0   10   20    30   30   20
    # need       10   20   30    35   35   25
    plan = make_plan(KEEPING, trace_of(*WORK, CHAIN), NOTHING, 35, 1)
    assert (plan.verdicts, plan.swap_ins, plan.peak_bytes) == ((KEEP,) * 3, (), 35)


def test_swapping_needs_less_and_the_floor_leaves_no_room_to_be_early(trace_of):
    # position    0    1    2  |  3    4    5
    # computing  10   10   10     5    5    5
    # maps        0   10   10    10   20   20
    # need       10   20   20    15   25   25     floor 25
    # map 1                       [= U            fits at 3: 15 + 10 = 25
    # map 0                               U       does not fit at 4
    plan = make_plan(EARLY, trace_of(*WORK, CHAIN), NOTHING, 25, 1)
    assert plan.verdicts == (SWAP,) * 3
    assert plan.swap_ins == (SwapIn(2, 3, 3), SwapIn(1, 3, 4), SwapIn(0, 5, 5))
    assert plan.peak_bytes == 25


def test_a_larger_budget_lets_them_start_earlier(trace_of):
    # position    0    1    2  |  3    4    5
    # need       10   20   20    15   25   25
    # map 1                       [= U            at 3: 25
    # map 0                       [====== U       at 3: 35, at 4: 35
    plan = make_plan(EARLY, trace_of(*WORK, CHAIN), NOTHING, 35, 1)
    assert plan.swap_ins == (SwapIn(2, 3, 3), SwapIn(1, 3, 4), SwapIn(0, 3, 5))
    assert plan.peak_bytes == 35


def test_the_naive_plan_is_not_early_however_large_the_budget(trace_of):
    # position    0    1    2  |  3    4    5
    # need       10   20   20    15   25   25
    # map 1                       [= U            at 3: 25
    # map 0                            [= U       at 4: 35
    plan = make_plan(NAIVE, trace_of(*WORK, CHAIN), NOTHING, 10**9, 1)
    assert plan.swap_ins == (SwapIn(2, 3, 3), SwapIn(1, 3, 4), SwapIn(0, 4, 5))
    assert plan.peak_bytes == 35


def test_maps_below_min_bytes_stay(trace_of):
    plan = make_plan(EARLY, trace_of(*WORK, CHAIN), NOTHING, 10**9, 11)
    assert (plan.verdicts, plan.swap_ins) == ((KEEP,) * 3, ())


@pytest.mark.parametrize(('policy', 'floor_bytes', 'where'), [
    (KEEPING, 35, 'Layer2, backward of call 2'), (EARLY, 25, 'Layer1, backward of call 1'),
    (NAIVE, 25, 'Layer1, backward of call 1')])
def test_a_budget_below_the_floor_is_refused_with_the_position_that_sets_it(trace_of, policy, floor_bytes, where):
    trace = trace_of(*WORK, CHAIN)
    with pytest.raises(InfeasibleBudgetError) as caught:
        make_plan(policy, trace, NOTHING, floor_bytes - 1, 1)
    error = caught.value
    assert (error.budget_bytes, error.floor_bytes, error.where) == (floor_bytes - 1, floor_bytes, where)
    assert repr(policy.name) in str(error)
    make_plan(policy, trace, NOTHING, floor_bytes, 1)


def test_a_refusal_names_a_budget_that_works_for_a_policy_that_decides_otherwise_with_more_memory(trace_of):
    # with less than 25 it swaps, which needs 25; with that it keeps everything, which needs 35
    moody = dataclasses.replace(EARLY, decide=lambda problem: (
        KEEPING if problem.budget_bytes >= 25 else EARLY).decide(problem))
    trace = trace_of(*WORK, CHAIN)
    with pytest.raises(InfeasibleBudgetError) as caught:
        make_plan(moody, trace, NOTHING, 20, 1)
    assert (caught.value.budget_bytes, caught.value.floor_bytes) == (20, 35)
    assert caught.value.where == 'Layer2, backward of call 2'
    make_plan(moody, trace, NOTHING, 35, 1)


def test_a_forward_call_can_set_the_floor(trace_of):
    # position    0    1    2  |  3    4    5
    # computing  10   90   10     5    5    5
    with pytest.raises(InfeasibleBudgetError, match='for such iterations 100 bytes, set by Layer1, forward of call 1'):
        make_plan(EARLY, trace_of([10, 90, 10], [5, 5, 5], CHAIN), NOTHING, 99, 1)


def test_what_stands_raises_the_floor(trace_of):
    with pytest.raises(InfeasibleBudgetError) as caught:
        make_plan(EARLY, trace_of(*WORK, CHAIN), Standing(1000, 900), 1, 1)
    assert (caught.value.floor_bytes, caught.value.where) == (1020, 'Layer1, forward of call 1')


def test_a_plan_says_its_policy_budget_counts_and_time(trace_of):
    plan = make_plan(EARLY, trace_of(*WORK, [*CHAIN, (10, 2, 2, [])]), NOTHING, 1000, 1)
    assert (plan.policy, plan.budget_bytes, plan.seconds) == ('swap-all', 1000, 3 * 1.0 + 3 * 2.0)
    assert (plan.count(SWAP), plan.count(KEEP)) == (3, 1)


def test_an_iteration_of_nothing_has_a_plan(trace_of):
    plan = make_plan(EARLY, trace_of([], [], []), NOTHING, 0, 1)
    assert (plan.swap_ins, plan.peak_bytes, plan.seconds) == ((), 0, 0)
