"""What a policy says about an iteration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from chainer_ooc.problem.verdict import Verdict, can_leave, can_recompute
from chainer_ooc.trace import Trace

#: Whether what a chain of recomputations makes stays for the steps after: all of it, nothing, or the maps of these ids.
Shared = bool | frozenset[int]


@dataclass(frozen=True)
class Starts:
    """When swap-ins start.

    Attributes:
        ahead: with the gate that is so many before the use; None: as early as the profiled free memory allows.
        gates: positions of the steps with which a swap-in may start, ascending; None: all steps.
        checks_memory: a swap-in for which a position on its way has no room starts later; without this, a plan whose
            swap-ins do not fit is refused.
        positions: for maps that it names, the earliest position at which the swap-in may start, in place of `ahead`.
    """

    ahead: int | None = None
    gates: tuple[int, ...] | None = None
    checks_memory: bool = True
    positions: Mapping[int, int] | None = None


EARLY = Starts()
WITH_THE_STEP_BEFORE = Starts(ahead=1)


@dataclass(frozen=True)
class Decision:
    """The output of every policy.

    Attributes:
        verdicts: one for each feature map of the trace.
        starts: when swap-ins start.
        leaves: the position after which a swapped map leaves, where that is not its last forward use.
        synchronous: a call's swap-outs are waited for before the next call begins, and so are swap-ins that have begun.
        shares_chains: what a chain of recomputations makes stays for the steps after, or the maps of these ids do;
            None: all of it if memory allows it, else nothing.
        mapped: swapped maps are read where they are, in far memory that the system pages. In backward they take none of
            the budget, and a swap-in has the system fetch what will be read.
    """

    verdicts: tuple[Verdict, ...]
    starts: Starts = EARLY
    leaves: Mapping[int, int] = field(default_factory=dict)
    synchronous: bool = False
    shares_chains: Shared | None = None
    mapped: bool = False


def is_possible(trace: Trace, decision: Decision, min_bytes: int) -> bool:
    """Whether the iteration has these maps, and each can have its verdict."""
    if len(decision.verdicts) != len(trace.maps):
        return False
    again = can_recompute(trace, min_bytes)
    return all(verdict is Verdict.KEEP or (again[each.id] if verdict is Verdict.RECOMPUTE
                                           else can_leave(each, min_bytes))
               for each, verdict in zip(trace.maps, decision.verdicts, strict=True))


def is_shared(shared: Shared, map_id: int) -> bool:
    """Whether a map that a chain makes on the way to another stays for the steps after."""
    return shared if isinstance(shared, bool) else map_id in shared
