"""An iteration as it ran: its graph, the plan that it followed, and the timeline that was measured.

Its JSON form has the trace and the plan in theirs, and a row for each task and each stall of the timeline.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from chainer_ooc.errors import RunFormatError
from chainer_ooc.plans.plan import Plan, check_fit
from chainer_ooc.quantities import format_bytes
from chainer_ooc.simulate.timeline import Cause, Stall, Stream, Task, Timeline
from chainer_ooc.trace import Trace
from chainer_ooc.trace.invariants import check_bytes, check_index, check_seconds
from chainer_ooc.trace.tables import Damage, Form, dump_table, load_table, make, one_of

VERSION = 1
FORM = Form('run', VERSION, RunFormatError, 'write one with chainer_ooc.last_run().to_json()', 'let it run again')
#: How the text of one begins.
_BEGINS = re.compile(rf'\s*{{\s*"format":\s*"{FORM.format}"')


@dataclass(frozen=True)
class _Head:
    """What is true of the whole."""

    min_bytes: int
    seconds: float
    peak_bytes: int
    near_bytes: tuple[int, ...]


@dataclass(frozen=True)
class Run:
    """A finished iteration.

    Attributes:
        trace: of its graph, with the times that the plan was made from.
        plan: that it followed.
        min_bytes: smaller maps stayed.
        timeline: as it was measured. The map of a stall is -1 where it is not known. Without tasks, stalls and
            `near_bytes` where nothing had to move, so that it ran as in plain Chainer; without copies whose moments
            the device does not know.
    """

    trace: Trace
    plan: Plan
    min_bytes: int
    timeline: Timeline

    def __repr__(self) -> str:
        """One line: what ran, under which plan, and what it took."""
        return (f'<Run of {self.trace!r} under {self.plan.policy}, {format_bytes(self.plan.budget_bytes)}: '
                f'{self.timeline.seconds:.3g} s, peak {format_bytes(self.timeline.peak_bytes)}>')

    def to_json(self) -> str:
        """Returns the run as JSON text; `from_json` gives an equal value."""
        timeline = self.timeline
        head = {'min_bytes': self.min_bytes, 'seconds': timeline.seconds, 'peak_bytes': timeline.peak_bytes,
                'near_bytes': timeline.near_bytes}
        return FORM.dump(head, {
            'tasks': dump_table(Task, timeline.tasks), 'stalls': dump_table(Stall, timeline.stalls),
            'plan': self.plan.to_json().rstrip(), 'trace': self.trace.to_json().rstrip()})

    @staticmethod
    def is_one(text: str) -> bool:
        """Whether a text says that it is a run; it may be damaged all the same."""
        return _BEGINS.match(text) is not None

    @staticmethod
    def from_json(text: str) -> Run:
        """Reads what `to_json` wrote.

        Raises:
            RunFormatError: the text is no run, or one of another version.
            TraceFormatError, PlanFormatError: its trace or its plan is damaged.
        """
        values = FORM.parse(text)
        with FORM.reading():
            trace, plan = Trace.from_object(values.pop('trace', None)), Plan.from_object(values.pop('plan', None))
            check_fit(plan, trace)
            tasks = load_table('tasks', Task, values.pop('tasks', None), {'stream': one_of(Stream)})
            stalls = load_table('stalls', Stall, values.pop('stalls', None), {'cause': one_of(Cause)})
            if isinstance(values.get('near_bytes'), list):
                values['near_bytes'] = tuple(values['near_bytes'])
            return _run(trace, plan, make('run', _Head, values), tasks, stalls)


def _run(trace: Trace, plan: Plan, head: _Head, tasks: tuple[Task, ...], stalls: tuple[Stall, ...]) -> Run:
    check_bytes('min_bytes', head.min_bytes)
    check_bytes('peak_bytes', head.peak_bytes)
    check_seconds('seconds', head.seconds)
    if len(head.near_bytes) not in (0, trace.positions):
        raise Damage('near_bytes', f'{len(head.near_bytes)} values for {trace.positions} positions')
    for number, nbytes in enumerate(head.near_bytes):
        check_bytes(f'near_bytes, value {number}', nbytes)
    for number, task in enumerate(tasks):
        _check_task(f'tasks, row {number}', trace, task)
    for number, stall in enumerate(stalls):
        _check_stall(f'stalls, row {number}', trace, stall)
    return Run(trace, plan, head.min_bytes, Timeline(
        head.seconds, head.peak_bytes, tasks, stalls, head.near_bytes))


def _check_task(where: str, trace: Trace, row: Task) -> None:
    if row.stream is Stream.COMPUTE:
        check_index(f'{where}, subject', row.subject, trace.positions, 'position')
    else:
        check_index(f'{where}, subject', row.subject, len(trace.maps), 'feature map')
    for name in ('start_seconds', 'end_seconds', 'recomputed_seconds'):
        check_seconds(f'{where}, {name}', getattr(row, name))
    if row.end_seconds < row.start_seconds:
        raise Damage(f'{where}, end_seconds', f'{row.end_seconds} is before its start')


def _check_stall(where: str, trace: Trace, row: Stall) -> None:
    check_index(f'{where}, position', row.position, trace.positions, 'position')
    check_index(f'{where}, map', row.map, len(trace.maps), 'feature map', -1)
    check_seconds(f'{where}, seconds', row.seconds)
