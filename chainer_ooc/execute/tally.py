"""What an iteration cost, counted while it runs and frozen when it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from chainer_ooc.backends.base import Backend, Transfer
from chainer_ooc.plans.gap import WithGap
from chainer_ooc.plans.plan import Plan
from chainer_ooc.problem import Verdict
from chainer_ooc.quantities import counted, format_bytes
from chainer_ooc.simulate.timeline import Cause, Stream


class Stretch:
    """A part of an iteration between two moments of its device; what is `inner` to it counts elsewhere.

    Attributes:
        start: the moment of its beginning.
        cause: of a wait, what is waited for, else None.
        map: the feature map of the iteration whose copy is waited for, by its id; -1 if it is none of these.
    """

    __slots__ = ('_device', '_end', 'cause', 'inner', 'map', 'start')

    def __init__(self, device: Backend, cause: Cause | None = None, map_id: int = -1) -> None:
        self._device, self.cause, self.map = device, cause, map_id
        self.inner: list[Stretch] = []
        self.start = self._end = device.timestamp()

    def end(self) -> None:
        self._end = self._device.timestamp()

    def seconds(self) -> float:
        """Its duration, from the first moment to the last; waits for the device."""
        return self._device.seconds_between(self.start, self._end)

    def seconds_until(self, moment: Any) -> float:
        """From its beginning to another moment, negative if that was before; waits for the device."""
        return self._device.seconds_between(self.start, moment)

    def own_seconds(self) -> float:
        """Its duration without what was within it."""
        return self.seconds() - sum(each.seconds() for each in self.inner)


@dataclass
class Tally:
    """Running counts of one iteration; see `IterationStats` for their meaning.

    A device may be behind the program, so stretches and transfers are kept, and times are read from them later.

    Attributes:
        device: gives the moments.
        whole: the iteration's time, or None outside of one.
        token: stands for the iteration, whose maps are named; None in a snapshot.
        missing_bytes: the most that the device lacked where the account had room.
        stalls: waits for copies.
        recomputations: the calls that ran again.
        copies: to and from far memory, as far as they have ended: the direction, the map's id, the copy.
        tier_bytes: of a snapshot, what was swapped out by the tier that it went to.
    """

    device: Backend
    whole: Stretch | None = None
    token: object = None
    swapped_out_bytes: int = 0
    swapped_in_bytes: int = 0
    faults: int = 0
    recomputed_calls: int = 0
    evictions: int = 0
    missing_bytes: int = 0
    peak_bytes: int = 0
    stalls: list[Stretch] = field(default_factory=list)
    recomputations: list[Stretch] = field(default_factory=list)
    copies: list[tuple[Stream, int, Transfer]] = field(default_factory=list)
    tier_bytes: dict[str, int] = field(default_factory=dict)
    _open: Stretch | None = None

    def __post_init__(self) -> None:
        self._tiers_before = self.device.tier_bytes()

    def stalled(self, cause: Cause, storage: Any = None) -> contextlib.AbstractContextManager[None]:
        """Counts the time within as stalled, for a storage's copy, except for what is counted inside already.

        A swap-out that is waited for while room is made is waited for because of memory.
        """
        if cause is Cause.SWAP_OUT and self._open is not None and self._open.cause is Cause.MEMORY:
            cause = Cause.MEMORY
        return self._stretch(self.stalls, cause, -1 if storage is None else self.map_of(storage))

    def map_of(self, storage: Any) -> int:
        """The id of the map that it is in this iteration; -1 if it is none, as what an earlier one has left."""
        return int(storage.map) if self.token is not None and storage.token is self.token else -1

    def recomputing(self) -> contextlib.AbstractContextManager[None]:
        """Counts the time within as that of a call that runs again."""
        return self._stretch(self.recomputations)

    @contextlib.contextmanager
    def _stretch(self, kind: list[Stretch], cause: Cause | None = None, map_id: int = -1) -> Iterator[None]:
        outer, stretch = self._open, Stretch(self.device, cause, map_id)
        self._open = stretch
        try:
            yield
        finally:
            stretch.end()
            self._open = outer
            if outer is not None:
                outer.inner.append(stretch)
            kind.append(stretch)

    def end(self) -> None:
        """Ends the iteration's time."""
        if self.whole is not None:
            self.whole.end()

    def snapshot(self) -> Tally:
        """A copy, which reads of maps after the iteration do not change."""
        tier_bytes = {tier: nbytes - self._tiers_before.get(tier, 0)
                      for tier, nbytes in self.device.tier_bytes().items()}
        return replace(self, token=None, stalls=self.stalls[:], recomputations=self.recomputations[:],
                       copies=self.copies[:], tier_bytes=tier_bytes)

    @property
    def seconds(self) -> float:
        """Duration of the iteration."""
        return 0.0 if self.whole is None else self.whole.seconds()

    @property
    def stall_seconds(self) -> float:
        """How long the iteration waited for copies."""
        return sum(each.own_seconds() for each in self.stalls)

    @property
    def recomputed_seconds(self) -> float:
        """How long calls ran again."""
        return sum(each.own_seconds() for each in self.recomputations)


@dataclass(frozen=True)
class IterationStats(WithGap):
    """The last finished iteration; `chainer_ooc.stats` says what each attribute is. Its `gap` is its plan's."""

    policy: str
    phase: str
    budget_bytes: int
    peak_bytes: int
    swapped_out_bytes: int
    swapped_in_bytes: int
    recomputed_calls: int
    faults: int
    stall_seconds: float
    seconds: float
    predicted_seconds: float | None
    predicted_peak_bytes: int | None
    keep: int
    swap: int
    recompute: int
    is_searching: bool = False
    tier_bytes: Mapping[str, int] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        tiers = ', '.join(f'{format_bytes(nbytes)} {tier}' for tier, nbytes in self.tier_bytes.items())
        return (f'{self.policy} ({self.phase}): {self.seconds:.3f} s, peak {format_bytes(self.peak_bytes)} of '
                f'{format_bytes(self.budget_bytes)}, out {format_bytes(self.swapped_out_bytes)}'
                f'{f" ({tiers})" if tiers else ""}, in '
                f'{format_bytes(self.swapped_in_bytes)}, {counted(self.recomputed_calls, "call")} run again, '
                f'{counted(self.faults, "fault")}, {self.stall_seconds:.3f} s stalled'
                + ', a better plan is looked for' * self.is_searching)


def freeze(tally: Tally, policy: str, phase: str, budget_bytes: int, plan: Plan | None, is_searching: bool
           ) -> IterationStats:
    """Makes the statistics of an iteration that followed `plan`, or none."""
    verdicts = () if plan is None else plan.verdicts
    stats = IterationStats(
        policy=policy, phase=phase, budget_bytes=budget_bytes,
        peak_bytes=tally.peak_bytes, swapped_out_bytes=tally.swapped_out_bytes,
        swapped_in_bytes=tally.swapped_in_bytes, recomputed_calls=tally.recomputed_calls, faults=tally.faults,
        stall_seconds=tally.stall_seconds, seconds=tally.seconds,
        predicted_seconds=None if plan is None else plan.seconds,
        predicted_peak_bytes=None if plan is None else plan.peak_bytes,
        keep=verdicts.count(Verdict.KEEP), swap=verdicts.count(Verdict.SWAP),
        recompute=verdicts.count(Verdict.RECOMPUTE), is_searching=is_searching, tier_bytes=tally.tier_bytes)
    return stats if plan is None else stats.asking(lambda: plan.gap)
