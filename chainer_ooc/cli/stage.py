"""What a command is busy with, on a terminal, while it has nothing to show yet.

A line on standard error that is gone when the stage is over. It does not move: a thread for that would be in the
recordings, and bars of searches (`classify.progress`) that take over a second are written over it. Where standard error
is no terminal nothing is written.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_Item = TypeVar('_Item')
_ERASE = '\r\x1b[K'


@contextlib.contextmanager
def stage(what: str) -> Iterator[None]:
    """Says what takes its time, such as ``'recording resnet50 under keep'``, for the length of a block."""
    stream = sys.stderr
    if stream is None or stream.closed or not stream.isatty():
        yield
        return
    _say(f'{_ERASE}{what} ...\r')  # what the program itself prints meanwhile is written over it
    try:
        yield
    finally:
        _say(_ERASE)


def stages(items: Iterable[_Item], what: str, name: Callable[[_Item], str] = str) -> Iterator[_Item]:
    """Gives items, and says of each which one it is: ``'simulating swap-all (3 of 16)'``.

    `what` is the verb, and `name` gives what each is called.
    """
    known = list(items)
    for number, each in enumerate(known, start=1):
        with stage(f'{what} {name(each)} ({number} of {len(known)})'):
            yield each


def _say(text: str) -> None:
    """Writes; what the terminal does not take is no failure of the command's."""
    with contextlib.suppress(OSError, UnicodeEncodeError):
        sys.stderr.write(text)
        sys.stderr.flush()
