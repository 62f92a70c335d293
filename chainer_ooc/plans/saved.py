"""A plan that outlives its process: with the trace that it is about, and the terms under which it holds.

A plan is only as good as the times and sizes that it was made from. So it is used for what was recorded: a graph under
one workspace and oneDNN; a program may have several. There it holds on the same machine, under the same versions
and settings, and within its budget, or it is refused with the thing that differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from chainer_ooc.errors import PlanMismatchError
from chainer_ooc.plans.plan import Plan
from chainer_ooc.quantities import format_bytes
from chainer_ooc.trace import Trace


class Recorded(NamedTuple):
    """What a file has one plan for: a graph, and what else decides how its calls compute; see `Terms`."""

    graph: str
    workspace_bytes: int | None
    onednn: str
    parameters: str


@dataclass(frozen=True)
class Terms:
    """What a plan holds for.

    Attributes:
        graph: `Trace.fingerprint`.
        device: name of the backend.
        machine: what the backend calls the machine.
        chainer, numpy, python, chainer_ooc: versions.
        policy: its name.
        min_bytes: smaller maps stay.
        workspace_bytes: scratch of one call, or None.
        budget_bytes: of near memory.
        onednn: version, or '' where it was not used.
        parameters: where they lie, or '' for near memory.
    """

    graph: str
    device: str
    machine: str
    chainer: str
    numpy: str
    python: str
    chainer_ooc: str
    policy: str
    min_bytes: int
    workspace_bytes: int | None
    budget_bytes: int
    onednn: str
    parameters: str

    @property
    def recorded(self) -> Recorded:
        """What the plan was recorded for."""
        return Recorded(self.graph, self.workspace_bytes, self.onednn, self.parameters)


@dataclass(frozen=True)
class SavedPlan:
    """One entry of a file of plans: a plan, the iteration that it is for, and what it holds for.

    `metered`: what the trace's calls allocate was measured, and not estimated from another size.
    """

    terms: Terms
    plan: Plan
    trace: Trace
    metered: bool = True


def save_plan(trace: Trace, plan: Plan, min_bytes: int, metered: bool = True) -> SavedPlan:
    """Puts a plan together with its terms: those of the recording, and those of the plan."""
    versions = {name: trace.versions.get(name, '') for name in _VERSIONS}
    terms = Terms(graph=trace.fingerprint, device=trace.device, machine=trace.machine, **versions, policy=plan.policy,
                  min_bytes=min_bytes, workspace_bytes=trace.workspace_bytes, budget_bytes=plan.budget_bytes)
    return SavedPlan(terms, plan, trace, metered)


def recorded(trace: Trace) -> Recorded:
    """What a plan for a trace is recorded for."""
    return Recorded(trace.fingerprint, trace.workspace_bytes, trace.versions.get('onednn', ''),
                    trace.versions.get('parameters', ''))


def check_plan(saved: SavedPlan, present: Terms, file: str = 'the file') -> None:
    """Passes if the plan, which was recorded for the same, holds; a budget that is larger than the plan's does.

    `file` is what an error calls the file that the plan is in.

    Raises:
        PlanMismatchError: something differs; the error has its name, both values, and the next step.
    """
    for name, (what, next_step) in _DIFFERENCES.items():
        ours, theirs = getattr(saved.terms, name), getattr(present, name)
        if ours > theirs if name == 'budget_bytes' else ours != theirs:
            raise PlanMismatchError(what, _shown(name, ours), _shown(name, theirs),
                                    next_step.format(value=_shown(name, ours), file=file))


def _shown(name: str, value: object) -> str:
    if isinstance(value, int):
        return f'{format_bytes(value)} ({value} bytes)' if value >= 10**6 else format_bytes(value)
    return f'graph {value[:12]}' if name == 'graph' and isinstance(value, str) else repr(value) if value else 'none'


_VERSIONS = ('chainer', 'numpy', 'python', 'chainer_ooc', 'onednn', 'parameters')
_ANEW = 'delete {file} to have it planned anew, or name another'
_DIFFERENCES = {
    'graph': ('graph', _ANEW),
    'device': ('device', _ANEW),
    'machine': ('machine', _ANEW),
    **{name: (f'version of {title}', _ANEW) for name, title in zip(
        _VERSIONS[:4], ('Chainer', 'NumPy', 'Python', 'chainer_ooc'), strict=True)},
    'policy': ('policy', f'set chainer.config.ooc = {{value}}; or {_ANEW}'),
    'min_bytes': ('ooc_min_bytes', f'set chainer.config.ooc_min_bytes to that; or {_ANEW}'),
    'budget_bytes': ('budget', f'raise chainer.config.ooc_budget; or {_ANEW}'),
}
