"""tensor-cache: near memory is a cache of feature maps, and one leaves only at the moment when memory does not suffice.

The iteration is replayed position by position. Where a position needs more than the budget, maps that it does not use
leave, the least recently used first, until it fits::

    position            0    1    2    3    4  | 5 ...
    needs more             .    .    X    X              X: more than the budget
    map 0 (conv.)          ##########                    swapped: leaves after position 2
    map 1 (activation)          ####                     dropped after its last forward use, made again in backward
    map 2 ...                        ###########         stays

Source: SuperNeurons 3.3.1 (prefetching), 3.3.2 and algorithm 2 (tensor cache), 3.4 (cost-aware recomputation). What
differs: SuperNeurons decides while it runs, here the profile is replayed beforehand. All rules, and what else differs:
docs/policies/tensor-cache.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from chainer_ooc.classify.kinds import are_of, is_checkpoint, segment_starts, steps_of
from chainer_ooc.classify.policies.policy import Policy
from chainer_ooc.classify.search import needs
from chainer_ooc.problem import Decision, Problem, Starts, Verdict, can_leave, can_recompute
from chainer_ooc.simulate.compiled import Needs
from chainer_ooc.trace import FeatureMap, Trace

COST_AWARE, SPEED_CENTRIC, MEMORY_CENTRIC = RECOMPUTATIONS = 'cost-aware', 'speed-centric', 'memory-centric'


def decide(problem: Problem, recomputation: str = COST_AWARE) -> Decision:
    """Replays the iteration, with recomputation of one of `RECOMPUTATIONS`."""
    if recomputation not in RECOMPUTATIONS:
        raise ValueError(f'no recomputation {recomputation!r}; there are {", ".join(RECOMPUTATIONS)}')
    replay = _Replay(problem, recomputation)
    replay.run()
    return replay.decision()


class _Replay:
    """The cache while the iteration is replayed.

    Attributes:
        verdicts, leaves: what was decided so far.
        need: bytes at each position under that.
        first_use: for each map, the position in backward that reads it first, or one past the end.
    """

    def __init__(self, problem: Problem, recomputation: str):
        trace = problem.trace
        self.problem, self.trace = problem, trace
        self.recomputation = recomputation
        self.verdicts = [Verdict.KEEP] * len(trace.maps)
        self.leaves: dict[int, int] = {}
        self._starts = Starts(ahead=1, gates=steps_of(trace, is_checkpoint))
        recomputable, expensive = can_recompute(trace, problem.min_bytes), are_of(trace, segment_starts(trace))
        self._cheap = [ready and not dear for ready, dear in zip(recomputable, expensive, strict=True)]
        movable = [each for each in trace.maps if can_leave(each, problem.min_bytes)]
        self._staying = sorted(movable, key=lambda each: (each.last_forward_use, each.id))  # the least recent first
        self._largest_layer_bytes = _largest_layer_bytes(trace)

    def decision(self) -> Decision:
        """What was decided so far."""
        decision = Decision(tuple(self.verdicts), self._starts, dict(self.leaves),
                            shares_chains=self.recomputation != MEMORY_CENTRIC)
        if self.recomputation != COST_AWARE or Verdict.RECOMPUTE not in decision.verdicts:
            return decision
        return replace(decision, shares_chains=self._cheap_segments(_made(needs(self.problem, decision))))

    def run(self) -> None:
        """Passes over all positions; one that stays too large stays for others to refuse."""
        self._lay_out()
        position, backward_start, stale = 0, self.trace.backward_start, False
        while position < self.trace.positions:
            if stale and position >= backward_start:
                self._lay_out()
                position, stale = backward_start, False  # an earlier step may need more now
            if self.need[position] <= self.problem.budget_bytes:
                position += 1
                continue
            victim = self._victim(position)
            if victim is not None:
                stale = self._evict(victim, position) or stale
            elif self._transfer_instead(position):
                stale = True
            else:
                position += 1

    def _victim(self, position: int) -> FeatureMap | None:
        """What leaves before a position: the least recently used that is not locked, cheap ones before others."""
        unlocked = (each for each in self._staying if each.leaves_at < position < self.first_use[each.id])
        return min(unlocked, key=lambda each: not self._cheap[each.id], default=None)

    def _evict(self, victim: FeatureMap, position: int) -> bool:
        """Has a map leave; returns whether that changes what runs again, so that backward is to be laid out anew."""
        self._staying.remove(victim)
        if self._cheap[victim.id]:
            self.verdicts[victim.id] = Verdict.RECOMPUTE
            self.need[victim.leaves_at + 1:self.trace.backward_start] -= victim.nbytes
            return True
        self.verdicts[victim.id] = Verdict.SWAP
        self.leaves[victim.id] = position - 1
        self.need[position:self.first_use[victim.id]] -= victim.nbytes
        return False

    def _transfer_instead(self, position: int) -> bool:
        """Transfers what chains make at a step that does not fit, or made for later ones; whether there is any."""
        made = [map_id for map_id, restored in self._restored.items()
                if restored <= position <= self.trace.maps[map_id].backward_uses[0]]
        for map_id in made:
            self.verdicts[map_id] = Verdict.SWAP
        return bool(made)

    def _lay_out(self) -> None:
        found = needs(self.problem, self.decision())
        self.need, self._restored, end = found.need, _made(found), self.trace.positions
        self.first_use = [end if use < 0 else use for use in found.first_use.tolist()]

    def _cheap_segments(self, made: dict[int, int]) -> frozenset[int]:
        """The maps of the segments that keep within what the largest single layer needs."""
        segments: dict[int, set[int]] = {}
        for map_id, position in made.items():
            segments.setdefault(position, set()).add(map_id)
        shared: set[int] = set()
        for position, maps in segments.items():
            step = self.trace.steps[position - self.trace.backward_start]
            if _bytes_of(self.trace, maps | set(step.maps)) + step.peak_bytes <= self._largest_layer_bytes:
                shared |= maps
        return frozenset(shared)


def _made(found: Needs) -> dict[int, int]:
    """The maps that chains make again to stay, and before which position."""
    return {map_id: position for map_id, position in enumerate(found.restored.tolist()) if position >= 0}


def _largest_layer_bytes(trace: Trace) -> int:
    """SuperNeurons' l_peak: what the largest call or step needs, what it reads included."""
    calls = (_bytes_of(trace, trace.read_by(call.index)) + call.peak_bytes for call in trace.calls)
    steps = (_bytes_of(trace, set(step.maps)) + step.peak_bytes for step in trace.steps)
    return max((*calls, *steps), default=0)


def _bytes_of(trace: Trace, maps: Iterable[int]) -> int:
    return sum(trace.maps[each].nbytes for each in maps)


POLICY = Policy(
    'tensor-cache', 'maps leave only when memory is short: cheap ones are recomputed, then others swapped', decide,
    may_need_more=True, takes_long=True)
