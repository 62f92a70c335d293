"""The variables of the bound, and the rows about verdicts, time and copies; see docs/bound.md for the proof of each.

A course is what `simulate.run` does with a schedule that fits the budget. Each course gives a value to each variable
here, and keeps all rows; so the minimum over all values is at most what the fastest course loses.
"""

from __future__ import annotations

import itertools

from chainer_ooc.classify.bound.facts import Absent, Facts
from chainer_ooc.classify.bound.program import ONE, Entry, LinearProgram


class Relaxation:
    """A linear program over all courses of a problem.

    Attributes:
        facts: the problem.
        program: the rows so far.
        swapped: by map, 1 if it is swapped.
        again: by map, 1 if it is recomputed; only those that can be.
        lost: by point, what has been lost when its computation begins: waits, and what ran again; at last the end.
        out_at, out_after: by point, bytes of maps that leave that have been copied out when its computation begins,
            and ends.
        begun: by point, bytes of such maps that are on their way back, or are back, while it computes.
        in_at, in_after: by point, bytes of such maps that have been copied back when it begins, and ends.
        can_go: by point, bytes of the swapped maps that can have begun to leave.
        runs: by call and stretch, 1 if the call runs again there.
        made: by map and stretch, 1 if the map was made again to stay, there or before.
        wanted: by map and stretch, 1 if the map is swapped and was read in backward, there or before.
    """

    def __init__(self, facts: Facts):
        self.facts, self.program = facts, LinearProgram()
        program, count = self.program, facts.positions
        self.swapped = {each.map: program.variable() for each in facts.absents}
        self.again = {each.map: program.variable() for each in facts.absents if each.call >= 0}
        self.lost = {each: program.variable(facts.longest if each else 0) for each in (*facts.points, count)}
        self.out_at, self.out_after, self.can_go = self._bytes(1), self._bytes(0), self._bytes(1)
        self.begun, self.in_at, self.in_after = (self._bytes(facts.start) for _ in range(3))
        self.made = {(each.map, stretch): program.variable() for each in facts.absents
                     if each.map in self.again and each.use < count for stretch in range(facts.stretch_of[each.use])}
        self.wanted = {(each.map, stretch): program.variable() for each in facts.absents
                       if each.use < count for stretch in range(facts.stretch_of[each.use])}
        self.runs = {(call, stretch): program.variable() for call, last in self._last_runs().items()
                     for stretch in range(last + 1)}
        #: Seconds that a byte takes out, and in, at least.
        self._write_rate = min((each.write * ONE // each.nbytes for each in facts.absents if each.nbytes), default=0)
        self._read_rate = min((each.read * ONE // each.nbytes for each in facts.absents if each.nbytes), default=0)
        program.minimise(self.lost[count])
        self._verdicts()
        self._recomputation()
        self._time()
        self._copies_out()
        self._copies_in()

    def _bytes(self, start: int) -> dict[int, int]:
        """A variable for each point, 0 before `start`."""
        return {point: self.program.variable(self.facts.nbytes if point >= start else 0) for point in self.facts.points}

    def _last_runs(self) -> dict[int, int]:
        """The last stretch in which each call may have to run again: later its outputs are there, or not needed."""
        facts, maps = self.facts, self.facts.problem.trace.maps
        last = dict.fromkeys(facts.calls, -1)
        for each in facts.absents:
            if each.call >= 0 and each.use < facts.positions:
                last[each.call] = max(last[each.call], facts.stretch_of[each.use])
        for call in sorted(last, reverse=True):
            for map_id in self.facts.problem.trace.read_by(call):
                producer = maps[map_id].producer
                if producer is not None and not maps[map_id].retained:
                    last[producer] = max(last[producer], last[call])
        return last

    # --- verdicts ---------------------------------------------------------------------------------------------------

    def is_again(self, map_id: int, factor: int) -> list[Entry]:
        """`factor` times whether a map is recomputed."""
        return [(self.again[map_id], factor)] if map_id in self.again else []

    def was_made(self, map_id: int, stretch: int, factor: int) -> list[Entry]:
        """`factor` times whether a map was made again when a stretch ends."""
        return [(self.made[map_id, stretch], factor)] if (map_id, stretch) in self.made else []

    def was_wanted(self, map_id: int, stretch: int, factor: int) -> list[Entry]:
        """`factor` times whether a swapped map was read when a stretch ends."""
        return [(self.wanted[map_id, stretch], factor)] if (map_id, stretch) in self.wanted else []

    def _verdicts(self) -> None:
        for each in self.facts.absents:
            self.program.at_most('verdicts', [(self.swapped[each.map], ONE), *self.is_again(each.map, ONE)], ONE)
            if each.use < self.facts.positions:
                last = self.facts.stretch_of[each.use] - 1
                self._grows(self.wanted, each.map, last, self.swapped[each.map])
                if each.map in self.again:
                    self._grows(self.made, each.map, last, self.again[each.map])

    def _grows(self, variables: dict[tuple[int, int], int], map_id: int, last: int, verdict: int) -> None:
        ways = [*(variables[map_id, stretch] for stretch in range(last + 1)), verdict]
        for before, after in itertools.pairwise(ways):
            self.program.at_most('verdicts', [(before, ONE), (after, -ONE)])

    # --- recomputation ----------------------------------------------------------------------------------------------

    def _recomputation(self) -> None:
        for each in self.facts.absents:
            if each.call >= 0 and each.use < self.facts.positions:
                self._is_made(each)
        for call, stretch in self.runs:
            for map_id in self.facts.problem.trace.read_by(call):
                self._is_at_hand(call, stretch, map_id)

    def _is_made(self, each: Absent) -> None:
        last = self.facts.stretch_of[each.use]
        for stretch in range(last + 1):
            now = self.is_again(each.map, ONE) if stretch == last else self.was_made(each.map, stretch, ONE)
            self.program.at_most('made', [*now, *self.was_made(each.map, stretch - 1, -ONE),
                                          (self.runs[each.call, stretch], -ONE)])

    def _is_at_hand(self, call: int, stretch: int, map_id: int) -> None:
        facts, run = self.facts, self.runs[call, stretch]
        each = facts.problem.trace.maps[map_id]
        maker = self._runs_too(each.producer, stretch)
        if not each.retained:
            if maker:
                self.program.at_most('inputs that died', [(run, ONE), *maker])
            return
        absent = facts.by_map.get(map_id)
        if absent is None or absent.use == facts.positions or stretch >= facts.stretch_of[absent.use]:
            return
        self.program.at_most('inputs', [
            (run, ONE), (self.swapped[map_id], ONE), *self.was_wanted(map_id, stretch, -ONE),
            *self.is_again(map_id, ONE), *self.was_made(map_id, stretch - 1, -ONE),
            *(maker if map_id in self.again else [])], ONE)

    def _runs_too(self, call: int | None, stretch: int) -> list[Entry]:
        run = None if call is None else self.runs.get((call, stretch))
        return [] if run is None else [(run, -ONE)]

    # --- time -------------------------------------------------------------------------------------------------------

    def _time(self) -> None:
        lost, program = self.lost, self.program
        for before, after in itertools.pairwise(lost.values()):
            program.at_most('time', [(before, ONE), (after, -ONE)])
        for number, (first, last) in enumerate(self.facts.stretches):
            program.at_most('time', [(lost[first], ONE), *self._run_seconds(number), (lost[last + 1], -ONE)])
        if self.facts.problem.costs.slowdown:
            self._slowdown()

    def _run_seconds(self, stretch: int) -> list[Entry]:
        return [(self.runs[call, stretch], seconds) for call, seconds in self.facts.calls.items()
                if (call, stretch) in self.runs]

    def _slowdown(self) -> None:
        """Copies draw out the computations beside them, or are waited for."""
        facts, program = self.facts, self.program
        slowdown = facts.problem.costs.slowdown
        share = int(slowdown / (1 + slowdown) * (1 - 1e-12) * ONE)
        ran = [program.variable(facts.longest) for _ in range(len(facts.stretches) + 1)]
        for number, _ in enumerate(facts.stretches):
            program.at_most('slowdown', [(ran[number], ONE), *self._run_seconds(number), (ran[number + 1], -ONE)])
        edges = [*(first for first, _ in facts.stretches), facts.positions]
        for before, edge in zip(ran, edges, strict=True):
            for at, after, rate in ((self.out_at, self.out_after, self._write_rate),
                                    (self.in_at, self.in_after, self._read_rate)):
                copied = at[edge] if edge in at else after[edge - 1]
                program.at_most('slowdown', [
                    (before, ONE), (copied, share * rate // ONE), (self.lost[edge], -ONE)])

    # --- copies -----------------------------------------------------------------------------------------------------

    def _copies_out(self) -> None:
        facts, program, can_go = self.facts, self.program, self.can_go
        leaving = sorted((each.leaves, (self.swapped[each.map], -each.nbytes)) for each in facts.absents)
        for last, point in zip([None, *facts.points], facts.points, strict=False):
            before = [(can_go[last], -ONE)] if last is not None else []
            entries = [entry for leaves, entry in leaving if (last or 0) <= leaves < point]
            program.at_most('leaves', [(can_go[point], ONE), *before, *entries])
            program.at_most('leaves', [(self.out_at[point], ONE), (can_go[point], -ONE)])
            program.at_most('leaves', [(self.out_after[point], ONE), (can_go[point], -ONE)])
        self._stream('out', self.out_at, self.out_after, self._write_rate, 0)

    def _copies_in(self) -> None:
        for point in self.facts.points:
            if point >= self.facts.start:
                self.program.at_most('comes', [(self.in_after[point], ONE), (self.begun[point], -ONE)])
        self._stream('in', self.in_at, self.in_after, self._read_rate, max(0, self.facts.start - 1))

    def _stream(self, rule: str, at: dict[int, int], after: dict[int, int], rate: int, start: int) -> None:
        """Bytes that are copied, none up to the beginning of `start`, only grow, and no faster than the link is."""
        facts, program, lost = self.facts, self.program, self.lost
        points = [each for each in facts.points if each >= start]
        for point, following in itertools.pairwise([*points, facts.positions]):
            waits = [(lost[following], -ONE), (lost[point], ONE)]
            is_longer = point >= facts.start or facts.problem.costs.slowdown > 0
            program.at_most(rule, [(at[point], ONE), (after[point], -ONE)])
            program.at_most(rule, [(after[point], rate), (at[point], -rate), *(waits if is_longer else [])],
                            facts.durations[point])
            if following < facts.positions:
                program.at_most(rule, [(after[point], ONE), (at[following], -ONE)])
                program.at_most(rule, [(at[following], rate), (after[point], -rate), *waits],
                                facts.seconds_between(point + 1, following))
                if is_longer:
                    program.at_most(rule, [(at[following], rate), (at[point], -rate), *waits],
                                    facts.seconds_between(point, following))
