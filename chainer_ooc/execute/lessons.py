"""What a session learns from iterations for the next ones.

    Lessons         what graphs and plans learn from an iteration that has ended
    Patience        for how long iterations are recorded because another graph may come
    DefaultBudget   the budget where the program has set none
    Caught          whether the program goes on after errors of forward calls
    Unplanned       what a program is told whose threads leave nothing to make plans of
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from chainer_ooc.errors import OocError
from chainer_ooc.execute import log
from chainer_ooc.execute.graphs.graph import Graph
from chainer_ooc.execute.graphs.graphs import Graphs
from chainer_ooc.execute.graphs.reuse import note_that_it_makes_graphs
from chainer_ooc.execute.graphs.times import timing_of
from chainer_ooc.execute.iteration.comparison import Calls
from chainer_ooc.execute.iteration.iteration import Iteration
from chainer_ooc.execute.memory.residency import Residency
from chainer_ooc.execute.recording.parameters import Parameters
from chainer_ooc.execute.tally import Tally
from chainer_ooc.trace import Trace
from chainer_ooc.warning import warn

FIRST_PATIENCE = 8

#: Of all iterations, those that may be recorded in vain, beyond the first of them.
SHARE_IN_VAIN = 1 / 8
FIRST_IN_VAIN = 64

#: Of unknown graphs that need no plan, one of so many is recorded: where memory is short some day, a few are known.
RECORDED_OF = 32

#: So many iterations in a row are no accident.
IN_A_ROW = 3

_GOES_ON = ('a thread applied a function, or began a backward pass, before the one that another thread runs over its '
            'graph had ended, {} times in a row: such iterations follow no plan, and no budget is checked; wait for '
            'the pass first (docs/guide.md, Threads and forks)')
_SPANS = ('{} backward passes in a row have read feature maps of a forward pass in another thread: that part of the '
          'graph follows no plan, and no budget is checked there; run each forward pass in one thread (docs/guide.md, '
          'Threads and forks)')


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
            else:
                iteration.beside.tell_quiet(followed)
        iteration.token.graph = graph  # of one that it has left its maps are not

    def give_up(self, profile_iterations: int) -> None:
        """An iteration had no end."""
        if not self._is_known(profile_iterations):
            self._patience.met(False)

    def _record(self, iteration: Iteration, trace: Trace, prepares: bool, disturbed: bool) -> Graph:
        graph = self._graphs.add(trace, iteration.recorder.measures)
        graph.is_disturbed = disturbed
        graph.preparing += prepares
        graph.used.added_to = iteration.beside.added_to if iteration.recorder.measures else None
        iterations = iteration.settings.profile_iterations
        if graph.is_recorded(iterations + 1):
            self._patience.wait()  # it was known, and could not be followed; what is recorded for is to come
        else:
            self._patience.met(self._is_known(iterations))
        log.logger.info('recorded a graph of %d calls, %d feature maps', len(trace.calls), len(trace.maps))
        return graph

    def _follow(self, iteration: Iteration, graph: Graph, prepares: bool, tally: Tally) -> None:
        self._graphs.use(graph)
        graph.has_failing_calls = iteration.has_failing_calls
        recorder = iteration.recorder
        if not iteration.recorder.measures and recorder.next_position == graph.trace.positions:
            graph.note_shortage(tally.missing_bytes)
            if not prepares and graph.note_followed():
                predicted_seconds = iteration.following.orders.plan.seconds
                self._timed = functools.partial(graph.note_timing, graph.plan, functools.partial(
                    timing_of, recorder, tally.snapshot(), predicted_seconds))
        if iteration.finished and iteration.following.is_outgrown(iteration.recorder.maps_bytes()):
            self._graphs.miss('')
            self._patience.missed()
        elif iteration.finished and self._is_known(iteration.settings.profile_iterations):
            self._patience.wait()

    def _miss(self, iteration: Iteration) -> None:
        known = iteration.resembled
        if known is not None and [each.label for each in iteration.recorder.calls] == [
                each.label for each in known.trace.calls]:
            self._graphs.use(known)
            known.has_failing_calls = True
            self._patience.wait()
            return
        ran_quietly = iteration.was_quiet or iteration.quiet is not None
        self._graphs.miss('' if ran_quietly else iteration.recorder.fingerprint())
        if iteration.following.ample is not None:
            self._patience.pass_over()
        elif iteration.following.left:
            self._patience.missed()

    def _is_known(self, profile_iterations: int) -> bool:
        graph = self._graphs.latest()
        return graph is not None and graph.is_recorded(profile_iterations)


class Patience:
    """Decides whether the next iteration is recorded (`records`), because another graph than the known ones may come.

        recorded --a graph is known--> calm --one has none that is known--> recorded --its like is known--> calm
                                                                               |
                                                                               '--it does not come again--> calm

    A graph that ran and was not recorded can only be recorded when it comes again. Recording takes time:
    `FIRST_PATIENCE` iterations are recorded for it, and twice as many each time that was too few. Where graphs keep
    coming once only, such as the lengths of rare sentences, no more than a share of all iterations is recorded so.
    """

    def __init__(self) -> None:
        self.records = True
        self._most = FIRST_PATIENCE
        self._waited = 0
        self._ran_out = False
        self._iterations = self._in_vain = self._passed_over = 0

    def met(self, is_known: bool) -> None:
        """A graph was recorded: it is known now, or has to be recorded once more."""
        self.records, self._waited, self._ran_out = not is_known, 0, False

    def missed(self) -> None:
        """An iteration had another graph than the known ones, and was not recorded as a whole."""
        if self._ran_out:
            self._most *= 2
        self.records, self._waited, self._ran_out = self._may_wait(), 0, False

    def wait(self) -> None:
        """An iteration had a known graph."""
        self._iterations += 1
        self._waited += 1
        self._in_vain += self.records
        self._ran_out |= self.records and self._waited >= self._most
        self.records = self.records and not self._ran_out and self._may_wait()

    def pass_over(self) -> None:
        """An iteration had an unknown graph, and was not recorded, as memory is ample."""
        self._passed_over += 1
        self.records = self._passed_over % RECORDED_OF == 0

    def _may_wait(self) -> bool:
        return self._in_vain < FIRST_IN_VAIN + SHARE_IN_VAIN * self._iterations


class DefaultBudget:
    """The budget where the program has set none: what the device has free, or more where no plan keeps within that."""

    def __init__(self, memory: Residency, parameters: Parameters):
        self._memory = memory
        self._parameters = parameters
        self._before_bytes: int | None = None
        self._taken_bytes = self._steady_bytes = 0

    def note(self, taken_bytes: int, steady_bytes: int) -> None:
        """An iteration without a budget has taken so much, or might have; parameters and their state were of it."""
        self._taken_bytes, self._steady_bytes = taken_bytes, steady_bytes

    def now_bytes(self) -> int:
        """What the next iteration is planned within."""
        beside = self._parameters.beside()
        self._memory.stands(beside.total_bytes)
        budget_bytes = self._memory.backend.default_budget_bytes(self._memory.held_bytes(), self._before_bytes)
        # Before the first iteration it is not known which of the memory in use is parameters; there may be none.
        if beside.steady_bytes or self._taken_bytes:
            self._before_bytes = budget_bytes
        return budget_bytes

    def most_bytes(self) -> int:
        """What a plan may take where none keeps within that: what is free, or has been taken before."""
        more_bytes = max(0, self._parameters.beside().steady_bytes - self._steady_bytes)
        return max(self._memory.backend.most_budget_bytes(self._memory.held_bytes()), self._taken_bytes + more_bytes)


class Caught:
    """Errors of forward calls that the program catches, to go on with the graph (P9).

    Whether it will, nobody can know when the first one comes: that ends the iteration, so that nothing is left of it
    where the program ends, or takes another batch. Where a later call reads what the iteration had made, the program
    goes on after such errors. From then on they end their calls alone, which are no part of the graph.

    Then a call like the first one seems to begin the next iteration. Where a later one reads what was made before the
    error, it does not either.

    Attributes:
        given_up: the calls of the last iteration that was given up, until the next one ends; or None.
        begins_anew: a call like the first one that comes after an error begins an iteration.
    """

    given_up: Calls | None = None
    begins_anew = True
    _goes_on = False

    def note_call(self, inputs: Sequence[Any]) -> None:
        """A call after what was given up: it may read that."""
        if self.given_up is not None and self.given_up.is_read_by(inputs):
            self.begins_anew &= not self._goes_on
            self._goes_on, self.given_up = True, None

    def goes_on_after(self, error: BaseException) -> bool:
        """Whether the program goes on after a call's own error, as this one is: not for want of memory, nor of ours."""
        return self._goes_on and isinstance(error, Exception) and not isinstance(error, (MemoryError, OocError))


class Unplanned:
    """Tells a program, once, that its threads leave nothing that a plan could be made of.

    Such iterations have the right bits and move whatever they can, but follow no plan, for ever, and no budget is
    refused. Counted are those in a row, also of iterations that follow no plan in part.
    """

    def __init__(self) -> None:
        self._counts = {_GOES_ON: 0, _SPANS: 0}

    def went_on(self) -> None:
        """The session's own thread has gone on in the midst of another one's backward pass."""
        self._count(_GOES_ON, True)

    def passed(self, spans_threads: bool) -> None:
        """A backward pass has ended; whether maps that it has read are of another session."""
        self._count(_GOES_ON, False)
        self._count(_SPANS, spans_threads)

    def _count(self, why: str, once_more: bool) -> None:
        count = self._counts[why]
        if count < IN_A_ROW:
            self._counts[why] = count + 1 if once_more else 0
            if self._counts[why] == IN_A_ROW:
                warn(why.format(IN_A_ROW), RuntimeWarning)
