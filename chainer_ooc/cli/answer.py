"""What a command answers: the same facts as tables to read and as one JSON object for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chainer_ooc.errors import InfeasibleBudgetError, OocError
from chainer_ooc.report.table import Column, Table


class UsageError(OocError):
    """An argument that cannot be used, as is known only when the command runs: the exit status is 2."""


class ProgramError(OocError):
    """The program's own code, such as a model, raised an error.

    Attributes:
        report: the traceback of that, without what called it.
        status: the exit status of the process: 2 if there is nothing to run, 1 if it could not be run to its end.
    """

    def __init__(self, message: str, report: str, status: int = 1):
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
        """The tables, with an empty line between them, and the closing lines."""
        parts = [table.to_text() for table in self.tables]
        return '\n\n'.join([*parts, '\n'.join(self.closing)] if self.closing else parts)

    def json(self) -> str:
        """The facts as one JSON object."""
        return json.dumps(self.facts, indent=2)


def message(error: BaseException) -> str:
    """What an error says, in one line and without the ``[Errno 28]`` that OSError puts in front."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if isinstance(error, InfeasibleBudgetError):  # commands have an option where programs have an entry
        text = f'{error.finding}; raise --budget, choose another policy or lower the batch size'
    return ' '.join(text.split())


def listing(title: str, heading: str, facts: Mapping[str, object]) -> Table:
    """A table of names and values, the names under ``heading``."""
    rows = [{'name': name, 'value': value} for name, value in facts.items()]
    return Table([Column('name', heading), Column('value', '')], rows, title)
