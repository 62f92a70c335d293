"""What holds for the timelines of all schedules, and that a second simulator finds the same ones."""
import dataclasses
import itertools

from hypothesis import given

from chainer_ooc.problem import Verdict
from chainer_ooc.simulate.simulator import run, simulate
from chainer_ooc.simulate.timeline import Cause, Stream
from support.examples import examples
from support.planning.literal_iterations import make_problem, run_problem
from support.planning.random_problems import problems, problems_of_one_map
from support.planning.reference_simulator import reference


def of(timeline, stream):
    return [task for task in timeline.tasks if task.stream is stream]


def computing_seconds(problem, schedule):
    """What each position computes, with what runs again before it."""
    seconds = problem.costs.seconds
    return [each + sum(seconds[call] for call in schedule.chains.calls_at.get(position, ()))
            for position, each in enumerate(seconds)]


@examples(300, report_multiple_bugs=False)
@given(problems())
def test_a_simulator_written_from_the_rules_alone_gives_the_same_timeline(given):
    problem, schedule = given
    found, expected = simulate(problem, schedule), reference(problem, schedule)
    assert found.tasks == expected.tasks
    assert (found.stalls, found.near_bytes) == (expected.stalls, expected.near_bytes)
    assert (found.seconds, found.peak_bytes) == (expected.seconds, expected.peak_bytes)
    assert found == expected


@examples(300, report_multiple_bugs=False)
@given(problems())
def test_what_moves_is_all_that_memory_holds_beside_the_schedule(given):
    problem, schedule = given
    timeline = simulate(problem, schedule)
    moving = [sum(problem.trace.maps[each].nbytes for each in maps) for maps in timeline.moving]
    assert [*timeline.near_bytes] == [need + nbytes for need, nbytes in zip(schedule.need, moving, strict=True)]


@given(problems())
def test_a_stream_does_one_thing_at_a_time_in_the_order_of_issue(given):
    timeline = simulate(*given)
    for stream in Stream:
        tasks = of(timeline, stream)
        assert all(task.start_seconds <= task.end_seconds for task in tasks)
        assert all(one.end_seconds <= other.start_seconds for one, other in itertools.pairwise(tasks))


@given(problems())
def test_tasks_are_exactly_the_work(given):
    problem, schedule = given
    timeline = simulate(problem, schedule)
    computations, maps = of(timeline, Stream.COMPUTE), problem.trace.maps
    assert [task.subject for task in computations] == list(range(problem.trace.positions))
    for task, seconds in zip(computations, computing_seconds(problem, schedule), strict=True):
        assert seconds <= task.end_seconds - task.start_seconds <= seconds * (1 + problem.costs.slowdown)
    swapped = [each for each, verdict in enumerate(schedule.verdicts) if verdict is Verdict.SWAP]
    assert sorted(task.subject for task in of(timeline, Stream.COPY_OUT)) == swapped
    came = [task.subject for task in of(timeline, Stream.COPY_IN)]
    assert len(set(came)) == len(came)
    assert set(came) <= {each for each in swapped if schedule.chains.uses[each]}
    assert all(task.end_seconds - task.start_seconds == problem.costs.write_seconds(maps[task.subject].nbytes)
               for task in of(timeline, Stream.COPY_OUT))
    assert all(task.end_seconds - task.start_seconds == problem.costs.read_seconds(maps[task.subject].nbytes)
               for task in of(timeline, Stream.COPY_IN))


@given(problems())
def test_computations_take_longer_beside_copies_and_not_elsewhere(given):
    problem, schedule = given
    timeline, slowdown = simulate(problem, schedule), problem.costs.slowdown
    for task, alone in zip(of(timeline, Stream.COMPUTE), computing_seconds(problem, schedule), strict=True):
        copying = _union_seconds([
            (max(task.start_seconds, copy.start_seconds), min(task.end_seconds, copy.end_seconds))
            for copy in (*of(timeline, Stream.COPY_OUT), *of(timeline, Stream.COPY_IN))])
        assert task.end_seconds - task.start_seconds == alone + copying * slowdown / (1 + slowdown)


def _union_seconds(spans):
    seconds, reached = 0.0, 0.0
    for start, end in sorted(spans):
        seconds += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return seconds


@given(problems())
def test_the_time_is_that_of_all_computations_and_all_stalls(given):
    problem, schedule = given
    timeline = simulate(problem, schedule)
    computed = sum(task.end_seconds - task.start_seconds for task in of(timeline, Stream.COMPUTE))
    assert timeline.seconds == computed + timeline.stall_seconds
    assert timeline.seconds == max((task.end_seconds for task in of(timeline, Stream.COMPUTE)), default=0.0)
    assert all(stall.seconds > 0 for stall in timeline.stalls)
    ends = [0.0, *(task.end_seconds for task in of(timeline, Stream.COMPUTE))]
    for task in of(timeline, Stream.COMPUTE):
        waited = sum(stall.seconds for stall in timeline.stalls if stall.position == task.subject)
        assert task.start_seconds == ends[task.subject] + waited


@given(problems())
def test_a_map_leaves_after_its_call_comes_after_it_left_and_is_there_before_it_is_read(given):
    problem, schedule = given
    timeline = simulate(problem, schedule)
    computations = of(timeline, Stream.COMPUTE)
    left = {task.subject: task for task in of(timeline, Stream.COPY_OUT)}
    for map_id, task in left.items():
        assert task.start_seconds >= computations[schedule.leaves[map_id]].end_seconds
    for task in of(timeline, Stream.COPY_IN):
        assert task.start_seconds >= left[task.subject].end_seconds
        assert task.end_seconds <= computations[schedule.chains.uses[task.subject][0]].start_seconds
    due = {each.map: each.start for each in schedule.swap_ins}
    edges = [0.0, *(each.end_seconds for each in computations)]
    assert all(task.start_seconds >= edges[due[task.subject]] for task in of(timeline, Stream.COPY_IN))


@given(problems())
def test_near_memory_never_exceeds_the_budget_if_the_course_fits(given):
    problem, schedule = given
    timeline = simulate(problem, schedule)
    if schedule.fits(problem.budget_bytes):
        assert max(timeline.near_bytes, default=0) <= problem.budget_bytes
    assert timeline.peak_bytes == max(timeline.near_bytes, default=0) >= schedule.floor_bytes
    assert all(near >= need for near, need in zip(timeline.near_bytes, schedule.need.tolist(), strict=True))


@given(problems())
def test_ten_runs_give_one_timeline_and_its_figures_are_those_of_a_run_without_a_log(given):
    timeline = simulate(*given)
    assert all(simulate(*given) == timeline for _ in range(9))
    assert run(*given) == (timeline.seconds, timeline.peak_bytes)


@given(problems())
def test_no_time_is_below_what_each_stream_has_to_do(given):
    problem, schedule = given
    timeline = simulate(problem, schedule)
    bounds, out_seconds = [sum(computing_seconds(problem, schedule))], {}
    total = 0.0
    for task in of(timeline, Stream.COPY_OUT):
        total += task.end_seconds - task.start_seconds
        out_seconds[task.subject] = total
    total = 0.0
    for task in of(timeline, Stream.COPY_IN):  # swap-outs that nobody waits for do not lengthen the iteration
        total += task.end_seconds - task.start_seconds
        bounds += [total, out_seconds[task.subject] + task.end_seconds - task.start_seconds]
    assert timeline.seconds >= max(bounds)


@given(problems())
def test_twice_the_times_are_twice_the_timeline(given):
    problem, schedule = given
    costs = problem.costs
    slower = dataclasses.replace(
        costs, seconds=tuple(2 * each for each in costs.seconds), latency_seconds=2 * costs.latency_seconds,
        write_bytes_per_second=costs.write_bytes_per_second / 2, read_bytes_per_second=costs.read_bytes_per_second / 2)
    once, twice = simulate(problem, schedule), simulate(dataclasses.replace(problem, costs=slower), schedule)
    assert twice.seconds == 2 * once.seconds
    assert twice.near_bytes == once.near_bytes
    assert twice.tasks == tuple(dataclasses.replace(
        task, start_seconds=2 * task.start_seconds, end_seconds=2 * task.end_seconds,
        recomputed_seconds=2 * task.recomputed_seconds) for task in once.tasks)
    assert twice.stalls == tuple(dataclasses.replace(stall, seconds=2 * stall.seconds) for stall in once.stalls)


@given(problems())
def test_copies_that_take_no_time_are_never_waited_for(given):
    problem, schedule = given
    instant = dataclasses.replace(
        problem.costs, write_bytes_per_second=0.0, read_bytes_per_second=0.0, latency_seconds=0.0)
    timeline = simulate(dataclasses.replace(problem, costs=instant), schedule)
    assert timeline.stalls == ()
    assert timeline.seconds == sum(computing_seconds(problem, schedule))


@given(problems())
def test_without_a_limit_nothing_waits_for_memory_and_only_synchronous_or_mapped_copies_out_are_waited_for(given):
    problem, schedule = given
    timeline = simulate(dataclasses.replace(problem, budget_bytes=10**9), schedule)
    causes = {stall.cause for stall in timeline.stalls}
    assert causes <= ({Cause.SWAP_IN, Cause.SWAP_OUT} if schedule.synchronous or schedule.mapped else {Cause.SWAP_IN})


@given(problems_of_one_map())
def test_a_faster_way_in_never_slows_an_iteration_of_one_map(given):
    problem, schedule = given
    seconds = [simulate(dataclasses.replace(problem, costs=dataclasses.replace(
        problem.costs, read_bytes_per_second=bandwidth)), schedule).seconds for bandwidth in (1.0, 2.0, 4.0, 64.0, 0.0)]
    assert seconds == sorted(seconds, reverse=True)


def test_a_faster_way_out_may_slow_an_iteration():
    # out at 1 byte a second: a is still leaving when position 3 wants it, and stays
    # out at 4 bytes a second: a has gone, and has to come back
    seconds = {out: run_problem(make_problem([1, 2, 1], [1], {'a': (4, 0, 0, [3])}, out=out)).seconds for out in (1, 4)}
    assert seconds == {1: 5, 4: 9}
