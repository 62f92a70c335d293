"""``chainer-ooc plan TRACE``: plans for a trace; with ``--save`` writes a file for ``chainer.config.ooc_plan``."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from chainer_ooc.classify.policies import policy_of
from chainer_ooc.cli import arguments as common
from chainer_ooc.cli import gap
from chainer_ooc.cli.answer import Answer, listing, trying
from chainer_ooc.cli.prediction import read_trace
from chainer_ooc.cli.stage import stage
from chainer_ooc.plans.making import in_core, plan_within
from chainer_ooc.plans.saved import put_plan, save_plan
from chainer_ooc.problem import Verdict, problem_of
from chainer_ooc.quantities import counted, format_bytes
from chainer_ooc.report.table import seconds

HELP = 'plan for a trace, and with --save write the plan to a file'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the trace, policy, budget and file."""
    common.add_trace(parser)
    common.add_policy_and_budget(parser)
    parser.add_argument('--save', type=Path, metavar='FILE', help=(
        'write the plan to this file, for chainer.config.ooc_plan; plans of other graphs in it stay'))


def run(arguments: argparse.Namespace) -> Answer:
    """Plans.

    Raises:
        InfeasibleBudgetError: no plan of the policy keeps within the budget.
        OocError: the trace cannot be read, or the file cannot be written.
    """
    trace = read_trace(arguments.trace)
    problem = problem_of(trace, arguments.budget, arguments.min_bytes)
    started = time.perf_counter()
    with stage(f'planning with {arguments.policy}'):
        plan = plan_within(policy_of(arguments.policy), problem)
    planning_seconds = time.perf_counter() - started
    if arguments.save is not None:
        with trying(f'write the plan to {arguments.save}', 'another file with --save'):
            put_plan(str(arguments.save), save_plan(trace, plan, arguments.min_bytes))
    counts = plan.counts()
    nbytes = {verdict.value: sum(each.nbytes for each, own in zip(trace.maps, plan.verdicts, strict=True)
                                 if own is verdict) for verdict in Verdict}
    in_core_seconds, bound = in_core(problem).seconds, gap.bound_of(problem)
    facts = {
        'policy': plan.policy, 'budget_bytes': plan.budget_bytes, 'min_bytes': arguments.min_bytes,
        'graph': trace.fingerprint, **counts, **{f'{name}_bytes': value for name, value in nbytes.items()},
        'predicted_seconds': plan.seconds, 'predicted_peak_bytes': plan.peak_bytes, 'in_core_seconds': in_core_seconds,
        **gap.facts_of(plan, bound), 'planning_seconds': planning_seconds,
        'file': None if arguments.save is None else str(arguments.save),
    }
    shown = {
        **{name: f'{counted(counts[name], "feature map")}, {format_bytes(nbytes[name])}' for name in counts},
        'predicted time': f'{seconds(plan.seconds)}, in-core {seconds(in_core_seconds)}', **gap.shown(plan, bound),
        'predicted peak': f'{format_bytes(plan.peak_bytes)} of {format_bytes(plan.budget_bytes)}',
        'planned in': seconds(planning_seconds),
    }
    closing = [f'plan written to {arguments.save}'] if arguments.save is not None else []
    return Answer(facts, [listing(plan.policy, shown)], [*gap.hints([bound]), *closing])
