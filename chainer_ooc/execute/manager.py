"""The functions that the seam patch calls: each thread has a session of its own for each device that it trains on.

A session is made when a thread first applies a function to arrays of its device. The thread's *current* session is the
one that it used last; the steps of a backward pass belong to that. A pass over a graph that another thread has made is
part of that one's iteration, whose session is lent meanwhile::

    thread 1    forward, in its session                       |  update, the next forward pass
    thread 2                            backward, in the same |
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from chainer_ooc import config
from chainer_ooc.backends import BackendOptions, choose, device_of, expect_arrays, give_back
from chainer_ooc.execute.alone import run_alone
from chainer_ooc.execute.functions.prototype import may_write, may_write_inputs
from chainer_ooc.execute.on_file import ParametersOnFile, run_whole
from chainer_ooc.execute.session import Session
from chainer_ooc.execute.shortage import advise_on_errors, explain_outside
from chainer_ooc.execute.storage.account import find
from chainer_ooc.execute.storage.computing import RUNNING, computing, is_computing, only_reads, run_as
from chainer_ooc.execute.storage.reentry import LOCK, copies, interrupted, is_locked, refusal
from chainer_ooc.execute.storage.slots import Away, OutputSlot, array_in_slot
from chainer_ooc.execute.tally import IterationStats
from chainer_ooc.plans.run import Run
from chainer_ooc.ranks.agreement import forget as forget_agreement
from chainer_ooc.ranks.failure import end_all_on_errors
from chainer_ooc.trace import Trace

_Thread = threading.Thread
_sessions: dict[tuple[_Thread, str], Session] = {}  # by thread and device
_current: dict[_Thread, Session] = {}  # what a thread used last, or is lent


def expect_training() -> None:
    """chainer.config.ooc is set: a model may be made before its first function is applied."""
    expect_arrays()
    advise_on_errors(_explain)


def apply(function: Any, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """FunctionNode.apply while chainer.config.ooc is set."""
    if is_locked() and (not is_computing() or interrupted() is not None):  # the core applies them in computations
        raise refusal('applies a function')
    if RUNNING.is_foreign is not None:
        outputs = run_alone(function, inputs, may_write_inputs(function))
        if config.entry('ooc_parameters') is not None and (on_file := _on_file()) is not None:
            with LOCK:
                on_file.after_call(inputs)
        if RUNNING.call is not None and (session := current()) is not None:
            session.met_within(inputs)
        return outputs
    device, found = _device_of(inputs), None
    while found is None:
        found = _session(device).apply(function, inputs)
    return found


def step(run: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """One function's step of a backward pass, which has looked at the settings."""
    thread = threading.current_thread()
    session = current(thread)
    if session is not None:
        session.step(thread, run, arguments)
    elif is_computing():
        run(*arguments)
    else:  # of another thread's graph: what it applies is no training of this one's
        run_as(may_write_inputs(arguments[0]), run, *arguments)


def backward_pass(backprop: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A backward pass as a whole; with chainer.config.ooc not set here, it may be over another thread's graph."""
    if is_locked() and config.entry('ooc') is not None:
        raise refusal('begins a backward pass')
    lender = None if _is_off() or is_locked() else _lender(args[0])
    if lender is not None:
        with _borrowed(lender):
            return lender.backward_pass(backprop, args, kwargs)
    is_on = config.entry('ooc') is not None and current() is not None  # else nothing was applied yet
    return _session(None).backward_pass(backprop, args, kwargs) if is_on else backprop(*args, **kwargs)


def _lender(outputs: Sequence[Any]) -> Session | None:
    """The session of another thread in whose iteration these were made, lent to this one, if it can be had.

    `outputs` are Variables, or pairs of their nodes and their gradients.
    """
    functions = [(each[0] if isinstance(each, tuple) else each).creator_node for each in outputs]
    own, thread = current(), threading.current_thread()
    try:
        if own is not None and own.has_made(functions):
            return None
        return next((each for (its, _), each in [*_sessions.items()]
                     if its is not thread and each.lends_itself(functions)), None)
    except BaseException as error:  # an interrupt, which ends the iteration as one in the pass does
        if own is not None:
            own.fail(error)
        raise


@contextlib.contextmanager
def _borrowed(session: Session) -> Iterator[None]:
    import chainer

    thread = threading.current_thread()
    before = current(thread)
    try:
        with session.lent(), chainer.using_config('ooc', session.settings.policy):
            _current[thread] = session
            yield
    finally:
        if before is None or before.is_closed:
            _end_loan(thread)
        else:
            _current[thread] = before


def in_data(nodes: Sequence[Any], hooks: Iterable[Any]) -> list[Any]:
    """The data of nodes, for hooks to look at in a backward pass; some may write to it."""
    session = current()
    if session is not None:
        session.show((), False)  # what they were shown before is not beside it
    with computing():
        found = [node.data for node in nodes]
    if session is not None:
        session.show(found, may_write(hooks))
    return found


def retained_outputs(function: Any) -> Sequence[Any] | None:
    """The arrays of its outputs that a function retains, for Chainer, or for the program, which may write to them."""
    retained: Sequence[Any] | None = function._retained_output_data
    if retained is None or (only_reads() and not function._ooc):
        return retained
    if copies() or (is_locked() and interrupted() is not None):
        return _brought(function, len(retained))
    with LOCK:
        brought = _brought(function, len(retained))  # and held, whatever leaves again
        found = [each if here is None else here
                 for each, here in zip(brought, function._retained_output_data, strict=True)]
        for storage in filter(None, map(find, found)):
            if not storage.is_guarded():
                storage.memory.open(storage)
    return found


def _brought(function: Any, count: int) -> list[Any]:
    """The first so many of a function's retained outputs; what is away is fetched."""
    found = [OutputSlot(function, index).get() for index in range(count)]
    return [each.fetch() if isinstance(each, Away) else each for each in found]


def made(array: Any) -> None:
    """A parameter's array, or its gradient's, has its first values, while chainer.config.ooc_parameters is set."""
    if config.entry('ooc') is None or is_locked() or device_of(array) != 'host':
        return
    with LOCK:
        on_file = _session('host').on_file
        if on_file is not None:
            on_file.take_array(array)  # before others are made, or a model would have to fit


def update(rule: Any, parameter: Any) -> None:
    """Updates a parameter, with the hooks of its rule, while chainer.config.ooc_parameters is set."""
    _run_on_file(rule, parameter, None)


def call_hook(hook: Any, rule: Any, parameter: Any) -> None:
    """Calls an optimizer's hook for a parameter while chainer.config.ooc_parameters is set."""
    _run_on_file(rule, parameter, hook)


def _run_on_file(rule: Any, parameter: Any, hook: Any) -> None:
    on_file = _on_file()
    (run_whole if on_file is None else on_file.run)(rule, parameter, hook)


def _on_file() -> ParametersOnFile | None:
    session = current()
    return None if session is None else session.on_file


def exchange(run: Callable[[Any, bool], None], target: Any, zero_fill: bool) -> None:
    """Exchanges the gradients of a model between ranks, and notes what that takes."""
    session = current()
    finished = None if session is None else session.finished
    end_all_on_errors()  # the program may have set a hook of its own since
    if finished is None:
        run(target, zero_fill)
        return
    with finished.exchanging(sum(int(each.array.nbytes) for each in target.params() if each.array is not None)):
        run(target, zero_fill)


def note_sent(target: Any) -> None:
    """The first update of a model on several ranks has sent its parameters to all of them, and used no gradients."""
    session = current()
    if session is not None:
        session.note_sent(target.params())


def before_exchange(nbytes: int) -> None:
    """Leaves room for what MPI allocates when it exchanges an array of the host of so many bytes."""
    session = current()
    if session is not None and not is_locked():
        session.memory.leave_outside(2 * nbytes)  # a copy of what is sent, and what arrives


def current(thread: _Thread | None = None) -> Session | None:
    """The session that the calling thread used last, if it has one."""
    thread = thread or threading.current_thread()
    session = _current.get(thread)
    if session is not None and session.owner is not thread and session.passing is not thread:
        return _end_loan(thread)  # its owner goes on in it, or an interrupt has left it
    return session


def _end_loan(thread: _Thread) -> Session | None:
    """Has a thread go on in a session of its own, and gives that, if it has one."""
    _current.pop(thread, None)
    own = next((_sessions[each] for each in _of(thread)), None)
    if own is not None:
        _current[thread] = own
    return own


def stats() -> IterationStats | None:
    """The calling thread's last finished iteration; None before the first, and where its `ooc` was set to None."""
    session = _asked()
    return None if session is None else session.stats


def last_run() -> Run | None:
    """That iteration as it ran; None if it followed no plan to its end."""
    session = _asked()
    return None if session is None or session.finished is None else session.finished.run


def _asked() -> Session | None:
    """The session whose last iteration the calling thread may ask for."""
    return None if _is_off() else current()


def _is_off() -> bool:
    """Whether the calling thread has set its `ooc` to None."""
    import chainer

    return vars(chainer.config._local).get('ooc', 'not set') is None


def reset(unpin: bool = False) -> None:
    """Closes every thread's sessions: profiles, plans, I/O threads and far memory; what is pinned stays if not told."""
    if is_locked() or copies():
        raise refusal('closes sessions')
    with LOCK:
        for thread, device in list(_sessions):
            _close(thread, device)
        forget_agreement()
        if unpin:
            give_back()


def trace() -> Trace | None:
    """See `chainer_ooc.trace`; it may end the iteration that is over, which cannot be done within another change."""
    if is_locked():
        raise refusal('asks for a recording')
    session = current()
    recorded = [] if session is None else session.traces()
    return recorded[-1] if recorded else None


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Has the calling thread train in sessions of their own for a while, which are closed then; its others go on.

    Raises:
        ReentryError: called by a signal handler or a finalizer that has interrupted a change of what is in memory.
        SpillError, MemoryError: a map that is still held could not come back; the session that has it stays open.
    """
    if is_locked() or copies():
        raise refusal('sets sessions aside')
    thread = threading.current_thread()
    with LOCK:
        aside = {key: _sessions.pop(key) for key in _of(thread)}
        latest = _current.pop(thread, None)
    try:
        yield
    finally:
        with LOCK:
            try:
                for key in _of(thread):
                    _close(*key)
            finally:
                for key in _of(thread):  # as if its thread were gone: closed when nothing is away, or by `reset`
                    _sessions[_Thread(), key[1]] = _sessions[key]
                    del _sessions[key]
                _sessions.update(aside)
                _current.pop(thread, None)
                if latest is not None:
                    _current[thread] = latest


def _of(thread: _Thread) -> list[tuple[_Thread, str]]:
    """The keys of a thread's sessions."""
    return [key for key in [*_sessions] if key[0] is thread]


def _close(thread: _Thread, device: str) -> None:
    session = _sessions[thread, device]
    session.close()
    del _sessions[thread, device]
    for each in [each for each, its in [*_current.items()] if its is session]:
        _current.pop(each, None)


def _device_of(inputs: Sequence[Any]) -> str | None:
    """The device of the first array, or None if all of them are away: only a session's own can be."""
    for each in inputs:
        array = array_in_slot(each)
        if array is not None:
            return device_of(array)
    return None


def _session(device: str | None) -> Session:
    thread = threading.current_thread()
    latest = _current.get(thread)
    if latest is not None and latest.owner is not thread:
        latest = current(thread)  # what it is lent, or its own again
    is_lent = latest is not None and latest.owner is not thread
    if latest is not None and is_lent and not latest.is_closed and device in (None, latest.device):
        return latest
    settings = config.current()
    device = device or ('host' if latest is None or is_lent else latest.device)
    session = _sessions.get((thread, device))
    if session is None or not session.adopt(settings):
        with LOCK:
            session = _make(thread, device, settings)
    if not is_lent:
        _current[thread] = session
    return session


def _make(thread: _Thread, device: str, settings: config.Settings) -> Session:
    if (thread, device) in _sessions:
        _close(thread, device)  # if this fails it is still known, and is closed next time
    for (each, its_device), session in list(_sessions.items()):
        if not each.is_alive() and session.is_idle():  # its graphs may live on in other threads
            _close(each, its_device)
    backend = choose(device, BackendOptions.of(settings))
    try:
        session = _sessions[thread, device] = Session(
            thread, device, settings, backend, functools.partial(_has_others, thread))
    except BaseException:
        backend.close()
        raise
    end_all_on_errors()
    session.memory.backend.begin()  # known by now: if this is interrupted, a reset closes it
    return session


def _explain(error: MemoryError) -> str | None:
    """The last line of a program that an error outside of functions ends; None where this is nobody's training."""
    import chainer

    session = current()
    if session is not None:
        return session.explain(error)
    return None if chainer.config.ooc is None else explain_outside(error)


def _has_others(thread: _Thread) -> bool:
    """Whether another thread that lives has a session."""
    return any(each is not thread and each.is_alive() for each, _ in list(_sessions))


def _begin_anew() -> None:
    """In a forked child: sessions, their threads and spill files are the parent's."""
    for session in _sessions.values():
        session.memory.leave_to_parent()
    _sessions.clear()
    _current.clear()


os.register_at_fork(after_in_child=_begin_anew)
