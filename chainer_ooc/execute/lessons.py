"""What the next plans learn from an iteration that has ended."""

from __future__ import annotations

import functools
from collections.abc import Callable

from chainer_ooc.execute import log
from chainer_ooc.execute.graphs.graph import Graph
from chainer_ooc.execute.graphs.graphs import Graphs, note_that_it_makes_graphs
from chainer_ooc.execute.graphs.patience import Patience
from chainer_ooc.execute.graphs.times import timing_of
from chainer_ooc.execute.iteration.iteration import Iteration
from chainer_ooc.execute.tally import Tally
from chainer_ooc.trace import Trace


class Lessons:
    """Has graphs and plans know what iterations have told; `patience` decides which of them are recorded."""

    def __init__(self, graphs: Graphs, patience: Patience):
        self._graphs = graphs
        self._patience = patience
        self._timed: Callable[[], None] | None = None  # of the last iteration, which a device may still be at

    def take(self, iteration: Iteration, trace: Trace | None, prepares: bool, disturbed: bool, tally: Tally) -> None:
        """Takes what there is.

        Args:
            iteration: it is closed.
            trace: its recording, if it was recorded as a whole.
            prepares: it has compiled something or the like, so that its times are not those of the next ones.
            disturbed: what other threads compute may be in its recording.
            tally: what it took.
        """
        timed, self._timed = self._timed, None
        graph = iteration.following.graph
        if trace is not None:
            graph = iteration.token.graph = self._record(iteration, trace, prepares, disturbed)
        elif graph is not None:
            self._follow(iteration, graph, prepares, tally)
        elif iteration.finished:
            self._miss(iteration)
        if timed is not None:
            timed()
        if (followed := iteration.token.graph) is not None:
            if iteration.makes_graphs:
                note_that_it_makes_graphs(followed)
            if iteration.quiet is None:
                iteration.room.tell(followed)
        iteration.token.graph = graph  # of one that it has left its maps are not

    def give_up(self, profile_iterations: int) -> None:
        """An iteration had no end."""
        if not self._is_known(profile_iterations):
            self._patience.met(False)

    def _record(self, iteration: Iteration, trace: Trace, prepares: bool, disturbed: bool) -> Graph:
        graph = self._graphs.add(trace, iteration.recorder.measures)
        graph.is_disturbed = disturbed
        graph.preparing += prepares
        graph.used.adds_up = not iteration.recorder.measures or iteration.room.adds_up
        iterations = iteration.settings.profile_iterations
        if graph.is_recorded(iterations + 1):
            self._patience.wait()  # it was known, and could not be followed; what is recorded for is to come
        else:
            self._patience.met(self._is_known(iterations))
        log.logger.info('recorded a graph of %d calls, %d feature maps', len(trace.calls), len(trace.maps))
        return graph

    def _follow(self, iteration: Iteration, graph: Graph, prepares: bool, tally: Tally) -> None:
        self._graphs.use(graph)
        recorder = iteration.recorder
        if not iteration.recorder.measures and recorder.next_position == graph.trace.positions:
            graph.note_shortage(tally.missing_bytes)
            if not prepares and graph.has_followed():
                predicted_seconds = iteration.following.orders.plan.seconds
                self._timed = functools.partial(graph.note_timing, graph.plan, functools.partial(
                    timing_of, recorder, tally.snapshot(), predicted_seconds))
        if iteration.finished and iteration.following.is_outgrown(iteration.recorder.maps_bytes()):
            self._graphs.miss('')
            self._patience.missed()
        elif iteration.finished and self._is_known(iteration.settings.profile_iterations):
            self._patience.wait()

    def _miss(self, iteration: Iteration) -> None:
        ran_quietly = iteration.was_quiet or iteration.quiet is not None
        self._graphs.miss('' if ran_quietly else iteration.recorder.fingerprint())
        if iteration.following.left:
            self._patience.missed()
        elif iteration.following.once_only is not None:
            self._patience.pass_over()

    def _is_known(self, profile_iterations: int) -> bool:
        graph = self._graphs.latest()
        return graph is not None and graph.is_recorded(profile_iterations)
