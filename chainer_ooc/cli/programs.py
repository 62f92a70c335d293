"""Errors of the program's own code, such as the model that a command was given: shown as its author would see them.

A traceback through this package would tell the author nothing, so its frames are left out, and so are those of Chainer
and of the import system in front of the program's first one.
"""

from __future__ import annotations

import importlib
import os
import traceback
from pathlib import Path
from types import ModuleType, TracebackType

import chainer_ooc
from chainer_ooc.cli.answer import ProgramError, message

_OWN = f'{Path(chainer_ooc.__file__).parent}{os.sep}'
_IMPORTS = '<frozen importlib', str(importlib.__file__)


def failed(what: str, error: BaseException, status: int = 1) -> ProgramError:
    """What is raised for an error that came out of the program's code.

    `what` could not be done, as the line below the traceback says.
    """
    kind = type(error).__name__
    said = f'{kind}: {message(error)}' if str(error) else kind
    return ProgramError(f'{what}: {said}; the traceback above is that of its own code', report(error), status)


def report(error: BaseException) -> str:
    """The traceback of an error from the program's code on."""
    seen = traceback.TracebackException.from_exception(error)
    _leave_out(seen)
    return ''.join(seen.format())


def place(error: BaseException) -> str:
    """Where the program called what raised an error: ``' (nets.py, line 7, in forward)'``, or '' if it did not."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if _is_the_programs(each.filename)]
    if not frames:
        return ''
    return f' ({Path(frames[-1].filename).name}, line {frames[-1].lineno}, in {frames[-1].name})'


def is_raised_in(error: BaseException, package: ModuleType) -> bool:
    """Whether the innermost frame of an error is in a package."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return last.filename.startswith(f'{Path(str(package.__file__)).parent}{os.sep}')


def is_of_the_call(error: BaseException) -> bool:
    """Whether nothing of what was called had begun: its arguments were refused."""
    below: TracebackType | None = error.__traceback__
    return below is None or below.tb_next is None


def _leave_out(seen: traceback.TracebackException) -> None:
    """Takes frames out of a traceback and of those that it names as its causes."""
    frames = [each for each in seen.stack if not each.filename.startswith((_OWN, *_IMPORTS))]
    first = next((number for number, each in enumerate(frames) if _is_the_programs(each.filename)), 0)
    seen.stack = traceback.StackSummary.from_list(frames[first:])
    for each in (seen.__cause__, seen.__context__):
        if each is not None:
            _leave_out(each)


def _is_the_programs(filename: str) -> bool:
    import chainer

    return not filename.startswith((_OWN, f'{Path(chainer.__file__).parent}{os.sep}', *_IMPORTS))
