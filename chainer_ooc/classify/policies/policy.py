"""What a policy is: a name, a reason in one line, and a decision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chainer_ooc.problem import Decision, Problem


@dataclass(frozen=True)
class Policy:
    """A row of the table.

    Attributes:
        name: the value of ``chainer.config.ooc``.
        summary: one line for ``chainer_ooc.policies()``.
        decide: a pure function of the problem. It need not keep within the budget: its caller refuses a decision that
            does not fit.
        at_once: decides without a search, as a training begins with a very large graph; None: `decide` does not search.
        may_need_more: of a larger budget its decision may need more than that, where it would do with a smaller one.
    """

    name: str
    summary: str
    decide: Callable[[Problem], Decision]
    may_need_more: bool = False
    at_once: Callable[[Problem], Decision] | None = None
