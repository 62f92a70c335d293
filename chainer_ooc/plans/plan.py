"""A plan: what happens to each feature map, when its swap-in starts, and what the simulator expects of it.

Its JSON form has what is true of the whole, and a row for each feature map, each swap-in and each chain. A plan alone
names maps, calls and positions by number; whether there are so many is known with its trace, and checked where both are
read (`check_fit`): execution follows a plan without a second look. Not checked is whether it is a good one. Whatever it
says, a map that is read while it is away is brought back first.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from chainer_ooc.errors import PlanFormatError
from chainer_ooc.plans.gap import WithGap
from chainer_ooc.problem import Decision, Shared, Starts, Verdict
from chainer_ooc.schedule.chains import Chains
from chainer_ooc.schedule.schedule import SwapIn
from chainer_ooc.trace import Trace
from chainer_ooc.trace.invariants import check_ascending, check_bytes, check_index, check_seconds
from chainer_ooc.trace.tables import Damage, Form, dump_table, load_table, make, one_of, shown

VERSION = 2
FORM = Form('plan', VERSION, PlanFormatError, 'write one with "chainer-ooc plan TRACE --save FILE"', 'plan again')
_HEAD = ('policy', 'budget_bytes', 'synchronous', 'mapped', 'peak_bytes', 'seconds')


@dataclass(frozen=True)
class PlanRow:
    """What a plan says about one feature map; see `Plan` and `Chains`."""

    verdict: Verdict
    leave: int
    uses: tuple[int, ...]
    restored: int


@dataclass(frozen=True)
class ChainRow:
    """The calls that run again before a step."""

    position: int
    calls: tuple[int, ...]


@dataclass(frozen=True)
class Plan(WithGap):
    """What execution follows for one graph.

    Attributes:
        policy: its name.
        budget_bytes: what it keeps within.
        verdicts: one for each feature map of the trace.
        leaves: for each map, the position after which it leaves if it is swapped.
        swap_ins: in the order in which they start, which is the order of their uses.
        chains: what runs again, and when.
        synchronous: copies that have begun are waited for at the end of each call and step.
        mapped: swapped maps are read where they are, see `Decision`.
        peak_bytes: predicted peak of near memory.
        seconds: predicted time of an iteration.
    """

    policy: str
    budget_bytes: int
    verdicts: tuple[Verdict, ...]
    leaves: tuple[int, ...]
    swap_ins: tuple[SwapIn, ...]
    chains: Chains
    synchronous: bool
    mapped: bool
    peak_bytes: int
    seconds: float

    @cached_property
    def moves_nothing(self) -> bool:
        """Whether every map stays where it is, and nothing runs again."""
        return all(each is Verdict.KEEP for each in self.verdicts) and not (self.swap_ins or self.chains.calls)

    def count(self, verdict: Verdict) -> int:
        """Number of feature maps with this verdict."""
        return self.verdicts.count(verdict)

    def counts(self) -> dict[str, int]:
        """Number of feature maps by the names of verdicts."""
        return {verdict.value: self.count(verdict) for verdict in Verdict}

    def decision(self) -> Decision:
        """What was decided: laid out for the same problem it gives this plan.

        So that it can be laid out with another verdict for some map too, or for other memory, its swap-ins look at the
        memory that there is, and its chains share what they make where that fits.
        """
        starts = Starts(checks_memory=not self.mapped, positions={each.map: each.start for each in self.swap_ins})
        shares_chains = None if self.chains.shared is True else self.chains.shared
        return Decision(self.verdicts, starts, dict(enumerate(self.leaves)), self.synchronous, shares_chains,
                        self.mapped)

    def to_json(self) -> str:
        """Returns the plan as JSON text, one row of a table per line; `from_json` gives an equal value."""
        chains = self.chains
        maps = itertools.starmap(PlanRow, zip(
            self.verdicts, self.leaves, chains.uses, chains.restored, strict=True))
        calls = [ChainRow(position, row) for position, row in sorted(chains.calls_at.items())]
        shared = chains.shared if isinstance(chains.shared, bool) else sorted(chains.shared)
        return FORM.dump({**{name: getattr(self, name) for name in _HEAD}, 'shares_chains': shared},
                         {'maps': dump_table(PlanRow, maps), 'swap_ins': dump_table(SwapIn, self.swap_ins),
                          'chains': dump_table(ChainRow, calls)})

    @staticmethod
    def from_json(text: str) -> Plan:
        """Reads what `to_json` wrote.

        Raises:
            PlanFormatError: the text is no plan, or one of another version.
        """
        return _plan(FORM.parse(text))

    @staticmethod
    def from_object(read: object) -> Plan:
        """Makes a plan of JSON that is parsed already, as part of a larger file.

        Raises:
            PlanFormatError: it is no plan, or one of another version.
        """
        return _plan(FORM.check(read))


def _shared(read: object) -> Shared:
    if isinstance(read, list) and all(type(each) is int for each in read):
        return frozenset(read)
    if not isinstance(read, bool):
        raise Damage('shares_chains', f'{shown(read)} is not true, false or a list of maps')
    return read


def _plan(values: dict[str, Any]) -> Plan:
    with FORM.reading():
        rest = dict(values)
        maps = load_table('maps', PlanRow, rest.pop('maps', None), {'verdict': one_of(Verdict)})
        calls = load_table('chains', ChainRow, rest.pop('chains', None))
        calls_at = {row.position: row.calls for row in calls}
        if len(calls_at) < len(calls):
            raise Damage('chains', 'two rows for one position')
        chains = Chains(calls_at, tuple(row.uses for row in maps), tuple(row.restored for row in maps),
                        _shared(rest.pop('shares_chains', None)))
        swap_ins = load_table('swap_ins', SwapIn, rest.pop('swap_ins', None))
        plan = make('plan', Plan, {
            'verdicts': tuple(row.verdict for row in maps),
            'leaves': tuple(row.leave for row in maps), 'swap_ins': swap_ins, 'chains': chains, **rest})
        check_bytes('budget_bytes', plan.budget_bytes)
        check_bytes('peak_bytes', plan.peak_bytes)
        check_seconds('seconds', plan.seconds)
        return plan


def check_fit(plan: Plan, trace: Trace) -> None:
    """Passes if a plan is for a trace: for its maps, its calls and its positions.

    Raises:
        Damage: it is for others; the error says what and in which row.
    """
    calls, positions = len(trace.calls), trace.positions
    if len(plan.verdicts) != len(trace.maps):
        raise Damage('maps', f'verdicts for {len(plan.verdicts)} feature maps, and the trace has {len(trace.maps)}')
    for number, (leave, uses, restored) in enumerate(zip(
            plan.leaves, plan.chains.uses, plan.chains.restored, strict=True)):
        where = f'maps, row {number}'
        check_index(f'{where}, leave', leave, max(positions, 1), 'position', trace.maps[number].last_forward_use)
        check_index(f'{where}, restored', restored, positions, 'position of a step', -1)
        check_ascending(f'{where}, uses', uses)
        for each in uses:
            check_index(f'{where}, uses', each, positions, 'position of a step', calls)
    for number, swap_in in enumerate(plan.swap_ins):
        where = f'swap_ins, row {number}'
        check_index(f'{where}, map', swap_in.map, len(trace.maps), 'feature map')
        if plan.verdicts[swap_in.map] is not Verdict.SWAP:
            raise Damage(f'{where}, map', f'map {swap_in.map} is not swapped')
        check_index(f'{where}, use', swap_in.use, positions, 'position of a step', calls)
        check_index(f'{where}, start', swap_in.start, swap_in.use + 1, 'position up to its use', calls)
    _check_chains(plan, trace)


def _check_chains(plan: Plan, trace: Trace) -> None:
    for position, again in plan.chains.calls_at.items():
        check_index('chains, position', position, trace.positions, 'position of a step', len(trace.calls))
        check_ascending(f'chains, position {position}, calls', again)
        for each in again:
            check_index(f'chains, position {position}, calls', each, len(trace.calls), 'call')
    for each in plan.chains.shared if isinstance(plan.chains.shared, frozenset) else ():
        check_index('shares_chains', each, len(trace.maps), 'feature map')
