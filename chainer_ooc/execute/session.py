"""A thread's out-of-core training: the state machine that finds out when iterations begin and end.

    idle --first function applied--> forward --backward begins--> backward --ends--> idle
                  ^                      |                            |
                  '------ an exception, or the graph dies ------------'

Functions that run while another one does (the backward of many applies some), and those under no_backprop_mode, belong
to no graph that backward will run; they run as in plain Chainer. So do calls with arguments that are no arrays, which
Chainer refuses with its own message, and those that a static graph records.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from chainer_ooc import config
from chainer_ooc.backends import BackendOptions
from chainer_ooc.backends.base import Backend
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.execute import log
from chainer_ooc.execute.alone import Evaluations, open_all
from chainer_ooc.execute.finished import Finished
from chainer_ooc.execute.functions.prototype import is_managed, may_write_inputs
from chainer_ooc.execute.graphs.graphs import Graphs
from chainer_ooc.execute.iteration.iteration import Iteration
from chainer_ooc.execute.iteration.left import hand_over
from chainer_ooc.execute.iteration.quiet import QuietIterations
from chainer_ooc.execute.lessons import Caught, DefaultBudget, Lessons, Patience, Unplanned
from chainer_ooc.execute.memory.residency import Residency
from chainer_ooc.execute.on_file import ParametersOnFile
from chainer_ooc.execute.other_threads import OtherThreads
from chainer_ooc.execute.recording.parameters import Parameters
from chainer_ooc.execute.shortage import explain, explain_outside, what_holds
from chainer_ooc.execute.storage.computing import RUNNING, forget_computations, is_computing, run_as
from chainer_ooc.execute.storage.reentry import LOCK
from chainer_ooc.execute.storage.storage import Token
from chainer_ooc.execute.tally import IterationStats
from chainer_ooc.plans.plan import Plan
from chainer_ooc.trace import Trace


class Session:
    """Everything that lives from one iteration to the next.

    Attributes:
        owner, device: the thread that it is of, and what that trains on, see `device_of`.
        settings: those of the iteration in hand.
        finished: the last one that has finished, or None.
        memory: what is in near memory, and moves it.
        on_file: the parameters that lie in far memory, or None if none do.
        passing: the thread that runs a backward pass here, or None; another one than the owner if it is lent.
        is_closed: it takes no more calls.
    """

    def __init__(self, owner: threading.Thread, device: str, settings: config.Settings, backend: Backend,
                 has_others: Callable[[], bool]):
        self.owner, self.device, self.settings = owner, device, settings
        log.set_level(settings.log_level)
        self.finished: Finished | None = None
        self.memory, self._meter = Residency(backend), backend.meter()
        blocks = None if settings.parameters is None else backend.file_backed
        self.on_file = None if blocks is None else ParametersOnFile(blocks, self._meter, settings.min_bytes)
        self._parameters = Parameters() if self.on_file is None else Parameters(self.on_file.is_on_file)
        self._graphs, self._around = Graphs(), backend.computing()
        self._evaluations = Evaluations(self.memory, self._parameters, self.on_file, self._around)
        self._iteration: Iteration | None = None
        self._patience, self._unplanned, self._caught = Patience(), Unplanned(), Caught()
        self._lessons = Lessons(self._graphs, self._patience)
        self._default_budget = DefaultBudget(self.memory, self._parameters)
        self._latest: Token | None = None  # of the last one that was in hand
        self._prepared = 0  # what the device had when the iteration in hand began
        self._other_threads = OtherThreads(has_others)
        self._quiet_iterations = QuietIterations(self.memory, self._parameters, self._other_threads)
        self.passing: threading.Thread | None = None
        self._planned_for: tuple[config.Settings, int] | None = None
        self.is_closed = self._is_calling = False  # a forward call of the iteration in hand computes
        self._disturbed = False  # what other threads compute has disturbed the iteration in hand

    # --- what the seams call ---------------------------------------------------------------------------------------

    def apply(self, function: Any, inputs: Sequence[Any]) -> tuple[Any, ...] | None:
        """Runs a forward call that is within no other; None, and nothing was run, if another thread has closed this."""
        if not is_managed(function, inputs):
            self._disturbed |= self.passing not in (None, threading.current_thread())
            return self._evaluations.run(function, inputs)
        try:
            RUNNING.is_foreign, RUNNING.call = False, function
            outputs = self._call(function, inputs)
            RUNNING.is_foreign = RUNNING.call = None
        except BaseException as error:
            self.fail(error, function, inputs)
            raise
        return outputs

    def _call(self, function: Any, inputs: Sequence[Any]) -> tuple[Any, ...] | None:
        with LOCK:
            if self.is_closed:
                return None
            if self.passing is not None:
                self._go_on()
            if self._caught.given_up is not None:
                self._caught.note_call(inputs)
            if self._iteration is None or self._iteration.is_over() or self._iteration.begins_anew(function, inputs):
                self._begin(function, inputs)
            iteration = self._iteration
            assert iteration is not None
            if self.on_file is not None and (left := self.on_file.before_call(inputs)):
                iteration.beside.parameters_left(any(left))
            is_quiet = iteration.goes_on_quietly(function, inputs)
            if not is_quiet:
                iteration.before_call(function, inputs)
            self._is_calling = True
        started = None if is_quiet else self.memory.backend.timestamp()
        with self._around:
            outputs: tuple[Any, ...] = (
                function._apply(inputs) if is_quiet else run_as(iteration.is_foreign, function._apply, inputs))
        span = None if is_quiet else (started, self.memory.backend.timestamp())
        with LOCK:
            self._is_calling = False
            if function.inputs is not None:
                if iteration is not self._iteration:
                    pass  # the session was closed meanwhile, and its account has no maps
                elif span is None:
                    iteration.after_quiet_call(function, inputs, outputs)
                else:
                    iteration.after_call(function, inputs, outputs, span)
                if iteration.is_forward_over():
                    self.memory.backend.offer()
                if self.on_file is not None:
                    self.on_file.after_call(inputs)
        return outputs

    def ran_within(self, inputs: Sequence[Any], graph: Sequence[Any]) -> None:
        """Notes what a function within another one's call or step was given, and its outputs if they are of a graph."""
        with LOCK:
            if self._iteration is not None:
                self._iteration.beside.note_within(inputs, RUNNING.call, graph)

    def step(self, thread: threading.Thread, run: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        """Runs one function's backward in the calling thread."""
        if self._iteration is None or RUNNING.is_foreign is not None:
            run(*arguments)
            return
        function = arguments[0]
        try:
            RUNNING.is_foreign = False
            with LOCK:  # the owner may have gone on meanwhile, and has another iteration in hand
                iteration = self._iteration if (self.passing or self.owner) is thread else None
                is_quiet = iteration is None or iteration.goes_on_quietly(function)
                needed = [] if iteration is None or is_quiet else iteration.before_step(function)
            started = None if is_quiet else self.memory.backend.timestamp()
            is_foreign = may_write_inputs(function) if iteration is None else iteration.is_foreign
            with self._around:
                run(*arguments) if is_quiet and iteration is not None else run_as(is_foreign, run, *arguments)
            with LOCK:
                if iteration is None or iteration is not self._iteration:
                    pass  # the same, or another thread has closed this
                elif is_quiet:
                    iteration.after_quiet_step(function)
                else:
                    iteration.after_step(function, needed, (started, self.memory.backend.timestamp()))
                if self.on_file is not None:
                    self.on_file.after_step(function, arguments[3])
            RUNNING.is_foreign = None
        except BaseException as error:
            self.fail(error, function)
            raise

    def backward_pass(self, backprop: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a backward pass, which consists of steps."""
        with LOCK:
            self._go_on()
            iteration = None if is_computing() else self._iteration
            if iteration is not None:
                self.passing = threading.current_thread()
        if iteration is None:
            return backprop(*args, **kwargs)
        try:
            with LOCK:
                if iteration is self._iteration:
                    iteration.begin_backward()
            result = backprop(*args, **kwargs)
            with LOCK:
                if iteration is self._iteration:
                    self.finished = iteration.end_backward()
                    self._unplanned.passed(iteration.spans_threads)
                    self._disturbed = iteration.recorder.measures and (
                        self._disturbed or self._other_threads.was_at_work(iteration.recorder.readers))
            if log.logger.isEnabledFor(logging.INFO):
                log.logger.info('%s', self.stats)
        except BaseException as error:
            self.fail(error)
            raise
        finally:
            if self.passing is threading.current_thread():
                self.passing = None
        return result

    def _go_on(self) -> None:
        """The calling thread goes on here: a backward pass that another one runs here ends without a plan."""
        if self.passing is not None and self.passing is not threading.current_thread():
            self._abandon()
            self.passing = None
            self._unplanned.went_on()

    def has_made(self, functions: Iterable[Any]) -> bool:
        """Whether any of these functions is of the graph of the iteration in hand."""
        return (made := self._iteration) is not None and any(made.calls().number(each) >= 0 for each in functions)

    def lends_itself(self, functions: Iterable[Any]) -> bool:
        """Lends itself to the calling thread for a pass over the iteration in hand; False if none of these is of that.

        Nor does it while another thread runs a pass or a forward call in it. `lent` has to follow.
        """
        thread = threading.current_thread()
        with LOCK:
            is_free = self.passing in (None, thread) and not (self._is_calling or self.is_closed)
            if not is_free or not self.has_made(functions):
                return False
            self.passing = thread
        return True

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Goes around what the calling thread does here, which is not the session's own."""
        self._other_threads.hand_over(threading.current_thread())
        try:
            with self.memory.backend.serving():
                yield
        finally:
            if self.passing is threading.current_thread():
                self.passing = None
            self._other_threads.hand_over(self.owner)

    def show(self, found: Sequence[Any], may_write: bool) -> None:
        """Notes which arrays hooks see, and may write to, until they see others or the backward pass ends."""
        with LOCK:
            is_its = (self.passing or self.owner) is threading.current_thread() and not is_computing()
            if is_its and self._iteration is not None:
                self._iteration.writes.show(found, may_write)
            elif may_write:
                open_all(found)

    def adopt(self, settings: config.Settings) -> bool:
        """Uses other settings from the next iteration on; False if they need another backend."""
        if self.is_closed or (settings is not self.settings
                              and BackendOptions.of(settings) != BackendOptions.of(self.settings)):
            return False
        if settings is not self.settings:
            self.settings = settings
            log.set_level(settings.log_level)
        return True

    def note_sent(self, parameters: Iterable[Any]) -> None:
        """See `Expected.note_sent`."""
        with LOCK:
            self._parameters.expected.note_sent(parameters)

    def is_idle(self) -> bool:
        """Whether none of its maps is away, and no thread runs a pass in it."""
        return self.memory.is_idle() and not (self.passing is not None and self.passing.is_alive())

    # --- what `chainer_ooc` offers ---------------------------------------------------------------------------------

    @property
    def stats(self) -> IterationStats | None:
        """Of the last finished iteration; waits for the device to finish it."""
        return None if self.finished is None else self.finished.stats

    def plan(self) -> Plan | None:
        """The plan that the last iteration follows, or had; None while it is recorded."""
        graph = self._graphs.latest() if self._iteration is None else self._iteration.following.graph
        return None if graph is None else graph.plan

    def traces(self) -> list[Trace]:
        """The recordings of the known graphs, that of the latest last."""
        with LOCK:
            self._end_finished()
            return self._graphs.traces()

    def refusal(self, policy: str) -> InfeasibleBudgetError:
        """What a budget of one byte is refused with under a policy: its floor is enough for each known graph.

        What iterations leave is counted as when they began: much of it, such as the loss that a Classifier has, goes
        before the next one does.
        """
        with LOCK:
            self._end_finished()
            return self._graphs.refusal_under(
                dataclasses.replace(self.settings, policy=policy),
                lambda models: self._parameters.standing(models.of(None), 0, models.added_to), self.memory.has_cut_off)

    def explain(self, error: MemoryError) -> str | None:
        """What to say of an error outside of functions, if anything."""
        return explain_outside(error, what_holds(self.memory, self._parameters, self.settings)[0])

    def close(self) -> None:
        """Ends the iteration in hand and closes the backend."""
        with LOCK:
            if self.on_file is not None:
                self.on_file.close()  # first: where there is no memory for what lies there, all goes on
            self.is_closed = True  # if this is interrupted, all that can be done is to close again
            self._graphs.planner.close()
            self._abandon()
            self.memory.close()

    # --- iterations ------------------------------------------------------------------------------------------------

    def _begin(self, function: Any, inputs: Sequence[Any]) -> None:
        self._end()
        if self.on_file is not None:
            self.on_file.take_from(self.settings.min_bytes)
            self.on_file.take(self._parameters.alive())  # after a fork, or what the program has put there
        self._graphs.set_terms(self.settings, self.memory.backend)
        if self._graphs.follow_file(self.settings.plan_file, self.memory.backend):
            self._patience.met(True)
        self._other_threads.watch()
        self._prepared = self.memory.backend.preparations()
        own_bytes, default = self.settings.budget_bytes, self._default_budget
        iteration = self._iteration = Iteration(
            self.settings, default.now_bytes() if own_bytes is None else own_bytes, self.memory, self._parameters,
            self._graphs, self._meter, self._quiet_iterations.end)
        self._latest = iteration.token
        if (self.settings, iteration.budget_bytes) != self._planned_for:
            self._quiet_iterations.end()  # another plan counts with all that is there
        self._planned_for = self.settings, iteration.budget_bytes
        iteration.open(function, inputs, default.most_bytes if own_bytes is None else lambda: 0,
                       self._patience.records)
        self._disturbed = not self._graphs.planner.rest(iteration.recorder.measures)  # or that would be measured
        self._quiet_iterations.begin(iteration, function, inputs)
        if iteration.quiet is None:
            iteration.room.settle()

    def _end_finished(self) -> None:
        """Ends an iteration that only waits for the next one to begin."""
        if self._iteration is not None and self._iteration.finished:
            self._end()

    def _end(self) -> None:
        iteration = self._iteration
        self.memory.abandon_dead()
        prepares = self.memory.backend.preparations() > self._prepared
        trace = None if iteration is None else iteration.close()
        self._iteration = None
        self.memory.finish_swap_outs()  # what is still leaving would count as standing in the next plan
        if iteration is None or not iteration.finished:
            self.memory.mend()  # an interrupt may have come where none is noticed
        hand_over(self.memory, self._latest, self.settings.min_bytes)
        if iteration is not None:
            may_go_on = iteration.following.may_be_given_up and not iteration.finished
            self._caught.given_up = iteration.calls() if may_go_on else None
            if iteration.finished and iteration.settings.budget_bytes is None:  # the session's are the next one's
                self._default_budget.note(max(iteration.budget_bytes, self.memory.tally.peak_bytes),
                                          iteration.beside.now.steady_bytes)
            self._lessons.take(iteration, trace, prepares, self._disturbed, self.memory.tally)
            self._quiet_iterations.is_over(iteration)

    def fail(self, error: BaseException, function: Any = None, inputs: Sequence[Any] | None = None) -> None:
        """Ends the iteration after an exception (P9), or a forward call (`inputs`) alone after one of its own.

        Raises:
            InfeasibleBudgetError, DeviceMemoryError: there was no room for what the function allocates.
        """
        forget_computations()
        if (self.passing or self.owner) is not threading.current_thread():
            return  # the owner has gone on meanwhile
        iteration, told = self._iteration, None
        try:
            if self._is_calling and iteration is not None and inputs is not None and self._caught.goes_on_after(error):
                with LOCK:
                    self._is_calling = False
                    iteration.forget_call(function, inputs, self._caught.begins_anew)
                return
            if function is not None and iteration is not None and isinstance(error, MemoryError):
                told = explain(error, function, inputs is None, iteration, self.memory, self._parameters)
            self._abandon()
        except BaseException:
            self._abandon()
            raise
        try:
            if told is not None:
                raise told from error
        finally:
            del told, error  # they hold this frame, and the program's with its arrays, until the collector comes

    def _abandon(self) -> None:
        with LOCK:
            if (iteration := self._iteration) is not None:
                iteration.abandon()
                self._iteration, self._is_calling, self._caught.given_up = None, False, iteration.calls()
                self._quiet_iterations.is_over(iteration)
                self._lessons.give_up(self.settings.profile_iterations)
            self.memory.finish_swap_outs()
            self.memory.mend()
            hand_over(self.memory, self._latest, self.settings.min_bytes)
