"""The evaluation in C beside the one in Python: equal numbers, to the last bit, for every decision on every trace."""
import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainer_ooc.classify import annealing, search
from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.cost.costs import Costs
from chainer_ooc.problem import Decision, Problem, Standing, Starts, Verdict, can_leave, can_recompute
from chainer_ooc.schedule.schedule import lay_out
from chainer_ooc.simulate import compiled
from chainer_ooc.simulate.compiled import Outcome, evaluator_of
from chainer_ooc.simulate.simulator import run
from support.examples import examples
from support.planning import drawn_problems, random_problems
from support.planning.literal_problems import literal_problem

needs_library = pytest.mark.skipif(compiled.available() is not None, reason=str(compiled.available()))

#: Gates that lie behind all others; a chain that reaches a map from outside.
FAILURES = (IndexError, AssertionError)
SECONDS = st.floats(0, 20)
BANDWIDTHS = st.sampled_from([0.0, 0.7, 3.0, 9.1, 30.0, 1000.0])


@st.composite
def any_costs(draw, trace):
    """Times whose sums are rounded, so that their order shows."""
    return Costs(tuple(draw(SECONDS) for _ in range(trace.positions)), draw(BANDWIDTHS), draw(BANDWIDTHS),
                 draw(st.sampled_from([0.0, 0.3])), draw(st.just(0.0) | st.floats(0.01, 3)))


@st.composite
def any_decisions(draw, problem):
    """Every option that a decision has. Of the verdicts those that are possible, or any."""
    trace, min_bytes = problem.trace, problem.min_bytes
    again, maps, ends = can_recompute(trace, min_bytes), trace.maps, st.integers(0, trace.positions - 1)
    anything = draw(st.integers(0, 2)) == 0
    verdicts = tuple(draw(st.sampled_from([
        Verdict.KEEP, *[Verdict.SWAP] * (5 * (anything or can_leave(each, min_bytes))),
        *[Verdict.RECOMPUTE] * (4 * (again[each.id] or (anything and each.producer is not None)))])) for each in maps)
    some = st.frozensets(st.integers(0, max(0, len(maps) - 1)))
    positions = draw(st.none() | st.dictionaries(some.map(lambda found: min(found, default=0)), ends))
    gates = draw(st.none() | st.sets(ends).map(sorted).map(tuple))
    starts = Starts(draw(st.none() | st.integers(0, 4)), gates, draw(st.booleans()), positions)
    leaves = {each.id: draw(st.integers(0, max(each.last_forward_use, len(trace.calls) - 1)) | ends)
              for each in maps if draw(st.integers(0, 4)) == 0}
    return Decision(verdicts, starts, leaves, draw(st.booleans()), draw(st.none() | st.booleans() | some),
                    draw(st.integers(0, 3)) == 0)


@st.composite
def evaluations(draw):
    """A problem and a decision on it, with a budget around what the decision needs."""
    trace = draw(random_problems.traces() | drawn_problems.traces())
    standing = Standing(draw(st.integers(0, 50)), draw(st.integers(0, 50)))
    ample = Problem(trace, draw(any_costs(trace)), standing, 10**9, draw(st.sampled_from([1, 5])),
                    recalls=draw(st.booleans()))
    decision = draw(any_decisions(ample))
    try:
        least = lay_out(ample, decision).floor_bytes
    except FAILURES:
        least = 0
    budget_bytes = max(0, least + draw(st.integers(-20, 20) | st.integers(-200, 200)))
    return dataclasses.replace(ample, budget_bytes=budget_bytes), decision


def in_python(problem, decision):
    schedule = lay_out(problem, decision)
    if not schedule.fits(problem.budget_bytes):
        return Outcome(schedule.floor_bytes, schedule.needed_bytes, float('inf'), 0)
    return Outcome(schedule.floor_bytes, schedule.needed_bytes, *run(problem, schedule))


def unless_it_fails(work, *given):
    try:
        return work(*given)
    except FAILURES:
        return None


def packed(problem, has_little_memory):
    evaluator = evaluator_of(problem)
    if has_little_memory:
        evaluator._take_memory(0)
    return evaluator


@needs_library
@examples(500)
@given(evaluations(), st.booleans())
def test_c_gives_what_python_gives(given, has_little_memory):
    problem, decision = given
    found = packed(problem, has_little_memory).evaluate(decision, problem.budget_bytes)
    assert found == unless_it_fails(in_python, problem, decision)


@needs_library
@examples(300)
@given(evaluations(), st.booleans())
def test_c_needs_what_python_needs(given, has_little_memory):
    problem, decision = given
    found = packed(problem, has_little_memory).needs(decision, problem.budget_bytes)
    expected = unless_it_fails(search.needs_in_python, problem, decision)
    assert [each.tolist() for each in found or ()] == [each.tolist() for each in expected or ()]


@needs_library
@examples(200)
@given(evaluations(), st.data())
def test_a_map_without_bytes_is_one_that_has_none(given, data):
    problem, decision = given
    without = data.draw(st.integers(0, len(problem.trace.maps) - 1)) if problem.trace.maps else -1
    found = evaluator_of(problem).evaluate(decision, problem.budget_bytes, without)
    if found is not None:
        less = search.without_bytes_of(problem, without) if without >= 0 else problem
        assert found == in_python(less, decision)
        assert evaluator_of(problem).evaluate(decision, problem.budget_bytes) == in_python(problem, decision)


@needs_library
@pytest.mark.parametrize('policy', POLICIES)
@examples(15)
@given(drawn_problems.problems())
def test_every_policy_decides_the_same_without_the_library(policy, problem):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(annealing, 'STEPS', annealing.FEW // 4)  # of more it takes fewer without the library
        decision = POLICIES[policy].decide(problem)
        patch.setattr(search, 'evaluator_of', lambda problem: None)
        assert POLICIES[policy].decide(problem) == decision


@needs_library
def test_the_last_decision_leaves_nothing_behind():
    problem = make_chain()
    evaluator, swapped = evaluator_of(problem), (Verdict.SWAP,) * 3
    plain = evaluator.evaluate(Decision(swapped), 100)
    strange = Decision(swapped, Starts(1, (4,), False, {1: 4}), {0: 2}, True, frozenset([1]), True)
    assert evaluator.evaluate(strange, 100, without=1) != plain
    assert evaluator.evaluate(Decision(swapped), 100) == plain


@needs_library
def test_a_problem_is_packed_once_for_all_budgets():
    problem = make_chain()
    other = dataclasses.replace(problem, budget_bytes=5, limit_seconds=1.0)
    assert evaluator_of(problem) is evaluator_of(other)
    assert evaluator_of(problem) is not evaluator_of(dataclasses.replace(problem, standing=Standing(1, 1)))
    assert evaluator_of(problem) is not evaluator_of(dataclasses.replace(problem, recalls=False))
    assert evaluator_of(problem) is not evaluator_of(dataclasses.replace(problem, min_bytes=2))


@needs_library
@pytest.mark.parametrize('changes', [
    {'verdicts': (Verdict.SWAP,) * 2}, {'leaves': {1: 6}}, {'leaves': {1: 1 << 70}},
    {'starts': Starts(0, (1, 2))}, {'starts': Starts(1 << 60)}, {'verdicts': (Verdict.RECOMPUTE,) * 3}])
def test_what_python_fails_at_is_left_to_it(changes):
    problem = make_chain(outside=True)
    decision = dataclasses.replace(Decision((Verdict.SWAP,) * 3), **changes)
    assert evaluator_of(problem).evaluate(decision, 100) is None


@needs_library
@pytest.mark.parametrize('budget_bytes', [-1, (1 << 62) + 1])
def test_budgets_beyond_all_memory_are_left_to_python(budget_bytes):
    problem = make_chain()
    assert evaluator_of(problem).evaluate(Decision((Verdict.KEEP,) * 3), budget_bytes) is None
    evaluated = search.evaluate(dataclasses.replace(problem, budget_bytes=budget_bytes), Decision((Verdict.KEEP,) * 3))
    assert evaluated.fits is (budget_bytes > 0)


@needs_library
@pytest.mark.parametrize(('row', 'changes'), [
    ('maps', {'nbytes': 1 << 60}), ('maps', {'id': 2}), ('maps', {'last_held': 6}), ('maps', {'producer': 3}),
    ('maps', {'backward_uses': (9,)}), ('maps', {'backward_uses': (-4,)}), ('maps', {'backward_uses': (4, 3)}),
    ('maps', {'retained': False, 'last_alive': 9}), ('calls', {'inputs': (0, 3)}), ('calls', {'inputs': (-2,)}),
    ('calls', {'index': 1}), ('calls', {'peak_bytes': -1 << 60}), ('steps', {'maps': (0, -1)}),
    ('steps', {'maps': (7,)}), ('steps', {'position': 4})])
def test_a_trace_that_names_what_it_lacks_is_left_to_python(row, changes):
    problem = make_chain()
    rows = list(getattr(problem.trace, row))
    rows[0] = dataclasses.replace(rows[0], **changes)
    assert evaluator_of(dataclasses.replace(
        problem, trace=dataclasses.replace(problem.trace, **{row: tuple(rows)}))) is None


def test_costs_for_another_number_of_positions_are_left_to_python():
    problem = make_chain()
    costs = dataclasses.replace(problem.costs, seconds=problem.costs.seconds[:-1])
    assert evaluator_of(dataclasses.replace(problem, costs=costs)) is None


def test_without_a_compiler_python_evaluates(monkeypatch):
    problem, decision = make_chain(), Decision((Verdict.SWAP,) * 3)
    with_library = search.evaluate(problem, decision)
    monkeypatch.setattr(compiled, '_library', lambda: 'there was no compiler')
    compiled._evaluator.cache_clear()
    assert 'no compiler' in compiled.available()
    assert evaluator_of(problem) is None
    found = search.evaluate(problem, decision)
    assert dataclasses.astuple(found) == dataclasses.astuple(with_library)
    compiled._evaluator.cache_clear()


def make_chain(outside=False):
    """Three calls, each with a map of its own that its step reads, in 30 bytes."""
    found = literal_problem(
        [(1.0, 10)] * 3, [(1.0, 5)] * 3,
        [(10, 0, (1,), (0,), True), (10, 1, (2,), (1,), True), (10, 2, (), (2,), True)], 30)
    if not outside:
        return found
    maps = (dataclasses.replace(found.trace.maps[0], producer=None), *found.trace.maps[1:])
    return dataclasses.replace(found, trace=dataclasses.replace(found.trace, maps=maps))
