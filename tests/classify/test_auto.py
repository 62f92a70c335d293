"""auto: within the budget, no slower than any other policy, above the proven bound, and the same each time."""
import dataclasses
import itertools
import math
import random
from unittest import mock

import pytest
from hypothesis import given

from chainer_ooc.classify import annealing, search
from chainer_ooc.classify.annealing import Draft, anneal, steps_over
from chainer_ooc.classify.policies import POLICIES, auto
from chainer_ooc.classify.search import Search, evaluate
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.plans.making import make_plan
from chainer_ooc.problem import Decision, Verdict, can_leave, can_recompute, everything, fault_of
from support.examples import examples
from support.planning import drawn_problems, random_problems
from support.planning.literal_iterations import make_problem
from support.planning.small_problems import draw_problem

AUTO = POLICIES['auto']
#: Its maps are read where they are, out of the budget.
MAPPED = 'unified'


def movable(problem):
    return [each.id for each in problem.trace.maps if can_leave(each, problem.min_bytes)]


def check_is_the_fastest(problem):
    found = evaluate(problem, AUTO.decide(problem))
    for name in {*POLICIES} - {MAPPED, 'auto'}:
        other = evaluate(problem, POLICIES[name].decide(problem))
        assert found.fits or not other.fits, name
        assert found.seconds <= other.seconds, name
    return found


@examples(100)
@given(drawn_problems.problems())
def test_no_other_policy_is_faster_or_needs_less(problem):
    check_is_the_fastest(problem)


@examples(100)
@given(random_problems.problems())
def test_nor_on_traces_of_any_kind(given):
    check_is_the_fastest(given[0])


@examples(40)
@given(drawn_problems.problems())
def test_it_keeps_to_what_a_map_can_do_and_decides_the_same_again(problem):
    decision, again = AUTO.decide(problem), can_recompute(problem.trace, problem.min_bytes)
    for each, verdict in zip(problem.trace.maps, decision.verdicts, strict=True):
        assert verdict is Verdict.KEEP or can_leave(each, problem.min_bytes)
        assert verdict is not Verdict.RECOMPUTE or again[each.id]
    assert AUTO.decide(problem) == decision


def test_it_is_never_below_the_bound():
    pytest.importorskip('scipy')
    from chainer_ooc.classify.bound import lower_bound

    for seed in range(40):
        problem = draw_problem(seed)
        found = check_is_the_fastest(problem)
        assert not found.fits or lower_bound(problem).gap(found.seconds) >= 0, seed


def test_of_few_maps_no_verdicts_are_faster():
    tried = 0
    for seed in range(40):
        problem = draw_problem(seed)
        again = can_recompute(problem.trace, problem.min_bytes)
        swaps = movable(problem)
        choices = [[Verdict.KEEP, *[Verdict.SWAP] * (each.id in swaps), *[Verdict.RECOMPUTE] * again[each.id]]
                   for each in problem.trace.maps]
        best = min(evaluate(problem, Decision(each)).seconds for each in itertools.product(*choices))
        tried += best < math.inf
        assert evaluate(problem, AUTO.decide(problem)).seconds <= best, seed
    assert tried > 20


@pytest.mark.parametrize('in_python', [False, True])
def test_it_walks_where_there_are_many_maps(in_python, monkeypatch):
    if in_python:
        monkeypatch.setattr(search, 'evaluator_of', lambda problem: None)
    monkeypatch.setattr(annealing, 'ENUMERATED', 1)
    gained = 0
    for seed in range(15):
        problem = draw_problem(seed)
        decision = Decision(everything(problem.trace, problem.min_bytes))
        found = Search(problem, decision)
        before = found.found.seconds
        anneal(found)
        assert found.found.seconds <= before
        assert found.found.seconds == evaluate(problem, found.best).seconds
        gained += found.found.seconds < before
    assert gained > 5


def test_walks_with_and_without_compiled_code_find_the_same(monkeypatch):
    monkeypatch.setattr(annealing, 'ENUMERATED', 1)
    for seed in range(15):
        problem = draw_problem(seed)
        compiled = AUTO.decide(problem)
        with monkeypatch.context() as patched:
            patched.setattr(search, 'evaluator_of', lambda problem: None)
            assert AUTO.decide(problem) == compiled, seed


@examples(60)
@given(drawn_problems.problems())
def test_a_draft_says_what_an_evaluation_says(problem):
    draft, rng = Draft(problem, Decision(everything(problem.trace, problem.min_bytes))), random.Random(0)
    for _ in range(10):
        for each in movable(problem):
            draft.codes[each] = rng.choice([Verdict.KEEP, Verdict.SWAP]).code
        seconds = draft.seconds()
        assert seconds == evaluate(problem, draft.decision()).seconds
        evaluate(problem, Decision((Verdict.KEEP,) * len(problem.trace.maps)))
        assert draft.seconds() == seconds  # what is evaluated between two questions changes nothing


def test_with_no_time_it_gives_the_plan_that_it_begins_with():
    for seed in range(20):
        hurried = dataclasses.replace(draw_problem(seed), limit_seconds=0.0)
        found = evaluate(hurried, AUTO.decide(hurried))
        assert found.seconds <= evaluate(hurried, POLICIES['swap-all'].decide(hurried)).seconds


def test_the_number_of_steps_grows_with_the_maps_and_ends_and_falls_with_the_positions():
    assert [steps_over(maps, 100, True) for maps in (7, 20, 60, 1000)] == [396, 1800, 14600, 20000]
    assert [steps_over(maps, 100, False) for maps in (7, 20, 60, 1000)] == [396, 1000, 1460, 2000]
    assert [steps_over(1000, positions, True) for positions in (1500, 3000, 30_000)] == [20000, 10000, 1000]


def test_a_draft_says_of_each_map_whether_it_stays_where_a_chain_makes_it():
    tried = 0
    for seed in range(60):
        problem = draw_problem(seed)
        again = [each for each, possible in enumerate(can_recompute(problem.trace, problem.min_bytes)) if possible]
        codes = tuple(Verdict.RECOMPUTE if each in again else Verdict.KEEP for each in range(len(problem.trace.maps)))
        problem = dataclasses.replace(problem, budget_bytes=1 << 40)
        draft = Draft(problem, Decision(codes, shares_chains=frozenset(again)))
        for stays in itertools.product([0, 1], repeat=len(again)):
            for each, value in zip(again, stays, strict=True):
                draft.stays[each] = value
            decision = draft.decision()
            assert decision.shares_chains == {each for each in again if draft.stays[each]}
            assert draft.seconds() == evaluate(problem, decision).seconds
            tried += draft.seconds() != evaluate(problem, Decision(codes)).seconds
    assert tried > 20


def test_walks_find_which_maps_of_a_chain_may_stay():
    """Eight calls in a row, memory for three maps. Where none stays, each chain begins from the first again."""
    calls = 8
    maps = {chr(97 + each): (10, each, min(each + 1, calls - 1), [2 * calls - 1 - each]) for each in range(calls)}
    problem = make_problem([1] * calls, [1] * calls, maps, 30, dict.fromkeys(range(2 * calls), 10),
                           {each: chr(96 + each) for each in range(1, calls)}, out=0.01, back=0.01)
    ways = itertools.product([Verdict.KEEP, Verdict.RECOMPUTE], repeat=calls - 1)
    alike = min(evaluate(problem, Decision((Verdict.KEEP, *way), shares_chains=shared)).seconds
                for way in ways for shared in (True, False))
    found = Search(problem, Decision((Verdict.KEEP, *[Verdict.RECOMPUTE] * (calls - 1))))
    anneal(found)
    assert (alike, found.found.seconds) == (37, 25)


@pytest.mark.parametrize('first', [Verdict.SWAP, Verdict.RECOMPUTE])
def test_nothing_is_looked_for_beyond_a_plan_that_takes_no_time(first):
    """A trace whose calls took too little to be timed: what is made again costs nothing, and a swap something."""
    calls = 8
    maps = {chr(97 + each): (10, each, min(each + 1, calls - 1), [2 * calls - 1 - each]) for each in range(calls)}
    problem = make_problem([0] * calls, [0] * calls, maps, 50, reads={each: chr(96 + each) for each in range(1, calls)})
    found = Search(problem, Decision((Verdict.KEEP, *[first] * (calls - 1))))
    assert (found.found.seconds > 0) == (first is Verdict.SWAP)
    anneal(found)
    assert found.found.fits
    assert found.found.seconds == 0


@examples(40)
@given(drawn_problems.problems())
def test_what_is_known_is_not_made_slower(problem):
    """A walk that finds nothing, and a decision that is faster than all policies'."""
    best = AUTO.decide(problem)
    with mock.patch.object(auto, 'anneal', return_value=None):
        again = AUTO.decide(dataclasses.replace(problem, known=(best,)))
    assert evaluate(problem, again).seconds <= evaluate(problem, best).seconds


def test_what_is_known_and_is_not_possible_here_is_passed_over():
    for seed in range(20):
        problem = draw_problem(seed)
        count = len(problem.trace.maps)
        known = [Decision((Verdict.RECOMPUTE,) * count), Decision((Verdict.SWAP,) * (count + 1)),
                 Decision(everything(problem.trace, problem.min_bytes), mapped=True)]
        expected = AUTO.decide(problem)
        if all(not fault_of(problem.trace, each, problem.min_bytes) for each in known[:1]):
            known = known[1:]
        with mock.patch.object(Search, 'try_decision', autospec=True, side_effect=Search.try_decision) as tried:
            assert AUTO.decide(dataclasses.replace(problem, known=known)) == expected
        assert not any(call.args[1].mapped for call in tried.call_args_list)


def test_with_more_memory_it_is_no_slower_than_what_is_known(monkeypatch):
    """Of larger and larger budgets, each of which knows the plan of the one before; without that some are slower.

    The walks are short, as of networks that are too large for them.
    """
    monkeypatch.setattr(annealing, 'ENUMERATED', 0)
    monkeypatch.setattr(annealing, 'WALKS', ((1e-2, 0.3),))
    monkeypatch.setattr(annealing, 'steps_over', lambda maps, positions, is_compiled: 5)
    slower = 0
    for seed in range(10, 22):
        problem = draw_problem(seed, most_calls=24, most_maps=40)
        before, last, alone = (), math.inf, math.inf
        for share in (1.0, 1.02, 1.05, 1.1, 1.2, 1.3, 1.6, 2.0):
            larger = dataclasses.replace(problem, budget_bytes=int(problem.budget_bytes * share))
            try:
                plan = make_plan(AUTO, dataclasses.replace(larger, known=before))
            except InfeasibleBudgetError:
                continue
            assert plan.seconds <= last, (seed, share)
            before, last = (plan.decision(),), plan.seconds
            now = make_plan(AUTO, larger).seconds
            slower, alone = slower + (now > alone), now
    assert slower, 'or nothing would have to be known'
