"""What a policy is: a name, a reason in one line, a choice of verdicts, and when its swap-ins may start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chainer_ooc.classify.verdict import Verdict
from chainer_ooc.trace import Trace

#: (trace, budget_bytes, min_bytes) -> one verdict per feature map.
Classify = Callable[[Trace, int, int], tuple[Verdict, ...]]


@dataclass(frozen=True)
class Policy:
    """A row of the table.

    Attributes:
        name: the value of ``chainer.config.ooc``.
        summary: one line for ``chainer_ooc.policies()``.
        classify: gives the verdicts.
        early: swap-ins start as early as the profiled free memory allows; else with the computation before the use.
    """

    name: str
    summary: str
    classify: Classify
    early: bool
