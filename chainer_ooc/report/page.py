"""A report as one page of HTML that needs no network: numbers, styles and scripts are in it.

The files of ``assets`` are put into one another as they are. uPlot draws the curves (MIT licence, beside it); what is
drawn on canvases is ours. The numbers stand in the page as JSON, which programs may read as well.
"""

from __future__ import annotations

import html
import itertools
import json
from collections.abc import Iterable
from importlib import resources
from typing import Any

from chainer_ooc.report.contents import Course, Report
from chainer_ooc.simulate.timeline import Stream, Timeline
from chainer_ooc.version import __version__

_PLACES = {'uplot_css': 'uPlot.min.css', 'css': 'report.css', 'uplot': 'uPlot.iife.min.js', 'charts': 'charts.js',
           'js': 'report.js'}


def to_html(report: Report) -> str:
    """Returns the page."""
    page = _asset('report.html').replace('{{title}}', html.escape(report.title))
    for place, name in _PLACES.items():
        page = page.replace(f'{{{{{place}}}}}', _asset(name))
    numbers = json.dumps(values(report), separators=(',', ':')).replace('<', '\\u003c')  # it must not end the script
    return page.replace('{{numbers}}', numbers)


def values(report: Report) -> dict[str, Any]:
    """The numbers of the page, JSON-ready. Times are integers in microseconds, amounts in bytes.

    ``calls`` are rows of label, path and line; ``steps`` the numbers of the calls that they are of. ``maps`` are rows
    of id, bytes, number of the call that makes it, number of its block, microseconds of its copy out and in, and why
    it stays in any case; null where there is no such thing. A course has a row for each of these maps: verdict,
    microseconds of stalls, and for each other verdict that, microseconds of the iteration (null if it does not fit)
    and bytes needed.

    ``compute`` is flat, with three numbers for each position: the pause before it, its duration, and how much of that
    runs again. ``out`` and ``in`` are flat too: map, start, duration. ``memory`` has a list for each of ``kinds``: the
    number of positions since the last change, and by how many bytes it changes.
    """
    trace = report.trace
    retained = [each for each in trace.maps if each.retained]
    costs = {each.map: each for each in report.course.reasons}
    maps = [[each.id, each.nbytes, each.producer, report.blocks.of_map[each.id],
             _micro(costs[each.id].swap_out_seconds), _micro(costs[each.id].swap_in_seconds),
             None if costs[each.id].others else costs[each.id].why] for each in retained]
    measured = report.measured
    return {
        'format': 'chainer_ooc report', 'version': 1, 'made_by': f'chainer_ooc {__version__}', 'title': report.title,
        'device': trace.device, 'machine': trace.machine, 'policy': report.policy, 'shown': report.shown,
        'in_core': {'seconds': report.in_core.seconds, 'peak_bytes': report.in_core.peak_bytes},
        'calls': [[each.label, each.path, each.line] for each in trace.calls],
        'steps': [each.call for each in trace.steps], 'maps': maps,
        'kinds': [each.name for each in report.course.kinds], 'blocks': list(report.blocks.names),
        'courses': [_course(report, each) for each in report.courses],
        'measured': None if measured is None else {
            'seconds': measured.seconds, 'peak_bytes': measured.peak_bytes, **_lanes(measured),
            'near_bytes': list(measured.near_bytes)},
    }


def _course(report: Report, course: Course) -> dict[str, Any]:
    return {
        **course.facts(), **_lanes(course.timeline), 'bound_seconds': course.bound_seconds,
        'swapped_out_bytes': course.copied_bytes(report.trace, Stream.COPY_OUT),
        'swapped_in_bytes': course.copied_bytes(report.trace, Stream.COPY_IN),
        'recomputed_seconds': sum(each.recomputed_seconds for each in course.timeline.tasks),
        'memory': [_changes(each.nbytes) for each in course.kinds],
        'maps': [[each.verdict.value, _micro(each.stall_seconds),
                  [[other.verdict.value, _micro(other.seconds), other.needed_bytes] for other in each.others]]
                 for each in course.reasons],
    }


def _lanes(timeline: Timeline) -> dict[str, Any]:
    """The streams and the stalls of a timeline."""
    compute: list[int] = []
    end = 0
    for each in timeline.of(Stream.COMPUTE):
        start, before, end = _whole(each.start_seconds), end, _whole(each.end_seconds)
        compute += [start - before, end - start, _whole(each.recomputed_seconds)]
    return {
        'stall_seconds': timeline.stall_seconds, 'compute': compute,
        'out': _copies(timeline, Stream.COPY_OUT), 'in': _copies(timeline, Stream.COPY_IN),
        'stalls': [[each.position, each.map, _whole(each.seconds), each.cause.value] for each in timeline.stalls],
    }


def _copies(timeline: Timeline, stream: Stream) -> list[int]:
    rows = ([each.subject, _whole(each.start_seconds), _whole(each.end_seconds) - _whole(each.start_seconds)]
            for each in timeline.of(stream))
    return list(itertools.chain.from_iterable(rows))


def _changes(nbytes: Iterable[int]) -> list[int]:
    changes: list[int] = []
    last_position = last_bytes = 0
    for position, each in enumerate(nbytes):
        if each != last_bytes:
            changes += [position - last_position, each - last_bytes]
            last_position, last_bytes = position, each
    return changes


def _whole(seconds: float) -> int:
    return round(seconds * 1e6)


def _micro(seconds: float | None) -> int | None:
    return None if seconds is None else _whole(seconds)


def _asset(name: str) -> str:
    return resources.files('chainer_ooc.report').joinpath('assets', name).read_text(encoding='utf-8')
