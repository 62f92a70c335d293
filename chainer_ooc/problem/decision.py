"""What a policy says about an iteration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


def fault_of(trace: Trace, decision: Decision, min_bytes: int) -> str:
    """Why a decision cannot be followed: the first map, call or position that it names wrongly; '' if it can be."""
    if len(decision.verdicts) != len(trace.maps):
        return f'it has {len(decision.verdicts)} verdicts, and the iteration {len(trace.maps)} feature maps'
    again = can_recompute(trace, min_bytes)
    for each, verdict in zip(trace.maps, decision.verdicts, strict=True):
        if type(verdict) is not Verdict:  # a user's own policy may give anything
            return f'{verdict!r}, for map {each.id}, is no Verdict'
        if verdict is Verdict.RECOMPUTE and not again[each.id]:
            return f'map {each.id} cannot be recomputed (see chainer_ooc.problem.can_recompute)'
        if verdict is Verdict.SWAP and not can_leave(each, min_bytes):
            return f'map {each.id} cannot leave (see chainer_ooc.problem.can_leave)'
    starts, shared = decision.starts, decision.shares_chains
    gates = starts.gates or ()
    return (_stray('feature map', len(trace.maps), (
                *decision.leaves, *(starts.positions or ()), *(shared if isinstance(shared, frozenset) else ())))
            or _stray('position', trace.positions, (
                *decision.leaves.values(), *(starts.positions or {}).values(), *gates))
            or _stray('number of gates', trace.positions, () if starts.ahead is None else (starts.ahead,))
            or ('its gates are not in ascending order' if list(gates) != sorted(gates) else '')
            or ('it has gates, and starts no swap-in ahead of one' if gates and starts.ahead == 0 else ''))


def _stray(what: str, count: int, numbers: Iterable[object]) -> str:
    """Names the first that is none of the numbers from 0 to below `count`."""
    for each in numbers:
        if not isinstance(each, int) or not 0 <= each < count:
            return f'{each!r} is no {what}: an int from 0 to {count - 1}'
    return ''


def is_shared(shared: Shared, map_id: int) -> bool:
    """Whether a map that a chain makes on the way to another stays for the steps after."""
    return shared if isinstance(shared, bool) else map_id in shared
