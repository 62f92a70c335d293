"""The functions that the seam patch calls: each thread has a session of its own, made when it is first needed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from chainer_ooc import config
from chainer_ooc.backends import choose
from chainer_ooc.execute.session import Session

_sessions: dict[threading.Thread, Session] = {}


def apply(function: Any, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """FunctionNode.apply while chainer.config.ooc is set."""
    return _session().apply(function, inputs)


def step(run: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """One function's turn in a backward pass."""
    _session().step(run, arguments)


def backward_pass(backprop: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A backward pass as a whole."""
    return _session().backward_pass(backprop, args, kwargs)


def bring_back(nodes: Sequence[Any]) -> None:
    """Makes the data of nodes resident for hooks, which look and do not write."""
    session = current()
    if session is not None:
        session.bring_back(nodes)


def current() -> Session | None:
    """The calling thread's session, if it has one."""
    return _sessions.get(threading.current_thread())


def reset() -> None:
    """Closes every thread's session: profiles, plans, I/O threads and the spill file."""
    for thread in list(_sessions):
        _sessions[thread].close()
        del _sessions[thread]


def _session() -> Session:
    settings = config.current()
    session = current()
    if session is not None and session.adopt(settings):
        return session
    if session is not None:
        session.close()
    for thread in [each for each in _sessions if not each.is_alive()]:
        _sessions.pop(thread).close()
    session = Session(settings, choose(settings.spill_dir))
    _sessions[threading.current_thread()] = session
    return session
