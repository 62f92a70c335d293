"""Verdicts by simulated annealing: many small changes, each judged by its simulated timeline.

A walk goes from verdicts to others that differ in one map or two. What is faster is taken. What is slower is taken with
probability exp(-loss / temperature), so that the walk leaves a plan that no single change improves; the temperature
falls, and at the end only what is faster is taken::

    seconds |  .   start
            | . .. .                    the best so far is remembered
            |     .  .. .  .
            |          .  .. ......
            +----------------------- evaluations

There are two changes. *Flip*: one map has another verdict. *Exchange*: two maps with different verdicts change places,
one of them any map, the other near it in the order in which they leave, or any. Close to the budget nearly every flip
to keep is refused for its memory, and every flip from keep loses time; an exchange keeps memory about as full as it
was.

Where there are no more than `ENUMERATED` sets of verdicts, all are tried instead.

There are three walks, each from the best so far: a cool one, a hot one that may end far from its start, and a cool one
that looks around where the hot one has ended. What each is good for: docs/policies/auto.md.

The random numbers are the same each time, and the number of evaluations depends on the number of maps alone: equal
problems get equal plans, on a busy machine too, as long as the time limit does not stop a walk.

Source: Kirkpatrick, Gelatt and Vecchi 1983 (acceptance, and a temperature that falls by a constant factor). Changes
and numbers are ours. Left out: when maps leave and come back, and which chains are shared.
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
#: The temperature at the beginning of each walk, and at the end of all, as shares of the time of an iteration.
HEATS, COLD = (1e-3, 1e-2, 1e-3), 1e-5
#: In an exchange the second map is at most so many places away in every other case.
NEAR = 8
#: The time is looked at after so many evaluations.
BETWEEN_LOOKS = 64
_VERDICTS = tuple(Verdict)
_Change = tuple[tuple[int, int], ...]


class Draft:
    """A decision whose verdicts change in place.

    Attributes:
        codes: of the verdicts, one for each map; who holds the draft may change them.
    """

    def __init__(self, problem: Problem, decision: Decision):
        self.codes = bytearray(each.code for each in decision.verdicts)
        self._problem, self._ways = problem, decision
        self._ask = compiled_question(problem, decision, self.codes)

    @property
    def is_compiled(self) -> bool:
        """Whether evaluations are cheap."""
        return self._ask is not None

    def decision(self) -> Decision:
        """What it stands for now."""
        return replace(self._ways, verdicts=tuple(_VERDICTS[each] for each in self.codes))

    def seconds(self) -> float:
        """Simulated time of an iteration; infinite if it does not fit."""
        found = self._ask() if self._ask else None
        return evaluate(self._problem, self.decision()).seconds if found is None else found.seconds


def anneal(found: Search) -> None:
    """Looks for faster verdicts, under the leaves, starts and shared chains of the best decision."""
    possible = _possible(found.problem)
    if math.prod(map(len, possible.values())) <= ENUMERATED:
        _try_all(found, possible)
    elif found.found.fits:
        rng = random.Random(0)
        for heat in HEATS:
            _walk(found, possible, rng, heat)


def steps_over(maps: int, is_compiled: bool) -> int:
    """How many steps a walk over so many maps takes."""
    steps = min(STEPS, 200 + 4 * maps * maps)
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


def _walk(found: Search, possible: dict[int, bytes], rng: random.Random, heat: float) -> None:
    draft = Draft(found.problem, found.best)
    steps, codes = steps_over(len(possible), draft.is_compiled), draft.codes
    now = fastest = found.found.seconds
    best, temperature = bytes(codes), heat * now
    cooling = (COLD / heat) ** (1 / steps)
    changes = _changes(codes, possible, rng)
    for number in range(steps):
        if number % BETWEEN_LOOKS == 0 and found.is_over:
            break
        change = next(changes)
        before = [(each, codes[each]) for each, _ in change]
        if all(codes[each] == code for each, code in change):
            continue
        for map_id, code in change:
            codes[map_id] = code
        seconds = draft.seconds()
        if seconds <= now or rng.random() < math.exp((now - seconds) / temperature):
            now = seconds
            if now < fastest:
                best, fastest = bytes(codes), now
        else:
            for map_id, code in before:
                codes[map_id] = code
        temperature *= cooling
    codes[:] = best
    found.try_decision(draft.decision())


def _changes(codes: bytearray, possible: dict[int, bytes], rng: random.Random) -> Iterator[_Change]:
    """Flips and exchanges, in turn by chance: the maps that change, and their new codes."""
    maps, draw = list(possible), rng.random
    while True:
        at = int(draw() * len(maps))
        first = maps[at]
        if draw() < 0.5:
            others = possible[first]
            yield ((first, others[int(draw() * len(others))]),)
        else:
            near = draw() < 0.5
            second = maps[(at + int(draw() * (2 * NEAR + 1)) - NEAR) % len(maps) if near else int(draw() * len(maps))]
            if codes[second] in possible[first] and codes[first] in possible[second]:
                yield (first, codes[second]), (second, codes[first])
            else:
                yield ()
