"""PoocH to the letter, on iterations that can be worked out by hand."""
from dataclasses import replace

import pytest

from chainer_ooc.classify.search import evaluate
from chainer_ooc.papers import published
from chainer_ooc.papers.published import PUBLISHED
from chainer_ooc.problem import EARLY, Decision, Starts, Verdict
from chainer_ooc.schedule.schedule import lay_out
from support.planning.literal_papers import chain_problem

LETTERS = {each.value[0]: each for each in Verdict}


def letters(decision):
    return ''.join(verdict.value[0] for verdict in decision.verdicts)


def decision_of(verdicts):
    return Decision(tuple(LETTERS[each] for each in verdicts), EARLY, shares_chains=False)


def starts(problem, decision):
    return {each.map: each.start for each in lay_out(problem, decision).swap_ins}


def test_what_fits_in_core_is_kept():
    problem = chain_problem(nbytes=[4, 4, 4], budget_bytes=1000)
    assert letters(published.step_1(problem)) == letters(published.both_steps(problem)) == 'kkk'


def test_step_1_keeps_from_the_output():
    # a call holds its input and makes its output, 4 bytes each; two maps stay
    problem = chain_problem(nbytes=[4, 4, 4], budget_bytes=8)
    assert letters(published.step_1(problem)) == 'skk'


def test_step_1_goes_on_behind_a_map_that_does_not_fit():
    # beside the last two maps (8 bytes) the second does not fit (8 more), but the first does
    problem = chain_problem(nbytes=[2, 8, 4, 4], budget_bytes=14)
    assert letters(published.step_1(problem)) == 'kskk'
    assert letters(published.superneurons(problem)) == 'srkk'


def test_superneurons_swaps_what_convolutions_make():
    problem = chain_problem(nbytes=[4, 4, 4, 4], budget_bytes=8)
    calls = (replace(problem.trace.calls[0], label='Convolution2DFunction'), *problem.trace.calls[1:])
    convolved = replace(problem, trace=replace(problem.trace, calls=calls))
    assert [letters(published.superneurons(each)) for each in (problem, convolved)] == ['srkk', 'sskk']


def test_step_2_recomputes_what_is_cheaper_so():
    # copies of 40 seconds beside calls of one
    problem = chain_problem(nbytes=[4, 4, 4, 4], budget_bytes=8, bytes_per_second=0.1)
    first, both = published.step_1(problem), published.both_steps(problem)
    assert letters(first) == 'sskk'
    assert letters(both) == 'srkk'  # the first map is the batch, which no call makes
    assert evaluate(problem, both).seconds < evaluate(problem, first).seconds


def test_step_2_leaves_copies_that_cost_nothing():
    problem = chain_problem(nbytes=[4, 4, 4, 4], budget_bytes=8, bytes_per_second=1e9)
    assert letters(published.both_steps(problem)) == letters(published.step_1(problem))


def ratio(problem, decision, map_id):
    return published.overhead_ratio(problem, evaluate(problem, decision), lay_out(problem, decision), map_id)


def test_the_ratio_is_calls_again_over_what_copies_cost():
    #    compute    0 1 2 3 4 5       6 7      map 1 alone: it leaves after call 1, and step 6 reads it
    #    copies         [ 1  ][ 1   ]          three seconds each way: step 6 waits for two
    problem = replace(chain_problem(nbytes=[4, 4, 4, 4], budget_bytes=100, bytes_per_second=4 / 3), recalls=False)
    decision = decision_of('kskk')
    found = evaluate(problem, decision)
    assert found.seconds == pytest.approx(10.0)
    # to make it again takes call 0: a second
    assert ratio(problem, decision, 1) == pytest.approx(1 / 2)


def test_copies_that_cost_nothing_have_no_ratio():
    # four calls hide the copy out, three steps the copy in
    problem = chain_problem(nbytes=[4] * 6, budget_bytes=100, bytes_per_second=4)
    decision = decision_of('kskkkk')
    assert ratio(problem, decision, 1) == float('inf')


@pytest.mark.parametrize(('budget_bytes', 'is_possible'), [(9, True), (8, False)])
def test_a_map_that_cannot_be_held_while_it_is_made_again_stays_swapped(budget_bytes, is_possible):
    # step 5 reads map 2; to make it again map 0 comes in, call 0 makes map 1 once more, and call 1 map 2: 3 bytes each
    problem = replace(chain_problem([3, 3, 3, 1], budget_bytes, bytes_per_second=0.01), recalls=False)
    decision = decision_of('srsk')
    found = evaluate(problem, decision)
    assert found.fits
    assert (ratio(problem, decision, 2) < 1) is is_possible


def test_what_a_chain_passes_does_not_stay():
    # both maps are made again for the first of the two steps, and the one below once more for its own
    problem = chain_problem(nbytes=[4, 4, 4, 4], budget_bytes=100)
    chains = lay_out(problem, decision_of('krrk')).chains
    assert chains.calls_at == {5: (0, 1), 6: (0,)}


def test_a_swap_in_is_put_off_until_it_is_just_in_time():
    #    position   4   5   6   7          calls 0 to 3, steps 4 to 7, a second each
    #    copies             [ 0 ]          map 0 comes in for position 7, in a second
    problem = chain_problem(nbytes=[4, 4, 4, 4], budget_bytes=100, bytes_per_second=4)
    early = decision_of('skkk')
    assert starts(problem, early) == {0: 4}
    assert starts(problem, published.put_off(problem, early)) == {0: 6}


def test_swap_ins_are_put_off_for_those_behind_them_too():
    #    position   6   7   8   9  10  11       map 1 at 10, map 0 at 11; two seconds each
    #    copies         [ 1   ][ 0    ]         so that map 1 cannot wait for position 8
    problem = chain_problem(nbytes=[4] * 6, budget_bytes=100, bytes_per_second=2)
    assert starts(problem, published.put_off(problem, decision_of('sskkkk'))) == {1: 7, 0: 9}


def test_what_runs_again_gives_time_as_well():
    #    begins     6   7   8   9       11  12  at position 9 map 2 is made again, which takes a second more
    #    copies                   [ 0    ]      2.5 seconds: within position 9
    problem = chain_problem(nbytes=[4] * 6, budget_bytes=100, bytes_per_second=1.6)
    assert starts(problem, published.put_off(problem, decision_of('skrkkk'))) == {0: 9}
    assert starts(problem, published.put_off(problem, decision_of('skkkkk'))) == {0: 8}


def test_one_that_cannot_start_in_time_holds_those_before_it_up_no_more_than_it_must():
    #    position   6   7   8   9  10  11       map 0 takes 5 seconds, and may not start before 9; map 1 takes one
    #    copies             [1 ][ 0     ....
    problem = chain_problem(nbytes=[10, 2, 4, 4, 4, 4], budget_bytes=100, bytes_per_second=2)
    late = replace(decision_of('sskkkk'), starts=Starts(positions={0: 9}))
    assert starts(problem, published.put_off(problem, late)) == {1: 8, 0: 9}


def test_what_comes_too_late_anyway_starts_as_early_as_memory_allows():
    problem = chain_problem(nbytes=[4, 4, 4, 4], budget_bytes=100, bytes_per_second=0.1)
    early = decision_of('sskk')
    assert starts(problem, published.put_off(problem, early)) == starts(problem, early)


def test_without_scheduling_a_swap_in_starts_with_the_block_before():
    # every map is retained, so that each step is a block
    problem = chain_problem(nbytes=[4, 4, 4, 4], budget_bytes=100, bytes_per_second=1)
    assert starts(problem, published.swap_all_at_once(problem)) == {3: 4, 2: 4, 1: 5, 0: 6}


def test_when_time_is_up_the_best_so_far_is_the_answer():
    problem = chain_problem(nbytes=[4, 4, 4, 4], budget_bytes=8, bytes_per_second=0.1, limit_seconds=0.0)
    assert letters(published.both_steps(problem)) == letters(published.step_1(problem))


@pytest.mark.parametrize('name', list(PUBLISHED))
def test_equal_problems_get_equal_decisions(name):
    problem = chain_problem(nbytes=[4, 8, 2, 4], budget_bytes=16, bytes_per_second=0.5)
    assert PUBLISHED[name](problem) == PUBLISHED[name](problem)
    assert PUBLISHED[name](problem).shares_chains is False
