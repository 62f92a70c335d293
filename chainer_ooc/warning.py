"""Warnings that name a line of the program's, and which lines are the program's own.

A warning is found, and filtered, by the line that it names. Ours are about what the program has set or what it runs on,
and come from far below: from the first function that is applied, through Chainer, or from a Trainer. So the frames of
Chainer and of this package are passed over. ``warnings.warn`` can do that from Python 3.12 on alone
(``skip_file_prefixes``).
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from pathlib import Path
from types import FrameType

_OWN = Path(__file__).parent


def warn(message: str, category: type[Warning]) -> None:
    """Warns, at the innermost line of the program's own; at the caller's if there is none, as in our own commands."""
    caller = sys._getframe(1)
    frame: FrameType | None = caller
    while frame is not None and not is_the_programs(frame.f_code.co_filename):
        frame = frame.f_back
    at = frame or caller
    warnings.warn_explicit(
        message, category, at.f_code.co_filename, at.f_lineno, at.f_globals.get('__name__', '<string>'),
        at.f_globals.setdefault('__warningregistry__', {}))


@functools.lru_cache(maxsize=1024)
def is_the_programs(filename: str) -> bool:
    """Whether a file is neither Chainer's nor chainer_ooc's nor Python's own machinery."""
    folders = [_OWN]
    chainer = sys.modules.get('chainer')
    if chainer is not None and chainer.__file__ is not None:
        chainers = Path(chainer.__file__).parent
        folders += [chainers, chainers.with_name('chainermn')]
    return not filename.startswith((*(f'{each}{os.sep}' for each in folders), '<frozen '))
