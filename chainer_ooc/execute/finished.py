"""An iteration that has ended, and what it can be asked: its statistics, and the timeline that was measured.

Both are worked out when they are asked for, as a device may be behind the program then, and are waited for. What of a
timeline was measured has the form of what the simulator predicts, so that both can be laid beside each other.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from chainer_ooc.config import Settings
from chainer_ooc.cost.costs import timed
from chainer_ooc.execute.graphs.graph import Graph
from chainer_ooc.execute.graphs.orders import Orders
from chainer_ooc.execute.recording.recorder import Span
from chainer_ooc.execute.tally import IterationStats, Stretch, Tally, freeze
from chainer_ooc.plans.plan import Plan
from chainer_ooc.plans.run import Run
from chainer_ooc.simulate.timeline import Stall, Stream, Task, Timeline
from chainer_ooc.trace import Trace


class Finished:
    """What is known of an iteration when its backward pass has ended.

    Args:
        tally: what it took.
        settings: of the iteration.
        budget_bytes: what it had to keep within.
        orders: the plan that it followed, and what that has stand beside the maps; none of a recorded one.
        graph: the known one that it was of, or None.
        moments: for each position, when it was computed, and what near memory held then; None if it ran as in plain
            Chainer, where nothing has to move.
    """

    def __init__(self, tally: Tally, settings: Settings, budget_bytes: int, orders: Orders, graph: Graph | None,
                 moments: tuple[tuple[Span, int], ...] | None):
        self._tally, self._settings, self._budget_bytes, self._orders = tally, settings, budget_bytes, orders
        self._graph, self._moments = graph, moments
        self._known = None if graph is None else (graph.trace, graph.times.costs)
        self._is_searching = graph is not None and graph.is_searching

    @functools.cached_property
    def stats(self) -> IterationStats:
        """What it took; waits for the device."""
        plan = None if self._known is None else self._orders.plan
        phase = 'profile' if plan is None and self._moments is not None else 'run'
        return freeze(self._tally, self._settings.policy, phase, self._budget_bytes, plan, self._is_searching)

    @contextlib.contextmanager
    def exchanging(self, nbytes: int) -> Iterator[None]:
        """Goes around an exchange of so many bytes of gradients with other ranks, and has its graph note the time."""
        stretch = Stretch(self._tally.device)
        yield
        stretch.end()
        if self._graph is not None:
            self._graph.times.note_exchange(nbytes, stretch.seconds)

    @functools.cached_property
    def run(self) -> Run | None:
        """As it ran, beside its plan; None if it followed none to its end. Waits for the device."""
        if self._known is None:
            return None
        trace, costs = self._known
        if self._moments is not None and len(self._moments) != trace.positions:
            return None
        plan, standing = replace(self._orders.plan, budget_bytes=self._budget_bytes), self._orders.standing
        planned_for = replace(timed(trace, costs), standing_forward_bytes=standing.forward_bytes,
                              standing_backward_bytes=standing.backward_bytes)  # all may be newer than the recording
        return Run(planned_for, plan, self._settings.min_bytes, self._timeline(trace))

    def in_core(self) -> Plan | None:
        """What it would have been with all maps in memory, as is predicted; None if it followed no plan."""
        return None if self._graph is None else self._graph.in_core(self._settings.min_bytes, self._orders.standing)

    def _timeline(self, trace: Trace) -> Timeline:
        tally, peak_bytes = self._tally, self.stats.peak_bytes
        if self._moments is None or tally.whole is None:
            return Timeline(tally.seconds, peak_bytes, (), (), ())
        course = _Course(tally, tally.whole, [span for span, _ in self._moments])
        return Timeline(tally.seconds, peak_bytes, (*course.computations(), *course.copies(trace)),
                        tuple(course.stalls()), tuple(nbytes for _, nbytes in self._moments))


class _Course:
    """When what happened, in seconds from the beginning of the iteration."""

    def __init__(self, tally: Tally, whole: Stretch, spans: list[Span]):
        self.tally, self.whole = tally, whole
        self.computed = [(self._at(start), self._at(end)) for start, end in spans]
        self._ends = [end for _, end in self.computed]

    def computations(self) -> Iterator[Task]:
        again_seconds = [0.0] * len(self.computed)
        for each in self.tally.recomputations:
            again_seconds[self._position(each)] += _whole(each.own_seconds())
        for position, (start, end) in enumerate(self.computed):
            again = again_seconds[position]
            yield Task(Stream.COMPUTE, position, max(0.0, start - again), end, again)

    def copies(self, trace: Trace) -> Iterator[Task]:
        """Those whose moments the device knows; not those of maps that earlier iterations have left."""
        for stream, map_id, copy in self.tally.copies:
            moments = copy.moments
            if moments is not None and 0 <= map_id < len(trace.maps) and trace.maps[map_id].nbytes == copy.nbytes:
                yield Task(stream, map_id, *map(self._at, moments))

    def stalls(self) -> Iterator[Stall]:
        for each in self.tally.stalls:
            seconds = _whole(each.own_seconds())
            if seconds > 0 and each.cause is not None:
                yield Stall(self._position(each), each.map, seconds, each.cause)

    def _position(self, stretch: Stretch) -> int:
        """The computation that a stretch comes before, or is in."""
        return min(bisect.bisect_left(self._ends, self._at(stretch.start)), len(self._ends) - 1)

    def _at(self, moment: Any) -> float:
        return _whole(self.whole.seconds_until(moment))


def _whole(seconds: float) -> float:
    """In whole nanoseconds, not below 0: what sums and clocks leave beyond means nothing."""
    return max(0.0, round(seconds, 9))
