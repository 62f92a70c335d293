"""Which calls run again before which step, under a classification.

A map with verdict RECOMPUTE is made by its producer again before the first step that reads it. The producer's inputs
may be absent too: then theirs run before, and so on back to maps that are kept or swapped, the *bases* of the chain::

    call           0 ----> 1 ----> 2 ----> 3 ----> loss        backward of 3 reads map 2
    map            swap    rec.    (dead)  rec.                 -> runs 1, 2 (its input died), 3
    base           ^^^^                                         -> map 0 is swapped in for it

What a chain makes stays until its own last use, so that a prefix that several chains share runs once. Where memory
does not allow that, only what the step itself reads stays, and prefixes run again for each step: a chain of n calls
then costs up to n*n/2 calls and the memory of one. A policy may choose that for each map by itself. A base may be read
by chains later than by any step: these are uses like others.

Source: PoocH 4.4 (recomputation recurses); SuperNeurons 3.4 (speed-centric and memory-centric recomputation).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from chainer_ooc.problem import Shared, Verdict, is_shared
from chainer_ooc.trace import Trace


@dataclass(frozen=True)
class Chains:
    """The recomputations of an iteration.

    Attributes:
        calls_at: by position of a step, the calls that run again before it, in order.
        uses: for each map, the positions at which steps or chains read it, ascending.
        restored: for each map, the position before which it is made again to stay, or -1.
        shared: what a chain makes stays for the steps after; or the ids of the maps for which that is so.
    """

    calls_at: dict[int, tuple[int, ...]]
    uses: tuple[tuple[int, ...], ...]
    restored: tuple[int, ...]
    shared: Shared = True

    @property
    def calls(self) -> frozenset[int]:
        """All calls that run again."""
        return frozenset(call for calls in self.calls_at.values() for call in calls)

    def seconds(self, seconds: Sequence[float]) -> float:
        """What all of them take together, by the seconds of each call."""
        return sum(seconds[call] for calls in self.calls_at.values() for call in calls)


def find_chains(trace: Trace, verdicts: tuple[Verdict, ...], shared: Shared = True) -> Chains:
    """Follows the steps and works out what each of them needs to have made again."""
    uses = [each.backward_uses for each in trace.maps]
    more_uses: dict[int, set[int]] = {}
    restored: dict[int, int] = {}
    calls_at: dict[int, tuple[int, ...]] = {}
    if Verdict.RECOMPUTE not in verdicts:
        return Chains({}, tuple(uses), (-1,) * len(trace.maps))
    for step in trace.steps:
        wanted = [each for each in step.maps if verdicts[each] is Verdict.RECOMPUTE and each not in restored]
        if not wanted:
            continue
        calls, bases = _chain(trace, verdicts, wanted, restored)
        calls_at[step.position] = calls
        for base in bases:
            more_uses.setdefault(base, set()).add(step.position)
        for call in calls:
            for made in trace.made_by(call):
                stays = verdicts[made] is Verdict.RECOMPUTE and (is_shared(shared, made) or made in wanted)
                if stays and trace.maps[made].backward_uses[-1:] >= (step.position,):
                    restored[made] = step.position
    for base, positions in more_uses.items():
        uses[base] = tuple(sorted(positions.union(uses[base])))
    return Chains(calls_at, tuple(uses), tuple(restored.get(each.id, -1) for each in trace.maps), shared)


def chain_peak_bytes(trace: Trace, chains: Chains, position: int) -> int:
    """What the chain before a step has at its highest, beside all the maps that it makes to stay.

    Those count from the beginning of the position on, though the chain has yet to make them: what is still to come is
    room for what runs before, and what a call makes is within the call's own peak.
    """
    calls, maps, restored = chains.calls_at.get(position, ()), trace.maps, chains.restored
    peak_bytes = live_bytes = to_come_bytes = 0
    last_use: dict[int, int] = {}
    for call in calls:
        last_use.update(dict.fromkeys(trace.read_by(call), call))
        for made in trace.made_by(call):
            if restored[made] == position:
                to_come_bytes += maps[made].nbytes
    dying_bytes: dict[int, int] = {}  # by the call that reads last
    for call in calls:
        peak_bytes = max(peak_bytes, live_bytes + trace.calls[call].peak_bytes - to_come_bytes)
        for made in trace.made_by(call):
            if restored[made] == position:
                to_come_bytes -= maps[made].nbytes
            elif (read_last := last_use.get(made, -1)) > call:
                live_bytes += maps[made].nbytes
                dying_bytes[read_last] = dying_bytes.get(read_last, 0) + maps[made].nbytes
        live_bytes -= dying_bytes.pop(call, 0)
    return peak_bytes


def calls_again(trace: Trace, verdicts: Sequence[Verdict], wanted: Iterable[int]) -> tuple[int, ...]:
    """The calls that give maps again, in order, if no other chain has run before."""
    return _chain(trace, verdicts, wanted, ())[0]


def _chain(trace: Trace, verdicts: Sequence[Verdict], wanted: Iterable[int],
           restored: Container[int]) -> tuple[tuple[int, ...], set[int]]:
    """Returns the calls that give the maps, in order, and the maps that they start from; `restored` are there again."""
    calls: set[int] = set()
    bases: set[int] = set()
    waiting = list(wanted)
    while waiting:
        call = trace.maps[waiting.pop()].producer
        assert call is not None, 'a map from outside has no call that makes it again'
        if call in calls:
            continue
        calls.add(call)
        for map_id in trace.read_by(call):
            each = trace.maps[map_id]
            if verdicts[map_id] is Verdict.RECOMPUTE and map_id not in restored:
                waiting.append(map_id)
            elif each.retained:
                bases.add(map_id)
            elif each.producer is not None:
                waiting.append(map_id)
    return tuple(sorted(calls)), bases
