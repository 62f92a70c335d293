"""Reports what out-of-core does, where a training reports the rest: in its log, and in a line at its end.

The figures are those of `chainer_ooc.stats()`, once an iteration. What they are compared with is simulated, since it
does not happen: the same iteration with all of its maps in memory until their last use (policy `keep`), in unlimited
memory. Left out: plain Chainer, which frees no map in backward, and so needs more still.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from typing import Any, TextIO

import chainer
from chainer import training

from chainer_ooc.execute import sessions
from chainer_ooc.execute.finished import Finished
from chainer_ooc.execute.tally import IterationStats
from chainer_ooc.quantities import counted, format_bytes
from chainer_ooc.report.table import percent, seconds

#: So many plans are remembered, to ask for the gap of one that is followed again.
MOST_PLANS = 256


@dataclass
class TrainingTotals:
    """Sums over the iterations of a training.

    Attributes:
        recorded, unplanned, planned: iterations that were recorded, that needed no plan as everything had room, and
            that ran under a plan; what follows is of the last.
        seconds, in_core_seconds: measured, and simulated with everything in memory.
        peak_bytes, in_core_peak_bytes: the highest of any iteration, likewise.
        swapped_out_bytes, recomputed_calls, stall_seconds: see `IterationStats`.
    """

    recorded: int = 0
    unplanned: int = 0
    planned: int = 0
    seconds: float = 0.0
    in_core_seconds: float = 0.0
    peak_bytes: int = 0
    in_core_peak_bytes: int = 0
    swapped_out_bytes: int = 0
    recomputed_calls: int = 0
    stall_seconds: float = 0.0

    def add(self, stats: IterationStats, in_core_seconds: float, in_core_peak_bytes: int) -> None:
        """Adds an iteration that ran under a plan."""
        self.planned += 1
        self.seconds += stats.seconds
        self.in_core_seconds += in_core_seconds
        self.peak_bytes = max(self.peak_bytes, stats.peak_bytes)
        self.in_core_peak_bytes = max(self.in_core_peak_bytes, in_core_peak_bytes)
        self.swapped_out_bytes += stats.swapped_out_bytes
        self.recomputed_calls += stats.recomputed_calls
        self.stall_seconds += stats.stall_seconds

    def line(self, is_set: bool) -> str:
        """What it cost and what it saved; `is_set`: `chainer.config.ooc` was set at the beginning or at the end."""
        if not self.planned:
            recorded = f'out-of-core: {counted(self.recorded, "iteration")} recorded'
            return (f'{recorded}, {self.unplanned} as in plain Chainer, as everything has room' if self.unplanned else
                    f'{recorded}, none under a plan yet' if self.recorded else
                    'out-of-core: on, but no iteration has ended' if is_set else
                    'out-of-core: off, as chainer.config.ooc is None')
        each, in_core = self.seconds / self.planned, self.in_core_seconds / self.planned
        slower = f' ({percent(each / in_core - 1)})' if in_core else ''
        saved = f' ({percent(self.peak_bytes / self.in_core_peak_bytes - 1)})' if self.in_core_peak_bytes else ''
        swapped_bytes = round(self.swapped_out_bytes / self.planned)
        again = self.recomputed_calls / self.planned
        return (f'out-of-core: peak {format_bytes(self.peak_bytes)}, in-core {format_bytes(self.in_core_peak_bytes)}'
                f'{saved}; {seconds(each)} an iteration, in-core by simulation {seconds(in_core)}{slower}, of which '
                f'{seconds(self.stall_seconds / self.planned)} stalled; {format_bytes(swapped_bytes)} swapped out and '
                f'{again:.3g} call{"s" * (again != 1)} recomputed in ' + (
                    'the iteration' if self.planned == 1 else f'each of {self.planned} iterations'))


class OutOfCore(training.Extension):  # type: ignore[misc]
    """Reports what each iteration took, for LogReport, PrintReport and PlotReport, and prints a line at the end.

        trainer.extend(chainer_ooc.extensions.OutOfCore())
        trainer.extend(extensions.LogReport(trigger=(10, 'iteration')))
        trainer.extend(extensions.PrintReport(['iteration', 'main/loss', 'ooc/peak', 'ooc/overhead']))

    =================== ==============================================================================================
    ``ooc/peak``        bytes: the most that was in use, parameters, gradients and the optimizer's state among it
    ``ooc/swapped_out`` bytes that were copied to far memory
    ``ooc/stall``       seconds for which the iteration waited for copies
    ``ooc/recomputed``  calls that ran once more
    ``ooc/overhead``    how much longer the iteration took than it would in-core, as is predicted from what was
                        measured: 0.1 is ten percent; below 0 if it was faster. Not while a graph is recorded
    ``ooc/gap``         how much longer its plan takes at most than the best possible one, see `stats().gap`. Not
                        while a better plan is looked for, nor in the first iteration of a plan, nor without SciPy
    =================== ==============================================================================================

    Nothing is reported of an update in which no iteration ran out-of-core. Of several graphs in one update, as a GAN's,
    it is the last one's. LogReport writes the mean of the iterations between two of its lines. Sums for the line at the
    end are in snapshots, so that it is about all of a training that was resumed.

    Args:
        gap: report ``ooc/gap``. Each plan has half a second of the training for that, a large graph's more.
        out: where the line at the end goes; None for standard output.
    """

    trigger = 1, 'iteration'
    priority = training.PRIORITY_WRITER

    def __init__(self, *, gap: bool = True, out: TextIO | None = None):
        self.totals = TrainingTotals()
        self._gap = gap
        self._out = out
        self._latest: Finished | None = None
        self._is_set = False
        self._followed: dict[tuple[object, ...], None] = {}

    def initialize(self, trainer: Any) -> None:
        """Notes what was trained before, which is not this training's."""
        session = sessions.current()
        self._latest = None if session is None else session.finished
        self._is_set = _is_set()

    def __call__(self, trainer: Any) -> None:
        session = sessions.current()  # not `sessions.stats`: an updater may set `ooc` for itself alone
        if session is None or session.finished is None or session.finished is self._latest:
            return  # nothing ran out-of-core in this update
        self._latest = session.finished
        stats = session.finished.stats
        found: dict[str, float] = {
            'ooc/peak': stats.peak_bytes, 'ooc/swapped_out': stats.swapped_out_bytes,
            'ooc/stall': stats.stall_seconds, 'ooc/recomputed': stats.recomputed_calls}
        in_core = None if stats.phase != 'run' else session.finished.in_core()
        if in_core is None:
            self.totals.recorded += stats.phase == 'profile'
            self.totals.unplanned += stats.phase == 'run'
        else:
            self.totals.add(stats, in_core.seconds, in_core.peak_bytes)
            if in_core.seconds:
                found['ooc/overhead'] = stats.seconds / in_core.seconds - 1
            gap = self._gap_of(stats)
            if gap is not None:
                found['ooc/gap'] = gap
        trainer.observation.update(found)

    def _gap_of(self, stats: IterationStats) -> float | None:
        """The gap of a plan that was followed before, and so is not about to be replaced."""
        if not self._gap or stats.is_searching:
            return None
        plan = stats.policy, stats.budget_bytes, stats.predicted_seconds, stats.predicted_peak_bytes
        if plan in self._followed:
            return stats.gap
        if len(self._followed) >= MOST_PLANS:
            self._followed.clear()
        self._followed[plan] = None
        return None

    def finalize(self) -> None:
        """Prints the line."""
        out = self._out or sys.stdout
        out.write(f'{self.totals.line(self._is_set or _is_set())}\n')
        out.flush()

    def serialize(self, serializer: Any) -> None:
        """Writes or reads the sums; a snapshot from before the extension was added has none, and they begin anew."""
        found = TrainingTotals()
        for name, value in asdict(self.totals).items():
            try:
                setattr(found, name, serializer(name, value))
            except KeyError:
                return
        self.totals = found


def _is_set() -> bool:
    return chainer.config.ooc is not None


def report_to(trainer: Any) -> OutOfCore:
    """Extends a Trainer by `OutOfCore`, and returns that.

    Args:
        trainer: a chainer.training.Trainer that has not run yet.

    Raises:
        TypeError: it is none.
    """
    if not hasattr(trainer, 'extend'):
        raise TypeError(f'report_to extends a chainer.training.Trainer, and was given a value of type '
                        f'{type(trainer).__name__}')
    extension = OutOfCore()
    trainer.extend(extension)
    return extension
