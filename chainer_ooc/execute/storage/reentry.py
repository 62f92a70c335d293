"""The lock around all that changes, and what enters it a second time: the core itself, or the program in its midst.

A signal handler runs between any two lines of the main thread, and a finalizer wherever the collector is called: also
where the core has begun a change and not ended it, while it holds the lock. Such code reads bytes as they lie, in near
or in far memory, and nothing is changed for it (`slots.Away.look`).

    program -> core, with the lock -> program's function, run again         the core has called it
    program -> core, with the lock -> program's handler -> reads a map      has interrupted the core
    program -> core, with the lock -> reads a map                           the core's own

Which one reads is found by the frames between, which are looked at only where the thread has the lock already: a read
that interrupts nothing costs one call of C.

Left out: threads that read meanwhile. They wait for the lock.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

from chainer_ooc.backends.base import OWN_THREADS
from chainer_ooc.errors import ReentryError
from chainer_ooc.locks import make_lock

_Function = TypeVar('_Function', bound=Callable[..., Any])

#: Held while a storage, an account or a residency changes.
LOCK = make_lock()

#: Whether the calling thread holds it.
is_locked: Callable[[], bool] = LOCK._is_owned  # type: ignore[attr-defined]

_CORE = __name__.partition('.')[0]

#: Code between a reader and what it reads, which may be either's; so is Python's own.
_BETWEEN = frozenset({'chainer', 'cupy', 'numpy'})
_PYTHONS = os.path.dirname(os.__file__), '<'  # generated code, such as that of dataclasses, has no file

#: Modules of the core that reads come through.
_ENTRANCES = frozenset({__name__, f'{_CORE}.execute.manager', f'{_CORE}.execute.sessions', f'{__package__}.slots'})

#: Code of the core's that runs functions of the program's while it holds the lock.
_callers: set[CodeType] = set()


def runs_functions(caller: _Function) -> _Function:
    """Marks a function of the core's: what the program does within it was called by the core."""
    _callers.add(caller.__code__)
    return caller


def may_have_called(code: CodeType) -> bool:
    """Whether code of the core's may have called the program, beside being interrupted."""
    return code in _callers


def refusal(act: str) -> ReentryError:
    """The error for a handler or a finalizer that does what cannot be done where it has interrupted the core."""
    return ReentryError(f'a signal handler or a finalizer {act} in the middle of a change of what is in memory, where '
                        'that cannot be done; have it set a flag, and act on it between two functions')


def copies() -> bool:
    """Whether this is a thread of a backend's, where a finalizer may run as well: what it waits for never comes.

    Found by how the thread began: it may not have come to the backend's code yet, nor be listed by Python.
    """
    if threading.get_ident() == threading.main_thread().ident:
        return False
    outermost = [frame for frame, _ in traceback.walk_stack(sys._getframe(1))][-1]
    thread = outermost.f_locals.get('self')
    if isinstance(thread, threading.Thread):
        return thread.name.startswith(OWN_THREADS)
    return (outermost.f_globals.get('__name__') or '').startswith(f'{_CORE}.backends.')


def interrupted() -> CodeType | None:
    """The code of the core's that code of the program's runs within; None if there is none of the program's.

    Only to be called where the thread holds the lock.
    """
    return _beneath_program(_ENTRANCES.__contains__)


def asks_amid() -> bool:
    """Whether the program, which asks for memory, has interrupted code of the core's that has not called it."""
    code = _beneath_program(lambda name: True) if is_locked() else None
    return code is not None and not may_have_called(code)


def _beneath_program(is_entrance: Callable[[str], bool]) -> CodeType | None:
    """The first code of the core's beneath code of the program's, which came in by modules that are entrances."""
    by_program = False
    for frame, _ in traceback.walk_stack(sys._getframe(2)):
        name = frame.f_globals.get('__name__') or ''
        package = name.partition('.')[0]
        if package == _CORE:
            if by_program:
                return frame.f_code
            if not is_entrance(name):
                return None
        elif package not in _BETWEEN and not _is_pythons(package, frame.f_code.co_filename):
            by_program = True
    return None


def _is_pythons(package: str, filename: str) -> bool:
    """Whether code is of Python's library, and not of a module of the program's with the name of one of those."""
    return package in sys.stdlib_module_names and filename.startswith(_PYTHONS)


# Another thread may hold the lock at that moment.
os.register_at_fork(after_in_child=LOCK._at_fork_reinit)  # type: ignore[attr-defined]
