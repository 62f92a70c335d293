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
        searches: the time limit of a problem may cut `decide` short, which then gives the best that it has found.
        takes_long: a training of a very large graph begins with another decision, made at once.
        floors_of: the policy that has the same floors and finds them sooner, if there is one.
        may_need_more: of a larger budget its decision may need more than that, where it would do with a smaller one.
    """

    name: str
    summary: str
    decide: Callable[[Problem], Decision]
    may_need_more: bool = False
    searches: bool = False
    takes_long: bool = False
    floors_of: Policy | None = None
