"""What a command answers: the same facts as tables to read and as one JSON object for programs."""

from __future__ import annotations

import contextlib
import json
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chainer_ooc.errors import WORKSPACE, InfeasibleBudgetError, OocError
from chainer_ooc.report.table import Column, Table
from chainer_ooc.trace import Trace
from chainer_ooc.trace.rows import place


class UsageError(OocError):
    """An argument that cannot be used, as is known only when the command runs: the exit status is 2."""


class ProgramError(OocError):
    """The program's own code, such as a model, raised an error.

    Attributes:
        report: the traceback of that, without what called it.
        status: the exit status of the process: 2 if there is nothing to run, 1 if it could not be run to its end.
    """

    def __init__(self, message: str, report: str, status: int):
        self.report = report
        self.status = status
        super().__init__(message)


@dataclass(frozen=True)
class Answer:
    """A command's result.

    Attributes:
        facts: JSON-ready; quantities carry their unit in the key.
        tables: the same to read, in this order.
        closing: lines below the tables, such as what to do next.
        status: the exit status of the process.
        is_silent: another process prints it.
    """

    facts: Mapping[str, Any]
    tables: Sequence[Table]
    closing: Sequence[str] = ()
    status: int = 0
    is_silent: bool = False

    def text(self) -> str:
        """The tables, with an empty line between them, and the closing lines: as wide as the terminal, or 80."""
        width = shutil.get_terminal_size().columns
        parts = [table.to_text(width) for table in self.tables]
        closing = '\n'.join(_wrapped(line, width) for line in self.closing)
        return '\n\n'.join([*parts, closing] if closing else parts)

    def json(self) -> str:
        """The facts as one JSON object."""
        return json.dumps(self.facts, indent=2)


def _wrapped(line: str, width: int) -> str:
    """A line in several, where it is too long. A comment stays one, so that it can still be pasted."""
    return textwrap.fill(line, width, subsequent_indent='# ' if line.startswith('# ') else '',
                         break_long_words=False, break_on_hyphens=False)


def message(error: BaseException, option: str = '--budget') -> str:
    """What an error says, in one line and without the ``[Errno 28]`` that OSError puts in front.

    `option` is where a budget that is refused was given.
    """
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if isinstance(error, InfeasibleBudgetError):  # commands have an option where programs have an entry
        again = f'record again with "profile MODEL --workspace {WORKSPACE}"'
        text = f'{error.finding}; raise {option}, {error.other_step(again)}'
    return ' '.join(text.split())


@contextlib.contextmanager
def trying(act: str, instead: str, errors: tuple[type[Exception], ...] = (OSError,)) -> Iterator[None]:
    """Does what the system may refuse, such as to write a file.

    Args:
        act: such as ``'write the trace to FILE'``.
        instead: what to name then, such as ``'another file with --save'``.
        errors: what says so.

    Raises:
        OocError: it could not be done.
    """
    try:
        yield
    except errors as error:
        raise OocError(f'cannot {act}: {message(error)}; name {instead}') from None


def listing(heading: str, facts: Mapping[str, object]) -> Table:
    """A table of names and values, the names under ``heading``; what has no value is left out."""
    rows = [{'name': name, 'value': value} for name, value in facts.items() if value is not None]
    return Table([Column('name', heading), Column('value', '')], rows)


def maker_of(trace: Trace, map_id: int) -> dict[str, str | None]:
    """What makes a feature map, and where in the user's model, as JSON has it.

    'producer', the function's name, or 'the batch'; 'path' of its link and 'line' of the model's code, None where they
    are not known.
    """
    maker = trace.maker_of(map_id)
    if maker is None:
        return {'producer': 'the batch', 'path': None, 'line': None}
    return {'producer': maker.label, 'path': maker.path or None, 'line': maker.line or None}


def named_maker(row: Mapping[str, Any]) -> str:
    """What `maker_of` says in words: ``'ReLU at /stage2/0 in resnet.py:57'``."""
    return f'{row["producer"]}{place(row["path"], row["line"])}'
