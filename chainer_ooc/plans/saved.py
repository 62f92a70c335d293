"""A plan that outlives its process: with the trace that it is about, and the terms under which it holds; and its file.

A plan is only as good as the times and sizes that it was made from. So it is used for what was recorded: a graph under
one workspace and oneDNN; a program may have several. There it holds on the same machine, under the same versions
and settings, and within its budget, or it is refused with the thing that differs.

A file of plans is what ``chainer.config.ooc_plan`` names and ``chainer-ooc plan`` writes. It has one plan for each
graph, under each workspace and oneDNN with which that was recorded. It is replaced as a whole: a reader finds the old
one or the new one, and a crash leaves one of them. Threads of one process take turns; of two processes that write at
the same time the later one wins.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from typing import NamedTuple

from chainer_ooc.errors import PlanFormatError, PlanMismatchError, TraceFormatError
from chainer_ooc.locks import make_lock
from chainer_ooc.plans.plan import Plan, check_fit
from chainer_ooc.quantities import format_bytes
from chainer_ooc.trace import Trace
from chainer_ooc.trace.invariants import check_bytes
from chainer_ooc.trace.tables import Damage, Form, make

VERSION = 2
_AGAIN = 'delete it to have it written anew, or name another'
_OR_ANEW = 'or delete the file to have it written anew'
_ANOTHER = 'name a file of plans, or one that is not there yet'  # what never was one is not to be deleted
FORM = Form('file of plans', VERSION, PlanFormatError, _ANOTHER, _AGAIN)
_writing = make_lock()


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


def dump_plans(plans: list[SavedPlan]) -> str:
    """Returns the text of a file."""
    entries = [f'{{"terms": {json.dumps(asdict(each.terms))},\n "metered": {json.dumps(each.metered)},\n "plan": '
               f'{each.plan.to_json().rstrip()},\n "trace": {each.trace.to_json().rstrip()}}}'
               for each in plans]
    return FORM.dump({}, {'plans': '[' + ',\n'.join(entries) + ']'})


def load_plans(text: str) -> list[SavedPlan]:
    """Reads what `dump_plans` wrote.

    Raises:
        PlanFormatError: it is no file of plans, or has something of another version in it.
    """
    values = FORM.parse(text)
    with FORM.reading():
        if not isinstance(values.get('plans'), list):
            raise Damage('plans', 'no list')
        return [_saved(number, entry) for number, entry in enumerate(values['plans'])]


def read_plans(path: str) -> list[SavedPlan]:
    """Reads a file of plans; one that is not there has none.

    Raises:
        PlanFormatError: it cannot be read, or is no file of plans; the message has the path.
    """
    if os.path.isdir(path):
        raise PlanFormatError(f'cannot read the plans in {path}: it is a folder; name a file in it')
    if os.path.exists(path) and not os.path.isfile(path):
        raise PlanFormatError(f'cannot read the plans in {path}: it is no regular file; name another')
    try:
        with open(path, encoding='utf-8') as file:
            return load_plans(file.read())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise PlanFormatError(f'cannot read the plans in {path}: {error.strerror}; {_ANOTHER}') from None
    except UnicodeDecodeError:
        raise PlanFormatError(f'cannot read the plans in {path}: it is no text; {_ANOTHER}') from None
    except PlanFormatError as error:
        raise PlanFormatError(f'cannot read the plans in {path}: {error}') from None


def put_plan(path: str, saved: SavedPlan) -> None:
    """Adds a plan to a file, in place of an older one for the same graph, workspace and oneDNN.

    Raises:
        PlanFormatError: what is there is no file of plans.
        OSError: it cannot be written.

    If this fails: the file is as it was.
    """
    with _writing:
        others = [each for each in read_plans(path) if each.terms.recorded != saved.terms.recorded]
        _replace(os.path.realpath(path), dump_plans([*others, saved]))


def _replace(path: str, text: str) -> None:
    temporary = f'{path}.{os.getpid()}.tmp'  # in the same folder: a rename crosses no file system
    try:
        with open(temporary, 'w', encoding='utf-8') as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _saved(number: int, entry: object) -> SavedPlan:
    where = f'plans, entry {number}'
    if not isinstance(entry, dict) or not isinstance(entry.get('terms'), dict):
        raise Damage(where, 'no object with "terms", "metered", "plan" and "trace"')
    try:
        plan, trace = Plan.from_object(entry.get('plan')), Trace.from_object(entry.get('trace'))
    except TraceFormatError as error:
        raise PlanFormatError(
            f'{error}, and plan again with "chainer-ooc plan TRACE --save FILE"; {_OR_ANEW}') from None
    except PlanFormatError as error:
        raise PlanFormatError(f'{error}; {_OR_ANEW}') from None
    terms = make(f'{where}, terms', Terms, entry['terms'])
    saved = make(where, SavedPlan, {**entry, 'terms': terms, 'plan': plan, 'trace': trace})
    if terms.graph != trace.fingerprint:
        raise Damage(where, 'its terms and its trace are of two graphs')
    if (terms.policy, terms.budget_bytes) != (plan.policy, plan.budget_bytes):
        raise Damage(where, 'its terms and its plan are of two policies or budgets')
    check_bytes(f'{where}, terms, min_bytes', terms.min_bytes)
    check_bytes(f'{where}, terms, workspace_bytes', terms.workspace_bytes or 0)
    check_fit(plan, trace)
    return saved
