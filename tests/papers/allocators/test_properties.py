"""What holds for all allocators, all sequences and all iterations."""
import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainer_ooc.cost.costs import Costs
from chainer_ooc.papers.allocators.allocator import DeviceFullError, ExactAllocator
from chainer_ooc.papers.allocators.events import events_of, replay, smallest_capacity
from chainer_ooc.papers.allocators.pool import BestFitPool
from chainer_ooc.papers.allocators.virtual import MappedBlock, VirtualModel
from chainer_ooc.problem import Decision, Problem, Standing, Starts, Verdict, can_recompute
from chainer_ooc.schedule.schedule import lay_out
from chainer_ooc.simulate.simulator import simulate
from chainer_ooc.trace import Call, FeatureMap, Step, Trace

CHUNK = 2048
KINDS = {
    'exact': ExactAllocator,
    'pool': BestFitPool,
    'virtual': lambda capacity_bytes: VirtualModel(capacity_bytes, CHUNK),
    'virtual, small ones share': lambda capacity_bytes: VirtualModel(capacity_bytes, CHUNK, 1024),
}
each_kind = pytest.mark.parametrize('kind', KINDS.values(), ids=KINDS)

#: A malloc of so many bytes, or the free of the so-many-th live block.
ACTS = st.lists(st.tuples(st.booleans(), st.integers(0, 6000)), max_size=60)


def largest_free_bytes(allocator, live):
    """The largest request that can be met without giving cached memory back."""
    if isinstance(allocator, VirtualModel):
        taken = {address // CHUNK for block in live
                 for address in range(block.address, block.address + block.size_bytes, 512)}
        return (allocator.capacity_bytes // CHUNK - len(taken)) * CHUNK
    left_bytes = allocator.capacity_bytes - allocator.reserved_bytes
    if isinstance(allocator, BestFitPool):
        return max([left_bytes // 512 * 512, *(nbytes for _, nbytes in allocator.cached)])
    return left_bytes


def perform(allocator, acts):
    """Does what it can; yields the live blocks after each act."""
    live = []
    for is_malloc, number in acts:
        if is_malloc:
            try:
                live.append(allocator.malloc(number))
            except DeviceFullError:
                assert number > largest_free_bytes(allocator, live) or number < 1024
        elif live:
            allocator.free(live.pop(number % len(live)))
        yield live
    for block in live:
        allocator.free(block)


@each_kind
@given(acts=ACTS, capacity_bytes=st.integers(0, 30_000))
def test_live_blocks_never_overlap_and_bytes_add_up(kind, acts, capacity_bytes):
    allocator = kind(capacity_bytes)
    for live in perform(allocator, acts):
        blocks = sorted((block for block in live if block.nbytes), key=lambda block: block.address)
        assert all(one.address + one.size_bytes <= other.address for one, other in itertools.pairwise(blocks))
        assert all(block.nbytes <= block.size_bytes for block in blocks)
        chunks = [chunk for block in blocks if isinstance(block, MappedBlock) for chunk in block.chunks]
        assert len(chunks) == len({*chunks})
        assert allocator.used_bytes == sum(block.nbytes for block in blocks)
        assert allocator.used_bytes <= allocator.reserved_bytes <= capacity_bytes


@pytest.mark.parametrize(('kind', 'unit'), [*zip(KINDS.values(), (1, 512, CHUNK, CHUNK), strict=True)], ids=KINDS)
@given(acts=ACTS, capacity_bytes=st.integers(0, 30_000))
def test_when_all_is_freed_all_is_whole_again(kind, unit, acts, capacity_bytes):
    allocator = kind(capacity_bytes)
    for _ in perform(allocator, acts):
        pass
    assert allocator.used_bytes == 0
    if isinstance(allocator, BestFitPool):
        assert sum(nbytes for _, nbytes in allocator.cached) == allocator.reserved_bytes
    allocator.malloc(capacity_bytes // unit * unit)


@st.composite
def traces(draw):
    """An iteration whose calls and steps know their maps, so that chains of recomputations can be followed."""
    calls = draw(st.integers(1, 6))
    steps = draw(st.integers(0, 8))
    maps = [_map(draw, map_id, calls, steps) for map_id in range(draw(st.integers(0, 8)))]
    made = [[each for each in maps if each.producer == call] for call in range(calls)]
    known = [[each.id for each in maps if each.producer is None or each.producer < call] for call in range(calls)]
    return Trace(
        device='host',
        calls=tuple(Call(
            call, f'L{call}', tuple(draw(st.lists(st.sampled_from(known[call]), max_size=2)) if known[call] else ()),
            tuple(each.id for each in made[call]), (), draw(SECONDS),
            sum(each.nbytes for each in made[call]) + draw(BYTES), repeatable=True, other_bytes=draw(BYTES))
            for call in range(calls)),
        steps=tuple(Step(
            calls + number, -1, tuple(each.id for each in maps if calls + number in each.backward_uses), draw(SECONDS),
            draw(BYTES), draw(BYTES)) for number in range(steps)),
        maps=tuple(maps), seconds=1.0, write_bytes_per_second=1.0, read_bytes_per_second=1.0)


BYTES = st.integers(0, 50)
SECONDS = st.sampled_from([0.5, 1.0, 3.0, 20.0])


def _map(draw, map_id, calls, steps):
    producer = draw(st.none() | st.integers(0, calls - 1))
    last = draw(st.integers(producer or 0, calls - 1))
    uses = draw(st.sets(st.integers(calls, calls + steps - 1), max_size=4)) if steps else ()
    return FeatureMap(
        map_id, draw(st.integers(1, 50)), producer, False, bool(uses) or draw(st.booleans()),
        draw(st.booleans()) if producer is not None else True, last, tuple(sorted(uses)), (), '',
        last_alive=draw(st.integers(-1, calls + steps - 1)), held=draw(st.booleans()) and bool(uses))


@st.composite
def simulated(draw, recomputes=False):
    """A problem, a schedule that fits, and its timeline."""
    trace = draw(traces().map(_in_order_of_production))
    verdicts = tuple(Verdict.SWAP if each.retained and not each.foreign and draw(st.booleans()) else Verdict.KEEP
                     for each in trace.maps)
    if recomputes:
        able = can_recompute(trace, 1)
        verdicts = tuple(Verdict.RECOMPUTE if possible and draw(st.booleans()) else verdict
                         for possible, verdict in zip(able, verdicts, strict=True))
    seconds = tuple(each.seconds for each in (*trace.calls, *trace.steps))
    costs = Costs(seconds, draw(st.sampled_from([0.0, 1.0, 30.0])), draw(st.sampled_from([0.0, 1.0, 30.0])))
    problem = Problem(trace, costs, Standing(draw(BYTES), draw(BYTES)), 10**9, 1, recalls=draw(st.booleans()))
    decision = Decision(verdicts, Starts(ahead=draw(st.none() | st.integers(1, 3))),
                        synchronous=draw(st.booleans()), shares_chains=draw(st.booleans()),
                        mapped=draw(st.booleans()))
    floor_bytes = lay_out(problem, decision).floor_bytes
    problem = dataclasses.replace(problem, budget_bytes=floor_bytes + draw(BYTES))
    schedule = lay_out(problem, decision)
    return problem, schedule, simulate(problem, schedule)


def _in_order_of_production(trace):
    """Ids of maps grow with their producers, as in recorded traces."""
    order = sorted(trace.maps, key=lambda each: -1 if each.producer is None else each.producer)
    new = {each.id: number for number, each in enumerate(order)}
    return dataclasses.replace(
        trace, maps=tuple(dataclasses.replace(each, id=new[each.id]) for each in order),
        calls=tuple(dataclasses.replace(call, inputs=tuple(new[each] for each in call.inputs),
                                        outputs=tuple(new[each] for each in call.outputs)) for call in trace.calls),
        steps=tuple(dataclasses.replace(step, maps=tuple(new[each] for each in step.maps)) for step in trace.steps))


def used_in_each_position(events, trace):
    """The most bytes that live during the computation of each position, its edge left out."""
    most, live = [0] * trace.positions, {}
    for event in events:
        before = sum(live.values())
        if event.kind == 'malloc':
            live[event.block] = event.nbytes
        else:
            del live[event.block]
        if not event.at_edge:
            most[event.position] = max(most[event.position], before, sum(live.values()))
    return tuple(most)


@given(simulated())
def test_without_fragmentation_each_position_holds_what_the_simulator_says(iteration):
    problem, _course, timeline = iteration
    events = events_of(*iteration)
    assert used_in_each_position(events, problem.trace) == timeline.near_bytes
    assert timeline.peak_bytes <= replay(events, ExactAllocator(10**9)).peak_used_bytes <= problem.budget_bytes


@given(simulated(recomputes=True))
def test_a_chain_holds_no_more_than_the_simulator_says(iteration):
    problem, schedule, timeline = iteration
    restored = [sum(each.nbytes for each, made_at in zip(problem.trace.maps, schedule.chains.restored, strict=True)
                    if made_at == position) for position in range(problem.trace.positions)]
    for used_bytes, near_bytes, restored_bytes in zip(
            used_in_each_position(events_of(*iteration), problem.trace), timeline.near_bytes, restored, strict=True):
        assert near_bytes - restored_bytes <= used_bytes <= near_bytes


@given(simulated(recomputes=True))
def test_each_block_is_freed_once_after_its_malloc_but_for_the_first(iteration):
    live, standing = set(), events_of(*iteration)[0].block
    for event in events_of(*iteration):
        if event.kind == 'malloc':
            assert event.block not in live
            live.add(event.block)
        else:
            live.remove(event.block)
    assert live == {standing}


@given(simulated(recomputes=True))
def test_equal_input_gives_equal_output(iteration):
    events = events_of(*iteration)
    assert events == events_of(*iteration)
    for kind in KINDS.values():
        assert replay(events, kind(10**9), 2) == replay(events, kind(10**9), 2)
        assert smallest_capacity(events, kind) == smallest_capacity(events, kind)


@each_kind
@given(iteration=simulated(recomputes=True), iterations=st.integers(1, 3))
def test_the_smallest_capacity_is_enough_and_one_byte_less_is_not(kind, iteration, iterations):
    events = events_of(*iteration)
    enough = smallest_capacity(events, kind, iterations)
    assert replay(events, kind(enough), iterations).failed_at is None
    assert enough >= replay(events, ExactAllocator(10**9)).peak_used_bytes
    if enough:
        assert replay(events, kind(enough - 1), iterations).failed_at is not None


@given(simulated())
def test_the_reference_needs_its_peak_and_no_more(iteration):
    events = events_of(*iteration)
    assert smallest_capacity(events, ExactAllocator) == replay(events, ExactAllocator(10**9)).peak_used_bytes


@given(simulated())
def test_virtual_addresses_lose_less_than_a_chunk_for_each_live_block(iteration):
    events = events_of(*iteration)
    most = live = 0
    for event in events:
        live += bool(event.nbytes) * (1 if event.kind == 'malloc' else -1)
        most = max(most, live)
    enough = smallest_capacity(events, lambda capacity_bytes: VirtualModel(capacity_bytes, 16))
    peak_bytes = replay(events, ExactAllocator(10**9)).peak_used_bytes
    assert enough <= peak_bytes + most * 15
