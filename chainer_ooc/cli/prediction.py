"""What the simulator says of a trace under a policy and a budget: for commands that need no Chainer and run nothing."""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from chainer_ooc.classify.policies import policy_of
from chainer_ooc.cli.answer import UsageError
from chainer_ooc.cost.analytic import analytic
from chainer_ooc.cost.costs import timed
from chainer_ooc.cost.machine import Machine
from chainer_ooc.cost.on_cuda import on_cuda
from chainer_ooc.errors import InfeasibleBudgetError, OocError, PlanFormatError, RunFormatError, TraceFormatError
from chainer_ooc.plans.making import plan_within
from chainer_ooc.plans.plan import Plan
from chainer_ooc.plans.run import Run
from chainer_ooc.problem import Problem, Verdict
from chainer_ooc.quantities import MOST_BYTES, format_bytes
from chainer_ooc.trace import Trace
from chainer_ooc.trace.scaling import scale

_File = TypeVar('_File', bound='Trace | Run')


@dataclass(frozen=True)
class Prediction:
    """What a policy plans for a problem.

    Attributes:
        policy: its name.
        budget_bytes: of the problem.
        plan: its plan, or None if none keeps within the budget.
        refusal: without a plan, why: with the smallest budget that has one.
    """

    policy: str
    budget_bytes: int
    plan: Plan | None
    refusal: InfeasibleBudgetError | None = None

    def facts(self) -> dict[str, Any]:
        """What commands say about it, with the number of feature maps of each verdict; None what only a plan has."""
        plan, refusal = self.plan, self.refusal
        return {'policy': self.policy, 'budget_bytes': self.budget_bytes, 'feasible': plan is not None,
                'seconds': plan.seconds if plan else None, 'peak_bytes': plan.peak_bytes if plan else None,
                **(plan.counts() if plan else dict.fromkeys(each.value for each in Verdict)),
                'floor_bytes': refusal.floor_bytes if refusal else None,
                'floor_set_by': refusal.where if refusal else None}


def read_trace(file: Path) -> Trace:
    """Reads a trace.

    Raises:
        OocError: there is none in the file, or none that planning can do anything with.
    """
    return _read(file, 'trace', Trace.from_json)


def read_trace_or_run(file: Path) -> Trace | Run:
    """Reads a trace, or an iteration as a training ran it.

    Raises:
        OocError: there is neither in the file, or nothing that planning can do anything with.
    """
    return _read(file, 'trace or run', lambda text: (Run if Run.is_one(text) else Trace).from_json(text))


def _read(file: Path, kind: str, parse: Callable[[str], _File]) -> _File:
    try:
        if stat.S_ISCHR(file.stat().st_mode):  # such as /dev/zero, which has no end
            raise OocError(f'cannot read the {kind} {file}: it is a device; name a file')
        read = parse(file.read_text(encoding='utf-8'))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else 'it is no text'
        raise OocError(f'cannot read the {kind} {file}: {why}; write one with "chainer-ooc profile MODEL '
                       '--save FILE"') from None
    except (TraceFormatError, PlanFormatError, RunFormatError, MemoryError) as error:
        raise OocError(f'cannot read the {kind} {file}: {error or "there is not enough memory for it"}') from None
    trace = read.trace if isinstance(read, Run) else read
    if not trace.calls or not trace.steps:
        raise OocError(f'the {kind} {file} has no calls or no backward pass; record a whole training iteration')
    return read


def on_machine(recorded: Trace, machine: Machine, factor: float) -> Trace:
    """The trace as a machine that is described might have recorded it, with a batch so many times as large.

    Feature maps and times grow with the batch; what parameters, their gradients and a workspace take does not. The
    latency of copies is left out.

    Raises:
        OocError: the trace has no shapes, from which times are worked out.
    """
    costs = analytic(on_cuda(recorded), machine)
    there = on_cuda(recorded if factor == 1 else scale(recorded, factor))
    grown = replace(costs, seconds=tuple(each * factor for each in costs.seconds))
    return replace(timed(there, grown), seconds=sum(costs.seconds) * factor, machine=machine.title,
                   exchange_seconds=0.0)


def predict(policy: str, problem: Problem) -> Prediction:
    """Has a policy plan, as in a training. A budget that is too small is no error here."""
    try:
        return Prediction(policy, problem.budget_bytes, plan_within(policy_of(policy), problem))
    except InfeasibleBudgetError as error:
        return Prediction(policy, problem.budget_bytes, None, error.with_traceback(None))


def batch_of(trace: Trace) -> int | None:
    """The first extent of the first call's first input; where that is a parameter, of the largest array from outside.

    None where there is neither, so that the trace does not tell its batch size.
    """
    first = [each for each in trace.calls[0].inputs[:1] if 0 <= each < len(trace.maps)]
    outside = [each for call in trace.calls for each in call.inputs
               if 0 <= each < len(trace.maps) and trace.maps[each].producer is None]
    found = [shape[0] for shape in (trace.maps[each].shape for each in first or sorted(
        outside, key=lambda each: -trace.maps[each].nbytes)) if shape]
    return found[0] if found and found[0] > 0 else None


def known_batch_of(trace: Trace, next_step: str = '') -> int:
    """As `batch_of`.

    Raises:
        OocError: the trace does not tell; the message ends with `next_step`.
    """
    found = batch_of(trace)
    if found is None:
        raise OocError('the trace does not tell its batch size, as no call reads an array from outside, and so not how '
                       f'it grows with the batch{next_step}')
    return found


def at_batch(trace: Trace, batch: int | None) -> tuple[Trace, int | None]:
    """Returns the trace as it may be for a larger batch, and the batch; None if that is not known.

    Raises:
        OocError: the batch is smaller than the trace's, so that figures for it might be too low, or it is too large;
            or the trace does not tell its own.
    """
    if batch is None:
        return trace, batch_of(trace)
    own = known_batch_of(trace, f'; record one with "chainer-ooc profile MODEL --batchsize {batch} --save FILE", and '
                         'leave --batch out')
    if batch < own:
        raise OocError(f'a trace of batch {own} says nothing safe about batch {batch}; record one with '
                       f'"chainer-ooc profile MODEL --batchsize {batch} --save FILE"')
    if trace.most_bytes * batch > MOST_BYTES * own:
        raise UsageError(f'--batch {batch} makes more of the {format_bytes(trace.most_bytes)} at batch {own} than any '
                         'memory has; write a smaller one')
    return (trace if batch == own else scale(trace, batch / own)), batch


def trace_for(recorded: Trace, machine: Machine | None, batch: int | None) -> Trace:
    """The trace as a machine may have recorded it, its own if that is None, with a batch, its own if that is None."""
    grown, there = at_batch(recorded, batch)
    own = batch_of(recorded)
    return grown if machine is None else on_machine(recorded, machine, there / own if there and own else 1.0)
