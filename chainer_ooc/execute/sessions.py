"""Which session is whose: each thread has one of its own for each device that it trains on.

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
from collections.abc import Iterator, Sequence
from typing import Any

from chainer_ooc import config
from chainer_ooc.backends import BackendOptions, choose, give_back
from chainer_ooc.execute.session import Session
from chainer_ooc.execute.storage.reentry import LOCK, copies, is_locked, refusal
from chainer_ooc.execute.tally import IterationStats
from chainer_ooc.plans.run import Run
from chainer_ooc.ranks.agreement import forget as forget_agreement
from chainer_ooc.ranks.failure import end_all_on_errors
from chainer_ooc.trace import Trace

_Thread = threading.Thread
_sessions: dict[tuple[_Thread, str], Session] = {}  # by thread and device
_current: dict[_Thread, Session] = {}  # what a thread used last, or is lent


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


def session_for(device: str | None) -> Session:
    """The calling thread's session on a device, or None for the one that it used last; made, if it has none."""
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


def _of(thread: _Thread) -> list[tuple[_Thread, str]]:
    """The keys of a thread's sessions."""
    return [key for key in [*_sessions] if key[0] is thread]


def _close(thread: _Thread, device: str) -> None:
    session = _sessions[thread, device]
    session.close()
    del _sessions[thread, device]
    for each in [each for each, its in [*_current.items()] if its is session]:
        _current.pop(each, None)


def _has_others(thread: _Thread) -> bool:
    """Whether another thread that lives has a session."""
    return any(each is not thread and each.is_alive() for each, _ in list(_sessions))


def lender(outputs: Sequence[Any]) -> Session | None:
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
def borrowed(session: Session) -> Iterator[None]:
    """Has the calling thread use another one's session for a while."""
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
    return None if is_off() else current()


def is_off() -> bool:
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


def _begin_anew() -> None:
    """In a forked child: sessions, their threads and spill files are the parent's."""
    for session in _sessions.values():
        session.memory.leave_to_parent()
    _sessions.clear()
    _current.clear()


os.register_at_fork(after_in_child=_begin_anew)
