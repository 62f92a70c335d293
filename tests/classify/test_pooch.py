"""Step 2 of PoocH on iterations that can be followed by hand. A map of n bytes takes n seconds each way."""
import dataclasses

import pytest

from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.classify.policies.pooch import overhead_ratio
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.plans.making import make_plan
from chainer_ooc.problem import Decision, Verdict, everything
from support.planning.literal_problems import drawn, literal_problem, seconds_of

POOCH = POLICIES['pooch']
BUDGET_BYTES = 30
FULL = (1.0, BUDGET_BYTES)  # a computation beside which nothing fits: nothing can be kept, or come early

# Map 1 is made from map 0, read by call 2 and by its step. Calls 3 and 4 hide all swap-outs; call 4 and the two steps
# after it fill the memory. From the step of call 2 on, in seconds:
#
#            0       2               8    9   10
# swapped    ........................[step 2 ][step 1 ]       in: map 1 [0, 8], map 0 [8, 9]
# for free   [step 2 ][step 1 ]                               in: map 0 [0, 1]
# recomputed .[1][step 2 ][step 1 ]                           in: map 0 [0, 1]; call 1 takes 1 s
#
# r(1) = (2 - 0) / (8 - 0)


def one_map(again_seconds=1.0, again=True):
    return literal_problem(
        [(2.0, 1), (again_seconds, 8), (1.0, 0), (20.0, 0), FULL], [FULL, FULL, (2.0, 0), (2.0, 0), (1.0, 0)],
        [(1, 0, (1,), (1,), False), (8, 1, (2,), (2,), again)], BUDGET_BYTES)


def ratio(problem, letters, map_id):
    verdicts = tuple({'K': Verdict.KEEP, 'S': Verdict.SWAP, 'R': Verdict.RECOMPUTE}[each] for each in letters)
    return overhead_ratio(problem, Decision(verdicts), seconds_of(problem, letters), map_id)


def decide(problem):
    return drawn(POOCH.decide(problem).verdicts)


def test_the_ratio_is_the_overhead_of_recomputing_over_that_of_swapping():
    problem = one_map()
    assert seconds_of(problem, 'SS') - seconds_of(problem, 'SR') == pytest.approx(8 - 2)
    assert ratio(problem, 'SS', 1) == pytest.approx(2 / 8)


@pytest.mark.parametrize('again_seconds', [0.5, 3.0, 6.0])
def test_the_ratio_grows_with_the_time_of_the_call(again_seconds):
    assert ratio(one_map(again_seconds), 'SS', 1) == pytest.approx((1 + again_seconds) / 8)


def test_a_map_that_is_cheaper_to_make_than_to_bring_is_recomputed():
    assert decide(one_map()) == 'SR'
    assert decide(one_map(again_seconds=6.9)) == 'SR'


@pytest.mark.parametrize('again_seconds', [7.0, 7.1, 20.0])
def test_a_map_with_a_ratio_of_1_or_more_stays_swapped(again_seconds):
    problem = one_map(again_seconds)
    assert ratio(problem, 'SS', 1) >= 1
    assert decide(problem) == 'SS'


def test_a_map_that_cannot_be_made_again_stays_swapped_however_cheap():
    assert seconds_of(one_map(again=False), 'SR') < seconds_of(one_map(again=False), 'SS')
    assert decide(one_map(again=False)) == 'SS'


def test_a_map_of_a_call_that_is_not_repeatable_stays_swapped():
    problem = one_map()
    calls = tuple(dataclasses.replace(each, repeatable=False) for each in problem.trace.calls)
    assert decide(dataclasses.replace(problem, trace=dataclasses.replace(problem.trace, calls=calls))) == 'SS'


# Two branches from map 0 (1 byte): call 1 makes map 1 (6 bytes) in half a second, call 3 makes map 2 (8 bytes) in 1 s.
# The step of call 4 reads map 2 and takes 2 s, the next takes 3 s, the one of call 2 reads map 1. From there on:
#
#                  0    1    2         4        5     7  8        10          13 14
# both swapped     ......................................[step 4 ][step 3    ]..[step 2]    in: 2 [0, 8], 1 [8, 14]
# 2 recomputed     .....[3  ][step 4  ][step 3        ][step 2]                             in: 0 [0, 1], 1 [1, 7]
# 1 recomputed     ......................................[step 4 ][step 3    ][1][step 2]    in: 2 [0, 8], 0 [8, 9]
# 2 for free       [step 4  ][step 3           ]..[step 2]                                   in: 1 [0, 6]
# 1 for free       ......................................[step 4 ][step 3    ][step 2]
#
# r(2) = (2 - 1) / (9 - 1), r(1) = (8.5 - 8) / (9 - 8). Once 2 is recomputed the swap-in of 1 is hidden.
TWO_BRANCHES = literal_problem(
    [(2.0, 1), (0.5, 6), (1.0, 0), (1.0, 8), (1.0, 0), (20.0, 0), FULL],
    [FULL, FULL, (2.0, 0), (3.0, 0), (1.0, 0), (1.0, 0), (1.0, 0)],
    [(1, 0, (1, 3), (1,), False), (6, 1, (2,), (2,), True), (8, 3, (4,), (4,), True)], BUDGET_BYTES)


def test_each_recomputation_changes_the_ratios_of_the_others():
    assert ratio(TWO_BRANCHES, 'SSS', 2) == pytest.approx(1 / 8)
    assert ratio(TWO_BRANCHES, 'SSS', 1) == pytest.approx(1 / 2)
    assert ratio(TWO_BRANCHES, 'SSR', 1) >= 1
    assert decide(TWO_BRANCHES) == 'SSR'


def test_the_smallest_ratio_goes_first():
    # Had map 1 gone first, map 2 would have followed: both recomputed, which is slower than map 2 alone.
    assert seconds_of(TWO_BRANCHES, 'SRS') < seconds_of(TWO_BRANCHES, 'SSS')
    assert seconds_of(TWO_BRANCHES, 'SSR') < seconds_of(TWO_BRANCHES, 'SRR') < seconds_of(TWO_BRANCHES, 'SRS')
    assert decide(TWO_BRANCHES) == 'SSR'


def test_what_fits_is_kept_and_nothing_recomputed():
    assert decide(dataclasses.replace(TWO_BRANCHES, budget_bytes=1000)) == 'KKK'


def test_below_the_floor_all_is_swapped_and_the_plan_refused_with_the_floor():
    problem = dataclasses.replace(TWO_BRANCHES, budget_bytes=BUDGET_BYTES - 1)
    assert POOCH.decide(problem).verdicts == everything(problem.trace, 1)
    with pytest.raises(InfeasibleBudgetError) as caught:
        make_plan(POOCH, problem)
    assert caught.value.floor_bytes == BUDGET_BYTES


def test_ten_searches_give_one_plan():
    plans = [make_plan(POOCH, dataclasses.replace(TWO_BRANCHES)) for _ in range(10)]
    assert all(each == plans[0] for each in plans)
