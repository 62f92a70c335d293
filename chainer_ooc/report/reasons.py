"""Why a feature map got its verdict: what the iteration would be with each of the others.

The reason is found by trial, so that it holds for any policy: the same plan is simulated once more with this one map
given another verdict. Left out: two maps that change together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from chainer_ooc.classify.search import evaluate
from chainer_ooc.plans.plan import Plan
from chainer_ooc.problem import Problem, Verdict, can_leave, can_recompute, changed
from chainer_ooc.quantities import format_bytes
from chainer_ooc.report.table import seconds
from chainer_ooc.schedule.chains import find_chains
from chainer_ooc.simulate.timeline import Timeline
from chainer_ooc.trace import FeatureMap

_NOTHING_SECONDS = 1e-9  # sums in another order
_DONE = {Verdict.KEEP: 'kept', Verdict.SWAP: 'swapped', Verdict.RECOMPUTE: 'recomputed'}


@dataclass(frozen=True)
class Alternative:
    """An iteration with another verdict for one map.

    Attributes:
        verdict: the other one.
        seconds: of the iteration; None if it does not fit.
        needed_bytes: the smallest budget that it fits.
    """

    verdict: Verdict
    seconds: float | None
    needed_bytes: int


@dataclass(frozen=True)
class Reason:
    """Why a map has its verdict.

    Attributes:
        map: its id.
        verdict: that it has.
        swap_out_seconds, swap_in_seconds: of its copies; None if it cannot leave.
        stall_seconds: for which computations wait because of it.
        others: the verdicts that it might have instead; none if it cannot leave.
        why: the same in words.
    """

    map: int
    verdict: Verdict
    swap_out_seconds: float | None
    swap_in_seconds: float | None
    stall_seconds: float
    others: tuple[Alternative, ...]
    why: str


class Reasons:
    """Explains the maps of one plan, whose timeline is the simulator's."""

    def __init__(self, problem: Problem, plan: Plan, timeline: Timeline):
        self._problem, self._decision, self._timeline = problem, plan.decision(), timeline
        self._recomputable = can_recompute(problem.trace, problem.min_bytes)

    def of(self, feature_map: FeatureMap) -> Reason:
        """Why this map has its verdict."""
        map_id, nbytes, costs = feature_map.id, feature_map.nbytes, self._problem.costs
        leaves, verdict = can_leave(feature_map, self._problem.min_bytes), self._decision.verdicts[map_id]
        others = tuple(self._alternative(map_id, each) for each in self._allowed(feature_map) if each is not verdict)
        return Reason(
            map=map_id, verdict=verdict,
            swap_out_seconds=costs.write_seconds(nbytes) if leaves else None,
            swap_in_seconds=costs.read_seconds(nbytes) if leaves else None,
            stall_seconds=sum(each.seconds for each in self._timeline.stalls if each.map == map_id),
            others=others, why='; '.join(map(self._line, others)) if leaves else self._held_back(feature_map))

    def _allowed(self, feature_map: FeatureMap) -> list[Verdict]:
        if not can_leave(feature_map, self._problem.min_bytes):
            return []
        recompute = [Verdict.RECOMPUTE] if self._recomputable[feature_map.id] else []
        return [Verdict.KEEP, Verdict.SWAP, *recompute]

    def _with(self, map_id: int, verdict: Verdict) -> tuple[Verdict, ...]:
        return changed(self._decision.verdicts, [map_id], verdict)

    def _alternative(self, map_id: int, verdict: Verdict) -> Alternative:
        found = evaluate(self._problem, replace(self._decision, verdicts=self._with(map_id, verdict)))
        return Alternative(verdict, found.seconds if found.fits else None, found.needed_bytes)

    def recompute_seconds(self, map_id: int) -> float | None:
        """What runs again because this map is recomputed and not swapped, the other verdicts being as they are.

        None if it cannot be recomputed. It takes longer to find than a `Reason`.
        """
        if not self._recomputable[map_id]:
            return None

        def total(verdict: Verdict) -> float:
            return find_chains(self._problem.trace, self._with(map_id, verdict)).seconds(self._problem.costs.seconds)

        return total(Verdict.RECOMPUTE) - total(Verdict.SWAP)

    def _line(self, other: Alternative) -> str:
        begin = f'if {_DONE[other.verdict]}, '
        if other.seconds is None:
            return begin + f'needs {format_bytes(other.needed_bytes)}, which exceeds the budget'
        slower = other.seconds - self._timeline.seconds
        if abs(slower) < _NOTHING_SECONDS:
            return begin + 'takes the same time'
        return begin + f'takes {seconds(abs(slower))} {"more" if slower > 0 else "less"}'

    def _held_back(self, feature_map: FeatureMap) -> str:
        if feature_map.foreign:
            return 'the program holds it itself, so that letting go frees nothing'
        return f'smaller than {format_bytes(self._problem.min_bytes)}, see --min-bytes'
