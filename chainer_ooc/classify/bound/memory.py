"""The rows about memory: all maps together at each position, and single maps at some; see docs/bound.md."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable
from fractions import Fraction
from math import ceil, floor

from chainer_ooc.classify.bound.facts import Absent
from chainer_ooc.classify.bound.program import ONE, Entry
from chainer_ooc.classify.bound.relaxation import Relaxation

#: Of so many sizes of maps, the largest, the room that is needed is rounded up to whole maps.
SIZES = 16


class MemoryRows:
    """Adds rows about memory to a relaxation.

    Attributes:
        relaxation: that has the rows.
        places: the points at which not all maps may be there.
        excess: by position, the bytes by which all maps together are too many; below 0 where they fit.
    """

    def __init__(self, relaxation: Relaxation):
        self.relaxation, self.facts, self.program = relaxation, relaxation.facts, relaxation.program
        self.places: list[int] = []
        self._leaving = _sorted_by(self.facts.absents, lambda each: each.leaves)
        self._used = _sorted_by(self.facts.absents, lambda each: each.use)
        read_again = {each for call in self.facts.calls for each in self.facts.problem.trace.calls[call].inputs}
        #: Backward does not read them, but a chain may, and then they may go.
        self._unread = [each for each in self._used.pop(self.facts.positions, []) if each.map in read_again]
        self.excess = self._excess()
        self._absent: dict[tuple[int, int], int] = {}
        #: Bytes that are not there at a position as their maps are to be recomputed; that may be away as swapped.
        self.discarded, self.away = ({point: self.program.variable(self.facts.nbytes) for point in self.facts.points}
                                     for _ in range(2))
        for last, point in itertools.pairwise((-1, *self.facts.points)):
            self._account(last, point)
            self._hold(point)

    def gap(self, position: int) -> list[Absent]:
        """The maps that may be absent at a position, and that would be there if they were kept."""
        gone = self._unread if position >= self.facts.start else []
        return [each for each in self.facts.absents if each.leaves < position < each.use and each not in gone]

    def largest_share(self, position: int) -> float:
        """The largest map that may be absent at a position, as a share of what has to be."""
        return max((each.nbytes for each in self.gap(position)), default=0) / max(1, self.excess[position])

    def _excess(self) -> list[int]:
        """Bytes by which all of these maps are too many, at each position."""
        nbytes, found = 0, []
        for position, fixed in enumerate(self.facts.fixed):
            nbytes += sum(each.nbytes for each in self._leaving.get(position - 1, ()))
            nbytes -= sum(each.nbytes for each in self._used.get(position, ()))
            nbytes -= sum(each.nbytes for each in self._unread) if position == self.facts.start else 0
            found.append(fixed + nbytes - self.facts.budget)
        return found

    def _stretch(self, position: int) -> int:
        """The last stretch that has ended when a position computes; -1 before backward."""
        number = self.facts.stretch_of.get(position, -1)
        return number - 1 if number >= 0 and self.facts.stretches[number][1] > position else number

    # --- all maps together ------------------------------------------------------------------------------------------

    def _account(self, last: int, point: int) -> None:
        """Carries over what may be absent from one point to the next."""
        relaxation, start = self.relaxation, self.facts.start
        discarded = [entry for each in _between(self._leaving, last, point)
                     for entry in relaxation.is_again(each.map, -each.nbytes)]
        away: list[Entry] = []
        if last < start <= point:
            discarded += [entry for each in self._unread for entry in relaxation.is_again(each.map, each.nbytes)]
        before, now = self._stretch(last), self._stretch(point)
        for each in _between(self._used, last + 1, point + 1):
            size, map_id = each.nbytes, each.map
            discarded += [*relaxation.is_again(map_id, size), *relaxation.was_made(map_id, before, -size)]
            away += [(relaxation.swapped[map_id], size), *relaxation.was_wanted(map_id, before, -size)]
        for each in self.facts.absents if now != before else ():
            if each.use > point:
                for stretch, size in ((now, each.nbytes), (before, -each.nbytes)):
                    discarded += relaxation.was_made(each.map, stretch, size)
                    away += relaxation.was_wanted(each.map, stretch, size)
        self._carry(self.discarded[point], [self.discarded[last]] if last >= 0 else [], discarded)
        if point >= start:
            self._carry(self.away[point], [self.away[last] if last >= start else relaxation.can_go[point]], away)

    def _carry(self, variable: int, before: list[int], entries: list[Entry]) -> None:
        self.program.at_most('memory', [(variable, ONE), *((each, -ONE) for each in before), *entries])

    def _hold(self, position: int) -> None:
        relaxation, program = self.relaxation, self.program
        out, begun, away = (each[position] for each in (relaxation.out_at, relaxation.begun, self.away))
        unread: list[Entry] = []
        if position >= self.facts.start:
            program.at_most('away', [(out, ONE), (begun, -ONE), (away, -ONE)])
            program.at_most('away', [(out, ONE), (relaxation.in_at[position], -ONE), (away, -ONE)])
            unread = [(relaxation.swapped[each.map], each.nbytes) for each in self._unread]
        if self.excess[position] > 0 or unread:
            self.places.append(position)
            program.at_most('memory', [(begun, ONE), (out, -ONE), (self.discarded[position], -ONE), *unread],
                            -self.excess[position], position)

    # --- single maps ------------------------------------------------------------------------------------------------

    def look_closer(self, *positions: int) -> None:
        """Tells the maps apart at some positions, where each is absent whole or not at all."""
        for position in positions:
            self._look_closer(position)

    def _look_closer(self, position: int) -> None:
        gap, relaxation = self.gap(position), self.relaxation
        if self.excess[position] <= 0:
            return
        stretch = self._stretch(position)
        absent: list[tuple[Absent, list[Entry]]] = []
        for each in gap:
            away = self._absent[each.map, position] = self.program.variable()
            self.program.at_most('whole', [(away, ONE), (relaxation.swapped[each.map], -ONE),
                                           *relaxation.was_wanted(each.map, stretch, ONE)], 0, position)
            absent.append((each, [(away, ONE), *relaxation.is_again(each.map, ONE),
                                  *relaxation.was_made(each.map, stretch, -ONE)]))
        self._cover(position, absent)
        self._agree(position, gap)
        self._whole_out(position, gap)
        self._whole_in(position, gap)

    def _cover(self, position: int, absent: list[tuple[Absent, list[Entry]]]) -> None:
        """What is absent makes room; rounded up in units of each size, as each map is absent whole or not at all."""
        excess = self.excess[position]
        self._at_least('whole', position, [(min(each.nbytes, excess), row) for each, row in absent], excess)
        for size in sorted({each.nbytes for each, _ in absent})[-SIZES:]:
            times = ceil(Fraction(excess, size))
            rest = Fraction(excess, size) - (times - 1)
            if rest < 1:
                self._at_least('rounding', position, [
                    (_rounded(Fraction(each.nbytes, size), rest), row) for each, row in absent], times * ONE)

    def _at_least(self, rule: str, position: int, terms: Iterable[tuple[int, list[Entry]]], side: int) -> None:
        self.program.at_most(rule, [(variable, -factor if sign > 0 else factor) for factor, row in terms
                                    for variable, sign in row], -side, position)

    def _agree(self, position: int, gap: list[Absent]) -> None:
        """Bytes that left and are not on their way back are those of the maps that are away."""
        relaxation = self.relaxation
        unread = self._unread if position >= self.facts.start else []
        for sign, others in ((1, [(relaxation.swapped[each.map], -each.nbytes) for each in unread]), (-1, [])):
            self.program.at_most('whole', [
                (relaxation.out_at[position], sign * ONE), (relaxation.begun[position], -sign * ONE), *others,
                *((self._absent[each.map, position], -sign * each.nbytes) for each in gap)], 0, position)

    def _whole_out(self, position: int, gap: list[Absent]) -> None:
        for after in sorted({each.leaves for each in gap}):
            self.program.at_most('out whole', [
                *((self._absent[each.map, position], each.write) for each in gap if each.leaves >= after),
                *self._lost(after, position)], self.facts.seconds_between(after + 1, position), position)

    def _whole_in(self, position: int, gap: list[Absent]) -> None:
        begins = max(position, self.facts.start - 1)
        for use in sorted({each.use for each in gap} - {self.facts.positions}):
            self.program.at_most('in whole', [
                *((self._absent[each.map, position], each.read) for each in gap if each.use <= use),
                *self._lost(begins, use)], self.facts.seconds_between(begins + 1, use), position)

    def _lost(self, first: int, last: int) -> list[Entry]:
        """What is lost between two positions, on the left side: between the points around them it is no less."""
        points, lost = self.facts.points, self.relaxation.lost
        after = bisect.bisect_left(points, last)
        return [(lost[points[after] if after < len(points) else self.facts.positions], -ONE),
                (lost[points[bisect.bisect_right(points, first) - 1]], ONE)]


def _between(maps: dict[int, list[Absent]], first: int, end: int) -> list[Absent]:
    """The maps of the positions from `first` to the one before `end`."""
    return [each for position in range(first, end) for each in maps.get(position, ())]


def _sorted_by(maps: Iterable[Absent], key: Callable[[Absent], int]) -> dict[int, list[Absent]]:
    found: dict[int, list[Absent]] = {}
    for each in maps:
        found.setdefault(key(each), []).append(each)
    return found


def _rounded(times: Fraction, rest: Fraction) -> int:
    """A coefficient of the inequality of which all sides were rounded up (mixed-integer rounding)."""
    whole = floor(times)
    return ceil((whole + min(Fraction(1), (times - whole) / rest)) * ONE)
