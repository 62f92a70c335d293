"""The words of planning: what is given, and what an answer says.

    Verdict     what can happen to each feature map between its last forward use and its first backward use
    Decision    a verdict for each map, and when it leaves and comes back: what a policy says
    Problem     what it decides about: an iteration, its times, and the memory that there is
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from chainer_ooc.cost.costs import Costs, measured
from chainer_ooc.trace import FeatureMap, Trace

#: What comes from outside of the graph and is not retained is copied for a recomputation if it is this small.
COPIED_BYTES = 1 << 16


class Verdict(enum.Enum):
    """The closed set of answers; `code` numbers them from 0."""

    KEEP = 'keep'
    SWAP = 'swap'
    RECOMPUTE = 'recompute'

    def __init__(self, _: str):
        self.code = len(type(self).__members__)


def can_leave(feature_map: FeatureMap, min_bytes: int) -> bool:
    """Whether freeing the map gives memory worth a transfer.

    Not so for what no function retains (it dies by itself), for what is smaller than `min_bytes`, and for what the
    program holds (the batch), which stays in memory all the same.
    """
    return feature_map.retained and not feature_map.foreign and feature_map.nbytes >= max(min_bytes, 1)


def everything(trace: Trace, min_bytes: int) -> tuple[Verdict, ...]:
    """Swaps each map that can leave."""
    return tuple(Verdict.SWAP if can_leave(each, min_bytes) else Verdict.KEEP for each in trace.maps)


def changed(verdicts: tuple[Verdict, ...], maps: Iterable[int], verdict: Verdict) -> tuple[Verdict, ...]:
    """Returns verdicts in which some maps have another one."""
    new = list(verdicts)
    for each in maps:
        new[each] = verdict
    return tuple(new)


def from_the_output(trace: Trace, maps: Iterable[int]) -> list[int]:
    """Puts maps in order: those that forward uses last first, of one call the younger first."""
    return sorted(maps, key=lambda each: (-trace.maps[each].last_forward_use, -each))


def can_recompute(trace: Trace, min_bytes: int) -> tuple[bool, ...]:
    """Which maps can be recomputed, whatever the verdicts on the others: one bool for each.

    A map can be made again if its producer is repeatable and each of the producer's inputs is at hand: as it is
    retained (then every verdict brings it back), as it can be made again itself, or as it is no feature map. Left out
    are maps that were written to after they were made; those that a Variable of the program's shows, since the program
    may read them when the parameters have changed; and those that a later iteration's backward pass reads.
    """
    producible: list[bool] = []
    for each in trace.maps:  # a producer's inputs were seen before its outputs
        call = trace.calls[each.producer] if each.producer is not None else None
        producible.append(call is not None and call.repeatable and not each.written
                          and _at_hand(trace, call.inputs, producible))
    return tuple(ready and can_leave(each, min_bytes) and not each.shown and not each.reused
                 for ready, each in zip(producible, trace.maps, strict=True))


def _at_hand(trace: Trace, inputs: Iterable[int], producible: list[bool]) -> bool:
    maps = trace.maps
    return all(
        each < 0 or maps[each].retained or (maps[each].producer is None and maps[each].nbytes <= COPIED_BYTES)
        or (each < len(producible) and producible[each]) for each in inputs)


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


@dataclass(frozen=True)
class Standing:
    """Bytes that live through an iteration: parameters, optimizer state, the program's; in forward old gradients.

    Attributes:
        forward_bytes, backward_bytes: all of them, in forward and in backward.
        left_bytes: of both, maps that iterations before have left and that cannot be moved.
        forward_expected_bytes, backward_expected_bytes: of neither, what may stand there later and does not for
            certain, such as an optimizer's state before its first update. The floor that a refusal names counts it.
    """

    forward_bytes: int
    backward_bytes: int
    left_bytes: int = 0
    forward_expected_bytes: int = 0
    backward_expected_bytes: int = 0

    @property
    def expected_bytes(self) -> int:
        """What may stand there later, wherever that is most."""
        return max(self.forward_expected_bytes, self.backward_expected_bytes)

    def to_come(self, more_bytes: int) -> Standing:
        """The same when all that is expected is there, and so much more."""
        return Standing(self.forward_bytes + self.forward_expected_bytes + more_bytes,
                        self.backward_bytes + self.backward_expected_bytes + more_bytes, self.left_bytes)

    def beside(self, unaccounted_bytes: int) -> Standing:
        """The same on a device that counts so much in the budget that the manager does not.

        That is arrays of the program's own, what was allocated before, and what an allocator rounds up.
        """
        return replace(self, forward_bytes=self.forward_bytes + unaccounted_bytes,
                       backward_bytes=self.backward_bytes + unaccounted_bytes)


@dataclass(frozen=True)
class Problem:
    """The input of every policy.

    Attributes:
        trace: the iteration.
        costs: its times on the machine that it will run on.
        standing: what lives through it beside its feature maps.
        budget_bytes: what near memory may hold.
        min_bytes: smaller maps always stay.
        limit_seconds: a search that takes longer gives the best that it has found.
        recalls: a map that is wanted back while it is still leaving stays, as our execution has it. Systems of the
            papers copy it out to the end, and then in.
        known: decisions that were good before, for less memory or by other times; a search may begin with them.
    """

    trace: Trace
    costs: Costs
    standing: Standing
    budget_bytes: int
    min_bytes: int
    limit_seconds: float = 60.0
    recalls: bool = True
    known: Sequence[Decision] = field(default=(), compare=False)


def problem_of(trace: Trace, budget_bytes: int, min_bytes: int) -> Problem:
    """The problem that a trace poses on the machine that it was recorded on."""
    others_bytes = trace.others_bytes
    standing = Standing(trace.standing_forward_bytes + others_bytes, trace.standing_backward_bytes + others_bytes)
    return Problem(trace, measured(trace), standing, budget_bytes, min_bytes)
