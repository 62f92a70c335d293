"""PoocH to the letter, on iterations that can be worked out by hand."""
import pytest
from literal_papers import chain_problem

from chainer_ooc.classify.verdict import Verdict
from chainer_ooc.papers import published
from chainer_ooc.papers.published import PUBLISHED
from chainer_ooc.simulate.evaluate import evaluate


def letters(decision):
    return ''.join(verdict.value[0] for verdict in decision.verdicts)


def test_what_fits_in_core_is_kept():
    problem = chain_problem(nbytes=[4, 4, 4], budget_bytes=1000)
    assert letters(published.decide_step_1(problem)) == letters(published.decide(problem)) == 'kkk'


def test_step_1_keeps_from_the_output():
    # a call holds its input and makes its output, 4 bytes each; two maps stay
    problem = chain_problem(nbytes=[4, 4, 4], budget_bytes=8)
    assert letters(published.decide_step_1(problem)) == 'skk'


def test_step_2_recomputes_what_is_cheaper_so():
    # copies of 40 seconds beside calls of one
    problem = chain_problem(nbytes=[4, 4, 4, 4], budget_bytes=8, bytes_per_second=0.1)
    first, both = published.decide_step_1(problem), published.decide(problem)
    assert letters(first) == 'sskk'
    assert letters(both) == 'srkk'  # the first map is the batch, which no call makes
    assert evaluate(problem, both).seconds < evaluate(problem, first).seconds


def test_step_2_leaves_copies_that_cost_nothing():
    problem = chain_problem(nbytes=[4, 4, 4, 4], budget_bytes=8, bytes_per_second=1e9)
    assert letters(published.decide(problem)) == letters(published.decide_step_1(problem))


def test_when_time_is_up_the_best_so_far_is_the_answer():
    problem = chain_problem(nbytes=[4, 4, 4, 4], budget_bytes=8, bytes_per_second=0.1, limit_seconds=0.0)
    assert letters(published.decide(problem)) == letters(published.decide_step_1(problem))


@pytest.mark.parametrize('name', list(PUBLISHED))
def test_equal_problems_get_equal_decisions(name):
    problem = chain_problem(nbytes=[4, 8, 2, 4], budget_bytes=16, bytes_per_second=0.5)
    assert PUBLISHED[name].decide(problem) == PUBLISHED[name].decide(problem)
    assert Verdict.KEEP in PUBLISHED[name].decide(problem).verdicts
