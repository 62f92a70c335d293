"""``chainer-ooc recommend MODEL|TRACE``: a policy, a budget, a workspace and the largest batch, as lines to paste.

Policies and batches are tried by simulation of what was recorded; a model is recorded with a workspace and without one.
Left out: an optimizer's state, unless one was recorded.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chainer_ooc.backends import BackendOptions, choose
from chainer_ooc.classify.bound import Bound, known_bound
from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.classify.search import largest_fitting
from chainer_ooc.cli import arguments as common
from chainer_ooc.cli import gap
from chainer_ooc.cli.answer import Answer, UsageError
from chainer_ooc.cli.model import NAMES, ModelTooLargeError
from chainer_ooc.cli.prediction import known_batch_of, predict, read_trace, trace_for
from chainer_ooc.cli.profile import record
from chainer_ooc.cli.stage import stage
from chainer_ooc.cli.totals import least_of
from chainer_ooc.cost.machine import Machine
from chainer_ooc.cost.on_cuda import WORKSPACE_BYTES
from chainer_ooc.errors import WORKSPACE, OocError
from chainer_ooc.plans.making import in_core, plan_within
from chainer_ooc.plans.plan import Plan
from chainer_ooc.problem import Problem, problem_of
from chainer_ooc.quantities import format_bytes
from chainer_ooc.report.table import percent, seconds
from chainer_ooc.trace import Trace

HELP = 'name a policy, a budget, a workspace and the largest batch for a model or a trace'
#: From the simplest on; the first that is nearly as fast as the fastest is taken. No other one but `unified`, which
#: keeps within no budget, is faster than the last.
CANDIDATES = ('swap-all', 'pooch', 'auto')
NEARLY = 1.01
#: A workspace is a gain where it takes so many times less memory: recordings of one model agree to the byte.
LESS = 1.02
#: It may not be so many times as slow. Less tells nothing: of two recordings of one model the slower took up to 1.7
#: times as long on two cores with twice their load, and more where an iteration takes milliseconds. So what is faster
#: is no gain by itself.
NOISE = 1.7
#: The batch that a model is recorded at, without a workspace and with one.
RECORDED_BATCH = 8
_LARGEST_BATCH = 1 << 30
_OPTIMIZER = "# an optimizer's state counts if one was recorded; else lower --budget by it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the model or trace, what it is for, and the budget."""
    parser.add_argument('what', metavar='MODEL|TRACE', help='a file of a trace, or a model as for "profile"')
    common.add_machine_and_batch(parser, f"the trace's own; of a model {RECORDED_BATCH}")
    common.add_min_bytes(parser)
    parser.add_argument('--insize', type=common.positive, default=224, metavar='PIXELS',
                        help='of a model: side of the square images (%(default)s)')
    parser.add_argument('--budget', type=common.budget, metavar='BYTES',
                        help='near memory for all arrays (what is free on this machine, or what --machine has)')


@dataclass(frozen=True)
class Line:
    """What to set an entry to, and why: half a sentence. One that is left out has a reason alone."""

    entry: str
    value: str | int | None
    reason: str
    is_left_out: bool = False

    def pasted(self) -> list[str]:
        """The lines of it."""
        return [f'# {self.reason}', *([] if self.is_left_out else [f'chainer.config.{self.entry} = {self.value!r}'])]


def run(arguments: argparse.Namespace) -> Answer:
    """Recommends.

    Raises:
        InfeasibleBudgetError: no plan keeps within the budget.
        OocError: the model cannot be run, the trace cannot be read or is of a larger batch, there is no such
            machine.
    """
    machine = common.machine_of(arguments)
    recordings = _recordings(arguments, machine)
    own_batch = known_batch_of(recordings[-1])
    budget_bytes, budget = _budget(arguments.budget, machine, recordings[-1].device)
    batch = arguments.batch or own_batch

    def problem(recorded: Trace, images: int) -> Problem:
        return problem_of(trace_for(recorded, machine, images), budget_bytes, arguments.min_bytes)

    recorded, workspace = _workspace(recordings, lambda each: problem(each, batch), machine)
    own = problem(recorded, batch)
    with stage(f'choosing a policy for batch {batch}'):
        plan, bound = choose_plan(own), known_bound(own)
    with stage('looking for the largest batch'):
        largest = _largest(batch, lambda images: problem(recorded, images))
        there = choose_plan(problem(recorded, largest))
    lines = [_policy(plan, own, bound), budget, workspace]
    if arguments.min_bytes != common.MIN_BYTES:
        lines.append(Line('ooc_min_bytes', arguments.min_bytes, 'as given'))
    facts = {
        **{each.entry: each.value for each in lines}, 'machine': arguments.machine, 'batch': batch,
        'budget_bytes': budget_bytes, 'seconds': plan.seconds, 'in_core_seconds': in_core(own).seconds,
        'peak_bytes': plan.peak_bytes, **gap.facts_of(plan, bound), 'largest_batch': largest,
        'largest_batch_policy': there.policy, 'largest_batch_seconds': there.seconds,
        'reasons': {each.entry: each.reason for each in lines},
    }
    closing = [text for each in lines for text in each.pasted()]
    closing += [*_rates((batch, plan), (largest, there), machine), _OPTIMIZER, *_left(own), *_doubt(own.trace),
                *(f'# {each}' for each in gap.hints([bound]))]
    return Answer(facts, [], closing)


def choose_plan(problem: Problem) -> Plan:
    """The plan of the simplest policy that is nearly as fast as the fastest.

    Raises:
        InfeasibleBudgetError: no plan keeps within the budget.
    """
    kept = predict('keep', problem).plan
    if kept is not None:
        return kept  # nothing has to leave
    found = [each for each in (predict(policy, problem).plan for policy in CANDIDATES) if each is not None]
    if not found:
        return plan_within(POLICIES[CANDIDATES[-1]], problem)  # raises, as it did for `predict`
    fastest = min(each.seconds for each in found)
    return next(each for each in found if each.seconds <= NEARLY * fastest)


def _recordings(arguments: argparse.Namespace, machine: Machine | None) -> list[Trace]:
    """The trace of the file; or the model's, without a workspace, if there is room, and, if its times count, with one.

    Raises:
        ModelTooLargeError: the model does not fit into memory.
    """
    path = Path(arguments.what)
    is_named = arguments.what in NAMES and not path.is_file()  # a folder may be called like a model
    if not is_named and (path.suffix == '.json' or len(path.parts) > 1 or path.is_symlink() or path.exists()):
        return [read_trace(path)]
    import chainer

    batch = min(arguments.batch or RECORDED_BATCH, RECORDED_BATCH)
    if machine is not None:
        with chainer.using_config('ooc_workspace', None):
            return [record(arguments.what, batch, arguments.insize)]
    found = []
    with chainer.using_config('ooc_workspace', None), contextlib.suppress(ModelTooLargeError):
        found.append(record(arguments.what, batch, arguments.insize))
    gc.collect()  # what it had
    with chainer.using_config('ooc_workspace', WORKSPACE):
        found.append(record(arguments.what, batch, arguments.insize))
    return found


def _budget(given: int | None, machine: Machine | None, device: str) -> tuple[int, Line]:
    if given is not None:
        return given, Line('ooc_budget', given, 'as given')
    if machine is not None:
        return machine.usable_bytes, Line('ooc_budget', machine.usable_bytes, f'what {machine.name} has for a program')
    if device != 'host':
        raise OocError('the trace was recorded on a GPU; say with --budget what its memory is')
    with contextlib.closing(choose(device, BackendOptions(None))) as backend:
        free_bytes = backend.default_budget_bytes(0, None)
    return free_bytes, Line('ooc_budget', None, f'what is free, {format_bytes(free_bytes)} now')


def _workspace(recordings: list[Trace], problem: Callable[[Trace], Problem], machine: Machine | None,
               ) -> tuple[Trace, Line]:
    """Which recording counts, and its workspace: the one that is tried where it is needed, or a clear gain."""
    plain = recordings[0]
    if machine is not None:
        return plain, Line('ooc_workspace', None, (
            f'leave ooc_workspace unset: convolutions are counted with {WORKSPACE_BYTES >> 20} MiB here, and may have '
            'more on the GPU'), is_left_out=True)
    if len(recordings) == 1:
        floor_bytes = least_of(plain, problem(plain).min_bytes).workspace_floor_bytes
        less = '' if floor_bytes is None else (
            f'; with {WORKSPACE} the smallest budget would be about {format_bytes(floor_bytes)}: record it with '
            f'profile --workspace {WORKSPACE}')
        return plain, Line('ooc_workspace', plain.workspace_bytes, f'as it was recorded{less}')
    without, within = (_Needs.of(problem(each)) for each in recordings)
    reason = f'with {WORKSPACE} an iteration takes {within}; without {without}'
    if predict('swap-all', problem(plain)).plan is None or within.is_clear_gain(without):
        return recordings[1], Line('ooc_workspace', WORKSPACE, reason)
    return plain, Line('ooc_workspace', None, f'{reason}: no clear gain')


@dataclass(frozen=True)
class _Needs:
    """What an iteration takes in-core, and the least memory of any policy."""

    seconds: float
    peak_bytes: int
    floor_bytes: int

    @staticmethod
    def of(problem: Problem) -> _Needs:
        plan = in_core(problem)
        return _Needs(plan.seconds, plan.peak_bytes, least_of(problem.trace, problem.min_bytes).floor_bytes)

    def __str__(self) -> str:
        return (f'{seconds(self.seconds)} and {format_bytes(self.peak_bytes)} in-core, '
                f'{format_bytes(self.floor_bytes)} at least')

    def is_clear_gain(self, other: _Needs) -> bool:
        """Whether it takes less memory than the other one, and is not slower beyond noise."""
        saves = self.peak_bytes * LESS <= other.peak_bytes or self.floor_bytes * LESS <= other.floor_bytes
        return saves and self.seconds < other.seconds * NOISE


def _largest(batch: int, problem: Callable[[int], Problem]) -> int:
    """The largest batch that a plan fits for certain; swap-all needs the least."""
    def fits(images: int) -> bool:
        try:
            return predict('swap-all', problem(images)).plan is not None
        except UsageError:  # a batch that no memory has
            return False

    low, high = batch, 2 * batch
    while high <= _LARGEST_BATCH and fits(high):
        low, high = high, 2 * high
    return largest_fitting(low, high, fits)


def _policy(plan: Plan, problem: Problem, bound: Bound | None) -> Line:
    if plan.policy == 'keep':
        return Line('ooc', 'keep', f'everything fits: {format_bytes(plan.peak_bytes)}, {seconds(plan.seconds)}')
    found, whole = gap.gap_of(plan, bound), in_core(problem).seconds
    near = '' if found is None else f'; {gap.nearness(found)}'
    slower = f', {percent(plan.seconds / whole - 1)} to in-core' if whole else ''
    return Line('ooc', plan.policy, f'{seconds(plan.seconds)} an iteration{slower}{near}')


def _rates(own: tuple[int, Plan], largest: tuple[int, Plan], machine: Machine | None) -> list[str]:
    """A scaled recording is too large by what does not grow with the batch; of a described machine that is known."""
    fits = ' fits, and perhaps more' if machine is None else ' is the largest that fits'
    rows = [(*own, '')] if own[0] < largest[0] else []
    return [f'# batch {batch}{text}: {batch / plan.seconds:.1f} images per second under {plan.policy}'
            for batch, plan, text in [*rows, (*largest, fits)] if plan.seconds]


def _left(problem: Problem) -> list[str]:
    """What a training loop of the user's own may still have of the iteration before, which no recording of one has."""
    nbytes = sum(each.nbytes for each in problem.trace.maps if each.retained and each.nbytes < problem.min_bytes)
    if nbytes < problem.budget_bytes // 100:
        return []
    return [f'# a loop that has its last loss when the next forward begins needs up to {format_bytes(nbytes)} more,',
            '# for maps smaller than ooc_min_bytes: delete the loss before, or leave that much with --budget']


def _doubt(trace: Trace) -> list[str]:
    return [f'# the training may need more than is known: {trace.doubt}'] if trace.doubt else []
