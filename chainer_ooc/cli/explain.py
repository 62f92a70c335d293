"""``chainer-ooc explain TRACE``: why each of the largest feature maps got its verdict.

The reason is found by trial, so that it holds for any policy: the same plan is simulated once more with this one map
given each of the other verdicts, and the answer says what that would cost. Left out: two maps that change together.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.cli import arguments as common
from chainer_ooc.cli import binding, gap, places
from chainer_ooc.cli.answer import Answer
from chainer_ooc.cli.prediction import problem_of, read_trace
from chainer_ooc.cli.stage import stage
from chainer_ooc.plans.making import make_plan
from chainer_ooc.problem import Decision, Problem, Verdict, can_leave, can_recompute, changed
from chainer_ooc.quantities import counted, format_bytes
from chainer_ooc.report.table import Column, Table, figures, seconds
from chainer_ooc.schedule.chains import find_chains
from chainer_ooc.schedule.schedule import lay_out
from chainer_ooc.simulate.simulator import run as run_on_paper
from chainer_ooc.simulate.simulator import simulate
from chainer_ooc.trace import FeatureMap

HELP = 'say why each of the largest feature maps is kept, swapped or recomputed'
_NOTHING_SECONDS = 1e-9  # sums in another order
_DONE = {Verdict.KEEP: 'kept', Verdict.SWAP: 'swapped', Verdict.RECOMPUTE: 'recomputed'}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the trace, policy, budget and the number of maps."""
    common.add_trace(parser)
    common.add_policy_and_budget(parser)
    common.add_prove(parser)
    parser.add_argument('--top', type=common.positive, default=10, metavar='N',
                        help='feature maps to show (%(default)s)')


def run(arguments: argparse.Namespace) -> Answer:
    """Explains a plan.

    Raises:
        InfeasibleBudgetError: no plan of the policy keeps within the budget.
        OocError: the trace cannot be read.
    """
    trace = read_trace(arguments.trace)
    problem = problem_of(trace, arguments.budget, arguments.min_bytes)
    decisions: list[Decision] = []

    def decide(problem: Problem) -> Decision:
        decisions.append(policy.decide(problem))
        return decisions[-1]

    policy = POLICIES[arguments.policy]
    plan = make_plan(replace(policy, decide=decide), problem)
    explainer = _Explainer(problem, decisions[-1])
    retained = [each for each in trace.maps if each.retained]  # the others are freed by themselves
    largest = sorted(retained, key=lambda each: (-each.nbytes, each.id))[:arguments.top]
    rows = [explainer.explain(each) for each in largest]
    with stage('looking for what is possible at best'):
        bound = gap.bound_of(problem, arguments.prove, plan)
    with stage('looking for what binds'):
        binds = binding.binding(problem, plan, bound, arguments.top, arguments.prove)
    facts = {'policy': plan.policy, 'budget_bytes': plan.budget_bytes, 'seconds': plan.seconds,
             'peak_bytes': plan.peak_bytes, 'stall_seconds': explainer.timeline.stall_seconds,
             **gap.facts_of(plan, bound), **binds, 'maps': rows}
    title = (f'{plan.policy} within {format_bytes(plan.budget_bytes)}: {seconds(plan.seconds)}, of which '
             f'{seconds(explainer.timeline.stall_seconds)} stalled; the largest {len(rows)} of '
             f'{counted(len(retained), "map")}')
    closing = [*gap.hints([bound]), *(
        f'map {row["map"]}{places.place(row)}, {row["verdict"]}: {row["why"]}' for row in rows)]
    return Answer(facts, [_table(rows, title), *binding.tables(plan, bound, binds)], closing)


class _Explainer:
    def __init__(self, problem: Problem, decision: Decision):
        self.problem, self.decision = problem, decision
        self.timeline = simulate(problem, lay_out(problem, decision))
        self.recomputable = can_recompute(problem.trace, problem.min_bytes)

    def explain(self, feature_map: FeatureMap) -> dict[str, Any]:
        """One row of the answer."""
        map_id, verdict = feature_map.id, self.decision.verdicts[feature_map.id]
        leaves = can_leave(feature_map, self.problem.min_bytes)
        costs, nbytes = self.problem.costs, feature_map.nbytes
        others = [self._alternative(map_id, other) for other in self._allowed(feature_map) if other is not verdict]
        return {
            'map': map_id, **places.facts_of(self.problem.trace, map_id), 'nbytes': nbytes, 'verdict': verdict.value,
            'swap_out_seconds': costs.write_seconds(nbytes) if leaves else None,
            'swap_in_seconds': costs.read_seconds(nbytes) if leaves else None,
            'recompute_seconds': self._recompute_seconds(map_id) if self.recomputable[map_id] else None,
            'stall_seconds': sum(each.seconds for each in self.timeline.stalls if each.map == map_id),
            'alternatives': others,
            'why': '; '.join(map(self._line, others)) if leaves else self._held_back(feature_map),
        }

    def _allowed(self, feature_map: FeatureMap) -> list[Verdict]:
        if not can_leave(feature_map, self.problem.min_bytes):
            return []
        recompute = [Verdict.RECOMPUTE] if self.recomputable[feature_map.id] else []
        return [Verdict.KEEP, Verdict.SWAP, *recompute]

    def _with(self, map_id: int, verdict: Verdict) -> tuple[Verdict, ...]:
        return changed(self.decision.verdicts, [map_id], verdict)

    def _alternative(self, map_id: int, verdict: Verdict) -> dict[str, Any]:
        """What an iteration would be with another verdict for one map; 'seconds' is None if it does not fit."""
        schedule = lay_out(self.problem, replace(self.decision, verdicts=self._with(map_id, verdict)))
        fits = schedule.fits(self.problem.budget_bytes)
        seconds = run_on_paper(self.problem, schedule)[0] if fits else None
        return {'verdict': verdict.value, 'seconds': seconds, 'needed_bytes': schedule.needed_bytes}

    def _recompute_seconds(self, map_id: int) -> float:
        """What runs again because this map is recomputed and not swapped, the other verdicts being as they are."""
        def total(verdict: Verdict) -> float:
            chains = find_chains(self.problem.trace, self._with(map_id, verdict))
            return sum(self.problem.costs.seconds[call] for calls in chains.calls_at.values() for call in calls)
        return total(Verdict.RECOMPUTE) - total(Verdict.SWAP)

    def _line(self, other: dict[str, Any]) -> str:
        begin = f'if {_DONE[Verdict(other["verdict"])]}, '
        if other['seconds'] is None:
            return begin + f'needs {format_bytes(other["needed_bytes"])}, which exceeds the budget'
        slower = other['seconds'] - self.timeline.seconds
        if abs(slower) < _NOTHING_SECONDS:
            return begin + 'takes the same time'
        return begin + f'takes {seconds(abs(slower))} {"more" if slower > 0 else "less"}'

    def _held_back(self, feature_map: FeatureMap) -> str:
        if feature_map.foreign:
            return 'the program holds it itself, so that letting go frees nothing'
        return f'smaller than {format_bytes(self.problem.min_bytes)}, see --min-bytes'


def _table(rows: list[dict[str, Any]], title: str) -> Table:
    return Table([
        Column('map', 'map', right=True), Column('producer', 'made by'), Column('verdict', 'verdict'),
        Column('nbytes', 'size', format_bytes, right=True), Column('swap_out_seconds', 'out [s]', figures, right=True),
        Column('swap_in_seconds', 'in [s]', figures, right=True),
        Column('recompute_seconds', 'again [s]', figures, right=True),
        Column('stall_seconds', 'stalls [s]', figures, right=True)], rows, title)
