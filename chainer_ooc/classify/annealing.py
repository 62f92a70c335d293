"""Verdicts by simulated annealing: many small changes, each judged by its simulated timeline.

A walk goes from verdicts to others that differ in one map or two. What is faster is taken. What is slower is taken with
probability exp(-loss / temperature), so that the walk leaves a plan that no single change improves::

    seconds |  .   start
            | . .. .                    the best so far is remembered
            |     .  .. .  .
            |          .  .. ......     the temperature falls: in the end only what is faster is taken
            +----------------------- evaluations

What each of the three changes and of the four walks is good for: docs/policies/auto.md.

Source: Kirkpatrick, Gelatt and Vecchi 1983 (acceptance, and a temperature that falls by a constant factor). Changes
and numbers are ours. Left out: when maps leave and come back.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace

from chainer_ooc.classify.search import Search, compiled_question, evaluate
from chainer_ooc.problem import Decision, Problem, Verdict, can_leave, can_recompute

#: So many sets of verdicts are all tried: six maps with three verdicts each.
ENUMERATED = 3 ** 6
#: A walk takes at most so many steps; where they are not compiled, a `SLOWER`-th of them, and `FEW` in any case.
STEPS, FEW, SLOWER = 20_000, 1_000, 10
#: Steps times positions of the iteration are at most so many, as each step simulates each position.
SIMULATED = 30_000_000
#: Of each walk, the temperature at its beginning, as a share of the time of an iteration, and the share of changes that
#: are about single maps' staying.
WALKS = ((1e-3, 0.0), (3e-2, 0.3), (1e-2, 0.3), (1e-3, 0.3))
#: The temperature at the end of all.
COLD = 1e-5
#: Of the random numbers. What others come to for some networks: docs/policies/auto.md.
SEED = 0
#: In an exchange the second map is at most so many places away in every other case.
NEAR = 8
#: The time is looked at after so many evaluations.
BETWEEN_LOOKS = 64
_VERDICTS = tuple(Verdict)
#: Arrays of a draft, places in them, and what is to stand there.
_Change = tuple[tuple[bytearray, int, int], ...]


class Draft:
    """A decision whose verdicts change in place.

    Attributes:
        codes: of the verdicts, one for each map.
        stays: for each map, 1 if it stays for the steps after where a chain makes it again on its way; None where the
            decision does not tell maps apart. Who holds the draft may change both.
    """

    def __init__(self, problem: Problem, decision: Decision):
        self.codes = bytearray(each.code for each in decision.verdicts)
        self.stays: bytearray | None = None
        if isinstance(decision.shares_chains, frozenset):
            self.stays = bytearray(each in decision.shares_chains for each in range(len(self.codes)))
        self._problem, self._ways = problem, decision
        self._ask = compiled_question(problem, decision, self.codes, self.stays)

    @property
    def is_compiled(self) -> bool:
        """Whether evaluations are cheap."""
        return self._ask is not None

    @property
    def state(self) -> tuple[bytes, bytes]:
        """What stands in both arrays."""
        return bytes(self.codes), bytes(self.stays or b'')

    @state.setter
    def state(self, state: tuple[bytes, bytes]) -> None:
        self.codes[:], stays = state
        if self.stays is not None:
            self.stays[:] = stays

    def decision(self) -> Decision:
        """What it stands for now."""
        decision = replace(self._ways, verdicts=tuple(_VERDICTS[each] for each in self.codes))
        if self.stays is None:
            return decision
        return replace(decision, shares_chains=frozenset(
            map_id for map_id, code in enumerate(self.codes) if code == Verdict.RECOMPUTE.code and self.stays[map_id]))

    def seconds(self) -> float:
        """Simulated time of an iteration; infinite if it does not fit."""
        found = self._ask() if self._ask else None
        return evaluate(self._problem, self.decision()).seconds if found is None else found.seconds


def anneal(found: Search) -> None:
    """Looks for faster verdicts and shared chains, under the leaves and starts of the best decision."""
    possible = _possible(found.problem)
    if math.prod(map(len, possible.values())) <= ENUMERATED:
        _try_all(found, possible)
    elif found.found.fits:
        rng = random.Random(SEED)
        for heat, stays in WALKS:
            _walk(found, possible, rng, heat, stays)


def steps_over(maps: int, positions: int, is_compiled: bool) -> int:
    """How many steps a walk over so many maps of an iteration takes."""
    steps = min(STEPS, 200 + 4 * maps * maps, SIMULATED // positions)
    return steps if is_compiled else min(steps, max(FEW, steps // SLOWER))


def _possible(problem: Problem) -> dict[int, bytes]:
    """Codes of the verdicts that each map can have, of maps that have several, in the order in which they leave."""
    trace = problem.trace
    again = can_recompute(trace, problem.min_bytes)
    movable = sorted((each for each in trace.maps if can_leave(each, problem.min_bytes)),
                     key=lambda each: (each.leaves_at, each.id))
    return {each.id: bytes([Verdict.KEEP.code, Verdict.SWAP.code, *[Verdict.RECOMPUTE.code] * again[each.id]])
            for each in movable}


def _try_all(found: Search, possible: dict[int, bytes]) -> None:
    draft, fastest = Draft(found.problem, found.best), found.found.seconds
    best = draft.decision()
    for number, chosen in enumerate(itertools.product(*possible.values())):
        if number % BETWEEN_LOOKS == 0 and found.is_over:
            break
        for map_id, code in zip(possible, chosen, strict=True):
            draft.codes[map_id] = code
        seconds = draft.seconds()
        if seconds < fastest:
            best, fastest = draft.decision(), seconds
    found.try_decision(best)


def _told_apart(problem: Problem, decision: Decision) -> Decision:
    """The same decision, which says of each map whether it stays where a chain makes it."""
    shared = decision.shares_chains
    if isinstance(shared, frozenset):
        return decision
    if shared is None:
        shared = evaluate(problem, replace(decision, shares_chains=True)).floor_bytes <= problem.budget_bytes
    return replace(decision, shares_chains=frozenset(range(len(decision.verdicts)) if shared else ()))


def _walk(found: Search, possible: dict[int, bytes], rng: random.Random, heat: float, stays: float) -> None:
    now = fastest = found.found.seconds
    if not heat * now:  # nothing is faster
        return
    draft = Draft(found.problem, _told_apart(found.problem, found.best) if stays else found.best)
    steps = steps_over(len(possible), found.problem.trace.positions, draft.is_compiled)
    best, temperature = draft.state, heat * now
    cooling = (COLD / heat) ** (1 / steps)
    changes = _changes(draft, possible, rng, stays)
    for number in range(steps):
        if number % BETWEEN_LOOKS == 0 and found.is_over:
            break
        change = next(changes)
        before = [(array, at, array[at]) for array, at, _ in change]
        if all(array[at] == value for array, at, value in change):
            continue
        for array, at, value in change:
            array[at] = value
        seconds = draft.seconds()
        if seconds <= now or rng.random() < math.exp((now - seconds) / temperature):
            now = seconds
            if now < fastest:
                best, fastest = draft.state, now
        else:
            for array, at, value in before:
                array[at] = value
        temperature *= cooling
    draft.state = best
    found.try_decision(draft.decision())


def _changes(draft: Draft, possible: dict[int, bytes], rng: random.Random, share: float) -> Iterator[_Change]:
    """Stays, flips and exchanges, in turn by chance."""
    maps, codes, stays, draw = list(possible), draft.codes, draft.stays, rng.random
    again = [each for each in maps if Verdict.RECOMPUTE.code in possible[each]]
    while True:
        if stays is not None and again and draw() < share:
            map_id = again[int(draw() * len(again))]
            yield ((stays, map_id, 1 - stays[map_id]),) if codes[map_id] == Verdict.RECOMPUTE.code else ()
            continue
        at = int(draw() * len(maps))
        first = maps[at]
        if draw() < 0.5:
            others = possible[first]
            yield ((codes, first, others[int(draw() * len(others))]),)
        else:
            near = draw() < 0.5
            second = maps[(at + int(draw() * (2 * NEAR + 1)) - NEAR) % len(maps) if near else int(draw() * len(maps))]
            if codes[second] in possible[first] and codes[first] in possible[second]:
                yield (codes, first, codes[second]), (codes, second, codes[first])
            else:
                yield ()
