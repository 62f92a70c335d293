"""What a report shows: plans for several budgets, why each map has its verdict, and what was measured."""
import dataclasses

import pytest

from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.problem import Verdict, changed, problem_of
from chainer_ooc.report.contents import BUDGETS, _between, make_report
from chainer_ooc.schedule.schedule import lay_out
from chainer_ooc.simulate.timeline import Cause, Stream
from support.planning.drawn_run import run_of
from support.planning.drawn_trace import MB, TRACE
from support.planning.small_problems import draw_problem


def budgets_of(report):
    return [each.plan.budget_bytes for each in report.courses]


def test_the_courses_are_plans_for_the_budgets_ascending(report):
    assert budgets_of(report) == [9 * MB, 10 * MB, 13 * MB]
    assert [each.plan.seconds for each in report.courses] == [17, 17, 9]
    assert (report.in_core.seconds, report.in_core.peak_bytes) == (9, 13 * MB)


def test_a_course_is_the_drawn_timeline(report):
    course = report.course
    assert (report.shown, course.plan.peak_bytes, course.timeline.seconds) == (0, 9 * MB, 17)
    assert [(each.position, each.map, each.seconds, each.cause) for each in course.timeline.stalls] == [
        (2, 1, 4, Cause.MEMORY), (4, 1, 4, Cause.SWAP_IN)]
    assert course.copied_bytes(TRACE, Stream.COPY_OUT) == 6 * MB


def test_the_bound_is_proven_and_the_gap_is_from_it(report):
    pytest.importorskip('scipy', reason='bounds need SciPy')
    assert report.course.bound_seconds == pytest.approx(10)
    assert report.course.gap == pytest.approx(0.7)


def test_each_map_says_what_other_verdicts_would_cost(report):
    held, large, small = report.course.reasons
    assert (held.others, held.why) == ((), 'the program holds it itself, so that letting go frees nothing')
    keep, recompute = large.others
    assert (large.verdict, large.stall_seconds) == (Verdict.SWAP, 8)
    assert (keep.verdict, keep.seconds, keep.needed_bytes) == (Verdict.KEEP, None, 13 * MB)
    assert (recompute.verdict, recompute.seconds) == (Verdict.RECOMPUTE, 10)
    assert large.why == 'if kept, needs 13.0 MB, which exceeds the budget; if recomputed, takes 7.00 s less'
    assert small.swap_out_seconds == 2


@pytest.mark.parametrize('name', ['swap-all', 'swap-opt', 'pooch'])
def test_another_verdict_is_refused_where_the_policy_itself_has_no_room_for_it(name):
    """A plan's swap-ins and chains are laid out anew beside a map with another verdict, not held to where they were."""
    refused = 0
    for seed in range(30):
        drawn = draw_problem(seed)
        problem = problem_of(drawn.trace, drawn.budget_bytes, drawn.min_bytes)
        try:
            course = make_report('', POLICIES[name], problem, [problem.budget_bytes]).course
        except InfeasibleBudgetError:
            continue
        decision = POLICIES[name].decide(problem)
        for reason in course.reasons:
            for other in reason.others:
                schedule = lay_out(problem, dataclasses.replace(
                    decision, verdicts=changed(decision.verdicts, [reason.map], other.verdict)))
                assert (other.seconds is None) == (not schedule.fits(problem.budget_bytes)), (seed, reason.map)
                refused += other.seconds is None
    assert refused


def test_budgets_go_from_the_smallest_that_works_to_where_everything_stays():
    report = make_report('', POLICIES['swap-all'], problem_of(TRACE, 1, 0))
    found = budgets_of(report)
    assert (len(found), found[0], found[-1], report.shown) == (BUDGETS, 9 * MB, 13 * MB, BUDGETS // 2)
    assert report.courses[0].plan.count(Verdict.SWAP) == 2


def test_there_is_one_budget_where_the_smallest_that_works_is_no_less():
    assert _between(9, 5) == [9]
    assert _between(0, 5) == [1]


def test_a_budget_that_is_named_is_shown_among_the_others():
    report = make_report('', POLICIES['swap-all'], problem_of(TRACE, 11 * MB, 0))
    assert report.course.plan.budget_bytes == 11 * MB
    assert len(report.courses) >= BUDGETS


def test_where_nothing_can_leave_there_is_one_budget():
    maps = tuple(dataclasses.replace(each, foreign=True) for each in TRACE.maps)
    report = make_report('', POLICIES['swap-all'], problem_of(dataclasses.replace(TRACE, maps=maps), 1, 0))
    assert len(report.courses) == 1


def test_a_budget_without_a_plan_is_refused():
    with pytest.raises(InfeasibleBudgetError):
        make_report('', POLICIES['swap-all'], problem_of(TRACE, 1, 0), [8 * MB])


def test_budgets_that_nobody_named_are_left_out_where_the_policy_refuses_them():
    """This one keeps all maps within 11 MB and more, which takes 13 MB."""
    def decide(problem):
        return POLICIES['swap-all' if problem.budget_bytes < 11 * MB else 'keep'].decide(problem)

    bold = dataclasses.replace(POLICIES['keep'], name='bold', decide=decide)
    found = budgets_of(make_report('', bold, problem_of(TRACE, 1, 0)))
    assert (len(found), found[0], found[-1]) == (5, 9 * MB, 13 * MB)
    assert max(found[:-1]) < 11 * MB
    with pytest.raises(InfeasibleBudgetError):
        make_report('', bold, problem_of(TRACE, 12 * MB, 0))


def test_the_plan_of_a_run_stands_as_it_was_followed():
    """Its verdicts are not those that the policy would find for this budget."""
    run = run_of(13 * MB)
    other = dataclasses.replace(run, plan=dataclasses.replace(run.plan, policy='keep'))
    report = make_report('', POLICIES['keep'], problem_of(TRACE, 13 * MB, 0), [13 * MB], other)
    assert report.course.plan.verdicts == run.plan.verdicts
    assert report.measured is run.timeline
