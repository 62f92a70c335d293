"""What holds for the plans of all traces."""
import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.cost.costs import measured
from chainer_ooc.errors import InfeasibleBudgetError, OocError
from chainer_ooc.plans import making
from chainer_ooc.plans.plan import Plan, check_fit
from chainer_ooc.problem import EARLY, Decision, Problem, Standing, Verdict
from chainer_ooc.schedule.schedule import demand, lay_out
from chainer_ooc.trace import Call, FeatureMap, Step, Trace
from support.planning import drawn_problems
from support.planning.small_problems import draw_problem

BYTES = st.integers(0, 50)
MIN_BYTES = 5


@st.composite
def traces(draw):
    calls, steps = draw(st.integers(1, 6)), draw(st.integers(0, 8))
    maps = [_map(draw, map_id, calls, steps) for map_id in range(draw(st.integers(0, 8)))]
    return Trace(
        device='host', calls=tuple(Call(
            each, f'L{each}', (), tuple(row.id for row in maps if row.producer == each), (), 1.0, draw(BYTES),
            other_bytes=draw(BYTES)) for each in range(calls)),
        steps=tuple(Step(
            position, -1, tuple(row.id for row in maps if position in row.backward_uses), 1.0, draw(BYTES), draw(BYTES))
            for position in range(calls, calls + steps)),
        maps=tuple(maps), seconds=1.0, write_bytes_per_second=1.0, read_bytes_per_second=1.0)


def _map(draw, map_id, calls, steps):
    producer = draw(st.none() | st.integers(0, calls - 1))
    last = draw(st.integers(producer or 0, calls - 1))
    uses = draw(st.sets(st.integers(calls, calls + steps - 1), max_size=4)) if steps else ()
    return FeatureMap(
        map_id, draw(BYTES), producer, draw(st.booleans()), bool(uses) or draw(st.booleans()),
        draw(st.booleans()) if producer is not None else True, last, tuple(sorted(uses)), (), '',
        last_alive=draw(st.integers(-1, calls + steps - 1)))


STANDING = st.builds(Standing, BYTES, BYTES)
SWAPPING = st.sampled_from([POLICIES['swap-all'], POLICIES['swap-all-naive']])
FIXED = st.sampled_from([POLICIES['keep'], POLICIES['swap-all'], POLICIES['swap-all-naive']])  # whatever the budget
ANY = st.sampled_from(list(POLICIES.values()))
ROOM = st.integers(0, 200)
INSTANT = {'write_bytes_per_second': 0.0, 'read_bytes_per_second': 0.0}


def problem_of(trace, standing, budget_bytes):
    return Problem(trace, measured(trace), standing, budget_bytes, MIN_BYTES)


def make_plan(policy, trace, standing, budget_bytes):
    return making.make_plan(policy, problem_of(trace, standing, budget_bytes))


def floor_of(policy, trace, standing):
    tightest = policy.decide(problem_of(trace, standing, -1)).verdicts  # nothing fits: what a search falls back on
    return int(demand(trace, tightest, standing, MIN_BYTES).max(initial=0))


def plan_with_room(policy, trace, standing, room_bytes):
    return make_plan(policy, trace, standing, floor_of(policy, trace, standing) + room_bytes)


def need_of(plan, trace, standing):
    """What each position holds under a plan, swap-ins on their way included; written anew, position by position."""
    need = []
    for position in range(trace.positions):
        held = standing.forward_bytes if position < len(trace.calls) else standing.backward_bytes
        if position < len(trace.calls):
            held += trace.calls[position].peak_bytes + trace.calls[position].other_bytes
        else:
            step = trace.steps[position - len(trace.calls)]
            held += step.peak_bytes + step.other_bytes
        start_of = {each.map: each.start for each in plan.swap_ins}
        held += sum(each.nbytes for each, verdict in zip(trace.maps, plan.verdicts, strict=True)
                    if _is_there(each, verdict, position, trace, start_of))
        need.append(held)
    return need


def _is_there(each, verdict, position, trace, start_of):
    born = -1 if each.producer is None else each.producer
    if position <= born:
        return False
    if each.producer is None or each.foreign:
        return True
    if not each.retained:
        return position <= max(each.last_forward_use, each.last_alive)
    if verdict is Verdict.SWAP:
        back = start_of.get(each.id)
        return position <= each.last_forward_use or (back is not None and back <= position <= each.backward_uses[-1])
    if each.backward_uses and each.nbytes >= MIN_BYTES:
        return position <= each.backward_uses[-1]
    return True


@given(FIXED, traces(), STANDING, ROOM)
def test_no_position_needs_more_than_the_budget_and_the_peak_is_the_highest(policy, trace, standing, room_bytes):
    plan = plan_with_room(policy, dataclasses.replace(trace, **INSTANT), standing, room_bytes)
    need = need_of(plan, trace, standing)
    assert max(need) == plan.peak_bytes <= plan.budget_bytes


@given(FIXED, traces(), STANDING, ROOM)
def test_copies_that_take_time_keep_within_the_budget_too(policy, trace, standing, room_bytes):
    plan = plan_with_room(policy, trace, standing, room_bytes)
    assert floor_of(policy, trace, standing) <= plan.peak_bytes <= plan.budget_bytes


@given(SWAPPING, traces(), STANDING, ROOM)
def test_starts_never_decrease_and_none_is_after_its_use_or_in_forward(policy, trace, standing, room_bytes):
    plan = plan_with_room(policy, trace, standing, room_bytes)
    begun = [each.start for each in plan.swap_ins]
    assert begun == sorted(begun)
    uses = [each.use for each in plan.swap_ins]
    assert uses == sorted(uses)
    assert all(trace.backward_start <= each.start <= each.use for each in plan.swap_ins)


@given(SWAPPING, traces(), STANDING, ROOM)
def test_each_swapped_map_that_is_read_comes_back_once_for_its_first_use(policy, trace, standing, room_bytes):
    plan = plan_with_room(policy, trace, standing, room_bytes)
    expected = {each.id: each.backward_uses[0] for each, verdict in zip(trace.maps, plan.verdicts, strict=True)
                if verdict is Verdict.SWAP and each.backward_uses}
    assert {each.map: each.use for each in plan.swap_ins} == expected
    assert len(plan.swap_ins) == len(expected)


@given(traces(), STANDING, ROOM)
def test_early_starts_are_never_later_than_naive_ones(trace, standing, room_bytes):
    early = plan_with_room(POLICIES['swap-all'], trace, standing, room_bytes)
    naive = plan_with_room(POLICIES['swap-all-naive'], trace, standing, room_bytes)
    assert [each.map for each in early.swap_ins] == [each.map for each in naive.swap_ins]
    for one, other in zip(early.swap_ins, naive.swap_ins, strict=True):
        assert one.start <= other.start


@given(SWAPPING, traces(), STANDING, ROOM)
def test_no_swap_in_could_start_a_position_earlier(policy, trace, standing, room_bytes):
    plan = plan_with_room(policy, trace, standing, room_bytes)
    free = plan.budget_bytes - demand(trace, plan.verdicts, standing, MIN_BYTES)
    behind = trace.backward_start
    is_early = policy.decide(problem_of(trace, standing, plan.budget_bytes)).starts.ahead is None
    for each in plan.swap_ins:
        nbytes = trace.maps[each.map].nbytes
        first = behind if is_early else max(behind, each.use - 1)
        assert each.start == first or free[each.start - 1] < nbytes
        free[each.start:each.use] -= nbytes
        behind = each.start


@given(FIXED, traces(), STANDING)
def test_the_floor_has_a_plan_and_a_byte_less_has_none(policy, trace, standing):
    floor_bytes = floor_of(policy, trace, standing)
    plan = make_plan(policy, trace, standing, floor_bytes)
    assert plan.peak_bytes == floor_bytes
    with pytest.raises(InfeasibleBudgetError) as caught:
        make_plan(policy, trace, standing, floor_bytes - 1)
    assert caught.value.floor_bytes == floor_bytes
    need = demand(trace, plan.verdicts, standing, MIN_BYTES)
    assert caught.value.where in {trace.name_of(int(each)) for each in np.flatnonzero(need == floor_bytes)}


@given(FIXED, traces(), STANDING, ROOM, ROOM)
def test_the_peak_lies_between_the_floor_and_the_budget_and_ends_when_all_is_early(policy, trace, standing, room, more):
    floor_bytes = floor_of(policy, trace, standing)
    assert floor_bytes <= plan_with_room(policy, trace, standing, room).peak_bytes <= floor_bytes + room
    everything = sum(each.nbytes for each in trace.maps)
    ample = plan_with_room(policy, trace, standing, everything)
    other = plan_with_room(policy, trace, standing, everything + more)
    assert (ample.peak_bytes, ample.swap_ins) == (other.peak_bytes, other.swap_ins)


@given(traces(), STANDING)
def test_swapping_never_raises_the_floor(trace, standing):
    assert floor_of(POLICIES['swap-all'], trace, standing) <= floor_of(POLICIES['keep'], trace, standing)


@given(ANY, traces(), STANDING, st.integers(1, 600))
def test_any_policy_keeps_within_the_budget_or_names_one_that_works(policy, trace, standing, budget_bytes):
    try:
        plan = make_plan(policy, trace, standing, budget_bytes)
    except InfeasibleBudgetError as error:
        budget_bytes = error.floor_bytes
        plan = make_plan(policy, trace, standing, budget_bytes)
    assert plan.peak_bytes <= plan.budget_bytes == budget_bytes


@given(ANY, drawn_problems.problems(), st.floats(0, 1))
def test_a_plan_of_any_policy_fits_its_trace_as_files_of_plans_want_it(policy, problem, share):
    kept = making.make_plan(POLICIES['keep'], dataclasses.replace(problem, budget_bytes=10**9))
    try:
        making.make_plan(policy, dataclasses.replace(problem, budget_bytes=1))
    except InfeasibleBudgetError as refused:  # where it is short of memory, at one moment or at many
        budget_bytes = refused.floor_bytes + int(share * max(0, kept.peak_bytes - refused.floor_bytes))
        problem = dataclasses.replace(problem, budget_bytes=budget_bytes)
    plan = making.make_plan(policy, problem)
    check_fit(plan, problem.trace)
    assert Plan.from_json(plan.to_json()) == plan


@given(ANY, traces(), STANDING, ROOM)
def test_ten_plans_of_one_trace_are_equal(policy, trace, standing, room_bytes):
    budget_bytes = floor_of(policy, trace, standing) + room_bytes
    try:
        first = make_plan(policy, trace, standing, budget_bytes)
    except InfeasibleBudgetError as refused:  # swap-ins that start without a look at memory need more
        budget_bytes = refused.floor_bytes
        first = make_plan(policy, trace, standing, budget_bytes)
    for _ in range(9):
        copied = dataclasses.replace(Trace.from_json(trace.to_json()))
        assert make_plan(policy, copied, standing, budget_bytes) == first


def test_the_decision_of_a_plan_gives_the_plan_again():
    """Of every policy, whatever its leaves, starts and shared chains."""
    seen = set()
    for seed in range(60):
        problem = draw_problem(seed)
        for policy in POLICIES.values():
            try:
                plan = making.make_plan(policy, problem)
            except InfeasibleBudgetError:
                continue
            decision = plan.decision()
            again = making.make_plan(dataclasses.replace(policy, decide=lambda _, decision=decision: decision), problem)
            assert again == plan, (seed, policy.name)
            early = tuple(each.start for each in plan.swap_ins) == tuple(
                each.start for each in schedule_of(problem, dataclasses.replace(decision, starts=EARLY)))
            seen |= {('starts', early), ('synchronous', plan.synchronous), ('mapped', plan.mapped),
                     ('shared', plan.chains.shared is True), ('leaves', any(
                         leave != each.leaves_at for each, leave in zip(problem.trace.maps, plan.leaves, strict=True)))}
    assert {('starts', False), ('synchronous', True), ('mapped', True), ('shared', False), ('leaves', True)} <= seen


def test_a_plan_of_mapped_maps_starts_its_swap_ins_where_it_did_when_it_is_followed_elsewhere():
    """They take none of the budget, however little of it is left: nothing is gained by a later start."""
    tight = 0
    for seed in range(12):
        problem = draw_problem(seed)
        try:
            plan = making.make_plan(POLICIES['unified'], problem)
        except InfeasibleBudgetError:
            continue
        assert making.make_as_decided(POLICIES['unified'], problem, plan.decision()) == plan, seed
        tight += bool(plan.swap_ins)
    assert tight


def asking(name):
    """A policy that notes which budgets it is asked about, and the list of them."""
    asked = []

    def decide(problem):
        asked.append(problem.budget_bytes)
        return POLICIES[name].decide(problem)

    return dataclasses.replace(POLICIES[name], decide=decide), asked


def test_a_policy_is_asked_once_about_each_budget_that_is_tried():
    drawn, (policy, asked) = draw_problem(58), asking('superneurons')
    making.plan_within(policy, dataclasses.replace(drawn, budget_bytes=int(1.1 * drawn.budget_bytes)))
    assert len(asked) == len(set(asked)) > 1
    asked.clear()
    with pytest.raises(InfeasibleBudgetError):
        making.plan_within(policy, dataclasses.replace(drawn, budget_bytes=1))
    assert len(asked) == len(set(asked)) and asked.count(1) == 1  # there is none below


@pytest.mark.parametrize('name', POLICIES)
def test_a_refusal_asks_a_policy_about_no_budget_twice(name):
    for seed in range(12):
        problem, (policy, asked) = draw_problem(seed), asking(name)
        for make in (making.plan_within, making.make_plan):
            asked.clear()
            with pytest.raises(InfeasibleBudgetError):
                make(policy, dataclasses.replace(problem, budget_bytes=1))
            assert asked and len(asked) == len(set(asked)), (seed, make, asked)


@pytest.mark.parametrize('name', POLICIES)
def test_no_budget_works_that_is_much_smaller_than_the_floor_that_is_named(name):
    """That of superneurons was too high by a fifth and more, where a budget below has it decide otherwise."""
    for seed in range(120):
        problem = draw_problem(seed)
        floor = making.floor_of(POLICIES[name], problem)
        for share in (0.75, 0.7, 0.6) if floor is not None else ():
            with pytest.raises(InfeasibleBudgetError):
                making.plan_within(POLICIES[name], dataclasses.replace(
                    problem, budget_bytes=max(1, int(share * floor.floor_bytes))))


def test_the_floor_of_mapped_maps_may_be_less_than_any_copy_would_need():
    less = 0
    for seed in range(60):
        problem = draw_problem(seed)
        floor = making.floor_of(POLICIES['unified'], problem)
        needed_bytes = lay_out(problem, POLICIES['unified'].decide(dataclasses.replace(problem, budget_bytes=1)))
        assert floor is None or floor.floor_bytes <= needed_bytes.needed_bytes, seed
        less += floor is not None and floor.floor_bytes < making._least_bytes(problem)
    assert less


def test_a_decision_that_gives_a_map_what_it_cannot_have_here_names_no_budget():
    problem = draw_problem(3)
    decision = Decision((Verdict.RECOMPUTE,) * len(problem.trace.maps))
    with pytest.raises(OocError, match='the decision cannot be followed here: map 0 cannot be recomputed') as refused:
        making.make_as_decided(POLICIES['pooch'], problem, decision)
    assert not isinstance(refused.value, InfeasibleBudgetError)


def schedule_of(problem, decision):
    return lay_out(problem, decision).swap_ins


def test_no_decision_needs_less_than_what_makes_a_budget_hopeless():
    tight = 0
    for seed in range(300):
        problem = draw_problem(seed)
        least_bytes = making._least_bytes(problem)
        for name, policy in POLICIES.items():
            if name != 'unified':  # its maps take none of the budget in backward
                decision = policy.decide(dataclasses.replace(problem, budget_bytes=1))
                needed_bytes = lay_out(problem, decision).floor_bytes
                assert needed_bytes >= least_bytes, (seed, name)
                tight += needed_bytes == least_bytes
    assert tight


def test_a_policy_that_may_need_more_is_not_asked_about_budgets_that_no_decision_is_enough_for():
    """Each question may be a long replay."""
    drawn, (policy, asked) = draw_problem(58), asking('tensor-cache')
    with pytest.raises(InfeasibleBudgetError):
        making.plan_within(policy, dataclasses.replace(drawn, budget_bytes=1))
    assert min(asked) == making._least_bytes(drawn)
