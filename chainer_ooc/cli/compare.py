"""``chainer-ooc compare TRACE``: policies beside each other, under several budgets, by simulation."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from chainer_ooc.classify.bound import Bound
from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.cli import arguments as common
from chainer_ooc.cli import gap
from chainer_ooc.cli.answer import Answer
from chainer_ooc.cli.prediction import Prediction, predict, read_trace, trace_for
from chainer_ooc.cli.stage import stages
from chainer_ooc.plans.making import in_core
from chainer_ooc.problem import Decision, Problem, Verdict, problem_of
from chainer_ooc.quantities import enough, format_bytes, format_enough
from chainer_ooc.report.table import Column, Table, percent, seconds
from chainer_ooc.trace import Trace

HELP = 'simulate several policies under several budgets'
#: The budgets by default: shares of the way from the least that works to what the iteration holds when nothing leaves.
SHARES = (1.0, 0.5, 0.2, 0.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the trace, and which policies and budgets."""
    common.add_trace(parser)
    parser.add_argument('--policies', type=common.several(common.policy), default=list(POLICIES), metavar='P1,P2',
                        help='policies (all)')
    parser.add_argument('--budgets', type=common.several(common.budget), metavar='B1,B2',
                        help=(
        f'budgets, such as 800MB,1.5GB ({len(SHARES)}, from the peak of policy keep to the smallest that works)'))
    common.add_machine_and_batch(parser)


def run(arguments: argparse.Namespace) -> Answer:
    """Simulates each pair.

    Raises:
        OocError: the trace cannot be read, or does not tell how it grows with the batch; there is no such machine.
    """
    trace = trace_for(read_trace(arguments.trace), common.machine_of(arguments), arguments.batch)
    reference = in_core(problem_of(trace, 1, arguments.min_bytes))
    budgets = arguments.budgets or _budgets(trace, arguments, reference.peak_bytes)
    problems = [problem_of(trace, budget_bytes, arguments.min_bytes) for budget_bytes in budgets]
    bounds = [gap.bound_of(problem) for problem in problems]  # one for all policies of a budget
    found = _predict_all(problems, arguments.policies)
    parts = [[_row(found[problem.budget_bytes, policy], bound, reference.seconds) for policy in arguments.policies]
             for problem, bound in zip(problems, bounds, strict=True)]
    facts = {
        'in_core_seconds': reference.seconds, 'in_core_peak_bytes': reference.peak_bytes,
        'rows': [row for part in parts for row in part],
    }
    closing = [f'in-core: {seconds(reference.seconds)} at a peak of {format_bytes(reference.peak_bytes)}',
               *(gap.hints(bounds) or ['gap: at most so much longer than the best plan that is possible'])]
    if 'unified' in arguments.policies:
        closing.append(f'unified has no gap: it {gap.OUTSIDE}')
    return Answer(facts, list(map(_table, parts, budgets, bounds)), closing)


def _budgets(trace: Trace, arguments: argparse.Namespace, peak_bytes: int) -> list[int]:
    """Those by default. A budget below the least of all floors would be a table of refusals.

    That of `unified` is far below the others', as its maps take none of the budget: it counts only where it is alone.
    """
    nothing = problem_of(trace, 1, arguments.min_bytes)
    counted = [each for each in arguments.policies if each != 'unified'] or arguments.policies
    refusals = [predict(policy, nothing).refusal for policy in counted]
    least = min([each.floor_bytes for each in refusals if each is not None], default=peak_bytes)
    return list(dict.fromkeys(enough(least + round(share * max(0, peak_bytes - least))) for share in SHARES))


def _predict_all(problems: Sequence[Problem], policies: Sequence[str]) -> dict[tuple[int, str], Prediction]:
    """By budget and policy. What was found for less memory is known where there is more: `auto` is not slower then."""
    found, smaller = {}, {policy: tuple[Decision, ...]() for policy in policies}
    for problem in sorted(problems, key=lambda each: each.budget_bytes):
        for policy in stages(policies, f'within {format_bytes(problem.budget_bytes)}: simulating'):
            prediction = predict(policy, replace(problem, known=smaller[policy]))
            found[problem.budget_bytes, policy] = prediction
            if prediction.plan is not None:
                smaller[policy] = (prediction.plan.decision(),)
    return found


def _row(found: Prediction, bound: Bound | None, in_core_seconds: float) -> dict[str, Any]:
    plan = found.plan
    overhead = plan.seconds / in_core_seconds - 1 if plan and in_core_seconds else None
    return {**found.facts(), 'overhead': overhead, **gap.facts_of(plan, bound)}


def _table(rows: list[dict[str, Any]], budget_bytes: int, bound: Bound | None) -> Table:
    shown = [{**row, 'memory': format_bytes(row['peak_bytes']) if row['feasible'] else
              f'needs {format_enough(row["floor_bytes"])}'} for row in rows]
    best = '' if bound is None else f'; the best possible: {gap.best_of(bound)}'
    return Table([
        Column('policy', 'policy'), Column('seconds', 'time', seconds, right=True),
        Column('overhead', 'overhead', percent, right=True), Column('gap', 'gap', gap.percent_at_most, right=True),
        Column('memory', 'peak', right=True), Column(Verdict.KEEP.value, 'keep', right=True),
        Column(Verdict.SWAP.value, 'swap', right=True), Column(Verdict.RECOMPUTE.value, 'again', right=True),
    ], shown, f'within {format_bytes(budget_bytes)}{best}')
