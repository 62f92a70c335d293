"""What the soak watches: samples of what the process holds, how they grow, and whether that is flat.

The slope is Theil and Sen's, the median of the slopes between all pairs of samples, with Sen's interval of 95 %: it
supposes nothing of the noise, and a quarter of the samples may be far off. A quantity is *not flat* when its slope
is above what is tolerated per hour and the interval is above zero. The first `WARM_UP` of the time does not count:
graphs and plans are remembered up to a number, heaps find their size.

Source: P. K. Sen, Estimates of the Regression Coefficient Based on Kendall's Tau, 1968.
"""
from __future__ import annotations

import ctypes
import gc
import inspect
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chainer_ooc.execute.storage.storage import Storage
from chainer_ooc.report.figure import BLUE, GREY, ORANGE, new_figure, save, tidy

WARM_UP = 0.25
FEWEST = 8  # samples after the warm-up, with which a slope can be told from noise


@dataclass(frozen=True)
class Sample:
    """What the process holds between two stretches.

    Attributes:
        minutes: since the start.
        resident_bytes: private memory (RssAnon), after a collection and with the ends of the heap given back.
        descriptors: open files.
        threads: of the process, by the kernel's count.
        spill_bytes: sizes of the files without a name.
        storages: blocks of memory that out-of-core looks after.
        nodes: Variables' nodes that are alive.
    """

    minutes: float
    resident_bytes: int
    descriptors: int
    threads: int
    spill_bytes: int
    storages: int
    nodes: int


@dataclass(frozen=True)
class Quantity:
    """What is watched: a field of `Sample`, its name, its unit, and the growth per hour that counts as none."""

    field: str
    title: str
    unit: float
    tolerance: float


QUANTITIES = (
    Quantity('resident_bytes', 'resident [MB]', 1e6, 8.0),
    Quantity('descriptors', 'descriptors', 1, 0.5),
    Quantity('threads', 'threads', 1, 0.5),
    Quantity('spill_bytes', 'spill files [MB]', 1e6, 4.0),
    Quantity('storages', 'storages', 1, 5.0),
    Quantity('nodes', 'variable nodes', 1, 50.0),
)


def take_sample(began: float) -> Sample:
    """Looks at the process; collects and trims first."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), 'malloc_trim', None)
    if trim is not None:
        trim(0)
    status = dict(line.split(':', 1) for line in Path('/proc/self/status').read_text().splitlines())
    numbers = os.listdir('/proc/self/fd')
    kinds = [type(each) for each in gc.get_objects()]
    return Sample(
        (time.monotonic() - began) / 60, int(status['RssAnon'].split()[0]) * 1024, len(numbers) - 1,
        int(status['Threads']), sum(map(_nameless_bytes, numbers)),
        sum(kind.__name__ == 'Storage' and kind.__module__.startswith('chainer_ooc.') for kind in kinds),
        sum(kind.__name__ == 'VariableNode' and kind.__module__ == 'chainer.variable' for kind in kinds))


def _nameless_bytes(number: str) -> int:
    """The size of a file on a disk that has no name any more."""
    try:
        target = os.readlink(f'/proc/self/fd/{number}')
        return os.fstat(int(number)).st_size if target.startswith('/') and '(deleted)' in target else 0
    except OSError:  # the descriptor of the listing itself
        return 0


# --- flat or not -----------------------------------------------------------------------------------------------------


def slope_of(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """The slope of points and its interval of 95 %: median, low, high."""
    slopes = sorted((later[1] - earlier[1]) / (later[0] - earlier[0])
                    for number, earlier in enumerate(points) for later in points[number + 1:] if later[0] > earlier[0])
    count = len(points)
    reach = 1.96 * (count * (count - 1) * (2 * count + 5) / 18) ** 0.5
    low = max(0, round((len(slopes) - reach) / 2))
    high = min(len(slopes) - 1, round((len(slopes) + reach) / 2))
    return statistics.median(slopes), slopes[low], slopes[high]


def judge(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """A row for each quantity: where it began and ended, its slope per hour, and the verdict."""
    counted = _counted(samples)
    rows = []
    for quantity in QUANTITIES:
        points = [(each.minutes / 60, getattr(each, quantity.field) / quantity.unit) for each in counted]
        row: dict[str, Any] = {'quantity': quantity.title, 'tolerance': quantity.tolerance, 'verdict': 'too short'}
        if points:
            row.update(first=points[0][1], last=points[-1][1], largest=max(value for _, value in points))
        if len(points) >= FEWEST:
            row['slope'], row['low'], row['high'] = slope_of(points)
            row['verdict'] = 'NOT FLAT' if row['slope'] > quantity.tolerance and row['low'] > 0 else 'flat'
        rows.append(row)
    return rows


def left_behind(before: Sample, after: Sample) -> list[str]:
    """What is there after the last reset and was not before the first stretch; memory is not compared."""
    found = []
    for each in QUANTITIES:
        was, now = (getattr(sample, each.field) / each.unit for sample in (before, after))
        if each.field != 'resident_bytes' and now > was:
            found.append(f'{each.title}: {was:g} before, {now:g} after')
    return found


def holders_of_storages() -> list[str]:
    """What has the storages that are alive: the types of what refers to each, and of what refers to that."""
    alive = [each for each in gc.get_objects() if type(each) is Storage]
    known = {id(alive), id(sys._getframe())}
    return [f'a storage of {each.nbytes} bytes, {each.state.name}, held by {_holders(each, known)}' for each in alive]


def _holders(held: object, known: set[int]) -> str:
    direct = [each for each in gc.get_referrers(held) if id(each) not in known and not inspect.isframe(each)]
    known = {*known, id(direct)}
    return ', '.join(sorted({f'{type(each).__name__} < ' + ' '.join(sorted(
        {type(behind).__name__ for behind in gc.get_referrers(each) if id(behind) not in known}))
        for each in direct})) or 'nothing that the collector knows'


def _counted(samples: Sequence[Sample]) -> list[Sample]:
    end = samples[-1].minutes if samples else 0.0
    return [each for each in samples if each.minutes >= WARM_UP * end]


def draw(samples: Sequence[Sample], path: Path, title: str) -> None:
    """Draws each quantity over time, with the line that was fitted.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure = new_figure(9, 5.6)
    counted = _counted(samples)
    for axes, quantity, row in zip(figure.subplots(2, 3).flat, QUANTITIES, judge(samples), strict=True):
        tidy(axes)
        values = [getattr(each, quantity.field) / quantity.unit for each in samples]
        axes.plot([each.minutes for each in samples], values, color=BLUE, linewidth=1, marker='.', markersize=3)
        if 'slope' in row:
            middle = statistics.median(each.minutes for each in counted)
            height = statistics.median(getattr(each, quantity.field) / quantity.unit for each in counted)
            ends = counted[0].minutes, counted[-1].minutes
            axes.plot(ends, [height + row['slope'] * (end - middle) / 60 for end in ends], color=ORANGE, linestyle='--')
            axes.set_title(f"{quantity.title}: {row['slope']:+.3g} per hour, {row['verdict']}", fontsize=9)
        else:
            axes.set_title(quantity.title, fontsize=9)
        axes.axvline(counted[0].minutes, color=GREY, linewidth=0.8, linestyle=':')
        axes.set_ylim(bottom=0)
        axes.set_xlabel('minutes', fontsize=8)
    figure.suptitle(title, fontsize=11)
    save(figure, path)


def as_line(sample: Sample) -> dict[str, Any]:
    """A sample for the file of samples."""
    return asdict(sample)
