"""Problems of all kinds for the simulator. Times are multiples of a power of two, so that sums are exact."""
import dataclasses

from hypothesis import strategies as st

from chainer_ooc.cost.costs import Costs
from chainer_ooc.problem import Decision, Problem, Standing, Starts, Verdict, can_leave, can_recompute
from chainer_ooc.schedule.schedule import lay_out
from chainer_ooc.trace import Call, FeatureMap, Step, Trace

MIN_BYTES = 5
BYTES = st.integers(0, 50)
WORKSPACE = st.integers(0, 15)
ROOM = st.integers(0, 15) | st.integers(0, 100)
SECONDS = st.integers(0, 40).map(lambda quarters: quarters / 4)
#: Factors 1 + slowdown are powers of two.
DRAG = st.sampled_from([0.0, 0.0, 1.0, 3.0])
BANDWIDTH = st.sampled_from([0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0])


@st.composite
def traces(draw):
    calls, steps = draw(st.integers(1, 8)), draw(st.integers(0, 10))
    producers = sorted((draw(st.none() | st.integers(0, calls - 1)) for _ in range(draw(st.integers(0, 10)))),
                       key=lambda producer: -1 if producer is None else producer)
    readers = [_some(draw, 0 if producer is None else producer + 1, calls) for producer in producers]
    maps = tuple(_map(draw, map_id, producer, max((*readers[map_id], producer or 0)), calls, steps)
                 for map_id, producer in enumerate(producers))
    return Trace(
        device='host', calls=tuple(Call(
            call, f'L{call}', tuple(map_id for map_id, found in enumerate(readers) if call in found),
            tuple(map_id for map_id, producer in enumerate(producers) if producer == call), (), 0.0,
            draw(WORKSPACE), repeatable=draw(st.booleans()), other_bytes=draw(WORKSPACE)) for call in range(calls)),
        steps=tuple(Step(position, -1, tuple(each.id for each in maps if position in each.backward_uses), 0.0,
                         draw(WORKSPACE), draw(WORKSPACE)) for position in range(calls, calls + steps)),
        maps=maps, seconds=0.0, write_bytes_per_second=0.0, read_bytes_per_second=0.0)


def _some(draw, first, end):
    return draw(st.sets(st.integers(first, end - 1), max_size=3)) if first < end else set()


def _map(draw, map_id, producer, last, calls, steps):
    uses = tuple(sorted(_some(draw, calls, calls + steps)))
    return FeatureMap(
        map_id, draw(BYTES), producer, draw(st.booleans()), bool(uses) or draw(st.booleans()),
        draw(st.integers(0, 5)) == 0, last, uses, (), '', last_alive=draw(st.integers(-1, calls + steps - 1)),
        held=bool(uses) and draw(st.integers(0, 5)) == 0)


@st.composite
def costs_of(draw, trace):
    return Costs(tuple(draw(SECONDS) for _ in range(trace.positions)), draw(BANDWIDTH), draw(BANDWIDTH),
                 draw(st.sampled_from([0.0, 0.0, 0.25, 3.0])), draw(DRAG))


@st.composite
def decisions(draw, trace):
    again = can_recompute(trace, MIN_BYTES)
    verdicts = tuple(draw(st.sampled_from([
        Verdict.KEEP, *[Verdict.SWAP] * (5 * can_leave(each, MIN_BYTES)), *[Verdict.RECOMPUTE] * (3 * again[each.id])]))
        for each in trace.maps)
    steps = range(trace.backward_start, trace.positions)
    starts = Starts(draw(st.none() | st.integers(1, 4)),
                    draw(st.none() | st.sets(st.sampled_from(steps)).map(sorted).map(tuple)) if steps else None,
                    draw(st.integers(0, 5)) > 0)
    leaves = {each.id: draw(st.integers(each.last_forward_use, len(trace.calls) - 1))
              for each, verdict in zip(trace.maps, verdicts, strict=True)
              if verdict is Verdict.SWAP and draw(st.integers(0, 3)) == 0}
    return Decision(verdicts, starts, leaves, draw(st.booleans()), draw(st.sampled_from([None, True, False])),
                    draw(st.integers(0, 3)) == 0)


@st.composite
def problems(draw):
    """A problem and the schedule of a decision on it, with room above the floor, or a little below it."""
    trace = draw(traces())
    decision = draw(decisions(trace))
    ample = Problem(trace, draw(costs_of(trace)), Standing(draw(BYTES), draw(BYTES)), 10**9, MIN_BYTES,
                    recalls=draw(st.integers(0, 3)) != 0)
    floor_bytes = lay_out(ample, decision).floor_bytes
    room_bytes = draw(ROOM | st.integers(-30, 0))
    problem = dataclasses.replace(ample, budget_bytes=max(0, floor_bytes + room_bytes))
    return problem, lay_out(problem, decision)


@st.composite
def problems_of_one_map(draw):
    """A map that leaves and comes back, and nothing else that moves."""
    calls, steps = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    use = draw(st.integers(calls, calls + steps - 1))
    left = draw(st.integers(0, calls - 1))
    trace = Trace(
        'host', tuple(Call(each, '', (), (), (), 0.0, draw(BYTES)) for each in range(calls)),
        tuple(Step(calls + each, -1, (), 0.0, draw(BYTES), 0) for each in range(steps)),
        (FeatureMap(0, draw(st.integers(MIN_BYTES, 60)), None, False, True, False, left, (use,), (), ''),),
        0.0, 0.0, 0.0)
    decision = Decision((Verdict.SWAP,), Starts(draw(st.none() | st.integers(0, 4))))
    ample = Problem(trace, draw(costs_of(trace)), Standing(0, 0), 10**9, MIN_BYTES)
    floor_bytes = lay_out(ample, decision).floor_bytes
    problem = dataclasses.replace(ample, budget_bytes=floor_bytes + draw(st.integers(0, 60)))
    return problem, lay_out(problem, decision)
