"""One iteration under two profilers: the card's work (by PyTorch's, which asks CUPTI), and the program's (cProfile).

CUPTI sees a process whole, so CuPy's kernels, cuDNN's and the backend's copies are all there::

    compute  [kernel][kernel]   gap   [kernel][kernel]      busy: the union of kernels and copies of a stream
    out              [Memcpy DtoH]                          gap:  the stream with the most kernels has nothing to do
    program  cudaMallocAsync ... cudaEventQuery ...         calls of the runtime and the driver, by how long they took

Iterations under a profiler are slower than others: their seconds are figures of no row. The trace itself is kept beside
the other files, for `chrome://tracing` and Perfetto.
"""
from __future__ import annotations

import collections
import cProfile
import gzip
import io
import json
import pathlib
import pstats
import tempfile
from collections.abc import Callable, Iterable, Sequence
from typing import Any

#: Lines of each table.
MOST = 60
#: Categories of a trace's events that a stream of the card runs, and those of calls that the program makes.
ON_CARD = ('kernel', 'gpu_memcpy', 'gpu_memset')
OF_PROGRAM = ('cuda_runtime', 'cuda_driver')
MICRO = 1e-6

Event = dict[str, Any]


def profile(iterate: Callable[[], object], synchronize: Callable[[], object], to: pathlib.Path) -> dict[str, Any]:
    """Runs two iterations, one under each profiler.

    Args:
        iterate: runs one.
        synchronize: waits for the card.
        to: where the trace goes, compressed.

    Returns:
        dict[str, Any]: what `summary` says, and 'program': functions of Python by their own time.
    """
    found: dict[str, Any] = {}
    try:
        with tempfile.TemporaryDirectory() as folder:
            events = _traced(iterate, synchronize, pathlib.Path(folder) / 'trace.json')
        found.update(summary(events))
        with gzip.open(to, 'wt') as file:
            json.dump({'traceEvents': events}, file)
    except Exception as error:  # a figure less: the row itself has been measured by now
        found['reason'] = f'{type(error).__name__}: {error}'
    synchronize()
    return {**found, 'program': _functions(iterate)}


def _traced(iterate: Callable[[], object], synchronize: Callable[[], object], file: pathlib.Path) -> list[Event]:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    def watching() -> Any:
        return profiler(activities=[ProfilerActivity.CUDA], acc_events=True)  # or it warns that it forgets them

    with watching():  # the first one starts CUPTI, which takes a second
        synchronize()
    with watching() as found:
        iterate()
        synchronize()
    found.export_chrome_trace(str(file))
    events: list[Event] = json.loads(file.read_text())['traceEvents']
    return [each for each in events if each.get('ph') == 'X']


def summary(events: Iterable[Event]) -> dict[str, Any]:
    """What a trace says: seconds by kernel and stream, gaps of the stream that computes, calls of the program."""
    events = list(events)
    card = sorted((each for each in events if each.get('cat') in ON_CARD), key=lambda each: each['ts'])
    if not card:
        return {'reason': 'the profiler saw nothing of the card'}
    streams: dict[Any, list[Event]] = collections.defaultdict(list)
    for each in card:
        streams[each['args'].get('stream', each.get('tid'))].append(each)
    compute = max(streams, key=lambda name: sum(each['cat'] == 'kernel' for each in streams[name]))
    began, over = card[0]['ts'], max(each['ts'] + each['dur'] for each in card)
    return {
        'span_seconds': (over - began) * MICRO,
        'compute_busy_seconds': _union(streams[compute]) * MICRO,
        'streams': {str(name): {'busy_seconds': _union(each) * MICRO, 'count': len(each)}
                    for name, each in streams.items()},
        'kernels': _by_name(each for each in card if each['cat'] == 'kernel'),
        'copies': _by_name(each for each in card if each['cat'] != 'kernel'),
        'copied_bytes': _bytes(card),
        'gaps': _gaps(streams[compute]),
        'calls': _by_name(each for each in events if each.get('cat') in OF_PROGRAM),
    }


def _by_name(events: Iterable[Event]) -> list[list[Any]]:
    """[name, count, seconds], the longest first."""
    found: dict[str, list[float]] = collections.defaultdict(lambda: [0, 0.0])
    for each in events:
        entry = found[each['name']]
        entry[0] += 1
        entry[1] += each['dur'] * MICRO
    return [[name[:160], count, seconds] for name, (count, seconds) in
            sorted(found.items(), key=lambda item: -item[1][1])[:MOST]]


def _bytes(events: Iterable[Event]) -> dict[str, int]:
    found: collections.Counter[str] = collections.Counter()
    for each in events:
        if each['cat'] == 'gpu_memcpy':
            found[each['name']] += int(each['args'].get('bytes', 0))
    return dict(found)


def _union(events: Sequence[Event]) -> float:
    """Microseconds in which at least one of them runs; they are in the order in which they begin."""
    busy, until = 0.0, float('-inf')
    for each in events:
        over = each['ts'] + each['dur']
        busy += max(0.0, over - max(each['ts'], until))
        until = max(until, over)
    return busy


def _gaps(events: Sequence[Event]) -> dict[str, Any]:
    """How long the stream had nothing to do, and the longest of these times with what came before and after."""
    found: list[list[Any]] = []
    until, last = events[0]['ts'], ''
    for each in events:
        if each['ts'] > until:
            found.append([(each['ts'] - until) * MICRO, (until - events[0]['ts']) * MICRO, last[:60],
                          each['name'][:60]])
        if each['ts'] + each['dur'] >= until:
            until, last = each['ts'] + each['dur'], each['name']
    return {'count': len(found), 'seconds': sum(each[0] for each in found),
            'longest': sorted(found, reverse=True)[:MOST]}


def _functions(iterate: Callable[[], object]) -> list[list[Any]]:
    """[function, calls, own seconds, seconds with what it calls], the longest by its own time first."""
    profiler = cProfile.Profile()
    profiler.runcall(iterate)
    stats = pstats.Stats(profiler, stream=io.StringIO()).stats  # type: ignore[attr-defined]
    lines = [[f'{"/".join(pathlib.Path(file).parts[-2:])}:{line} {name}', calls, own, whole]
             for (file, line, name), (_, calls, own, whole, _) in stats.items()]
    return sorted(lines, key=lambda each: -each[2])[:MOST]
