"""A report as TrackEvent protobuf, which ui.perfetto.dev opens: tracks for lanes and waits, counters of memory.

    predicted   compute | copies out | copies in | waits | memory, by kind
    measured    compute | copies out | copies in | waits | memory

Perfetto's trace format is protocol buffers, and a file is a sequence of packets. The few messages that are needed are
encoded here: a generated library would weigh more than they do, and have to fit whichever protobuf is installed. The
tests read what is written with Perfetto's own schema.

Source: https://perfetto.dev/docs/reference/synthetic-track-event and protos/perfetto/trace of Perfetto.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from chainer_ooc.report.contents import LANES, Report
from chainer_ooc.simulate.timeline import Cause, Stream, Task, Timeline
from chainer_ooc.trace import Trace

# Numbers of fields and of values, as Perfetto's .proto files have them.
_TRACE_PACKET = 1
_TIMESTAMP, _SEQUENCE_ID, _TRACK_EVENT, _TRACK_DESCRIPTOR = 8, 10, 11, 60
_UUID, _TRACK_NAME, _PARENT_UUID, _COUNTER = 1, 2, 5, 8
_COUNTER_UNIT, _BYTES = 3, 3
_ANNOTATION, _TYPE, _TRACK_UUID, _EVENT_NAME, _COUNTER_VALUE = 4, 9, 11, 23, 30
_ANNOTATION_INT, _ANNOTATION_TEXT, _ANNOTATION_NAME = 4, 6, 10
_BEGIN, _END, _IS_COUNTER = 1, 2, 4
_WAITS = {Cause.SWAP_IN: 'waits for a swap-in', Cause.MEMORY: 'waits for memory',
          Cause.SWAP_OUT: 'waits for a swap-out'}


def to_bytes(report: Report) -> bytes:
    """Returns the shown course, and what was measured if anything was, as a file for ui.perfetto.dev.

    Times are in nanoseconds from the beginning of the iteration, memory is in bytes.
    """
    tracks = _Tracks()
    predicted = tracks.add('predicted')
    packets = [*_lanes(tracks, predicted, report.trace, report.course.timeline)]
    starts = report.course.timeline.starts()
    for kind in report.course.kinds:
        packets += _counter(tracks.add(kind.name, predicted, counts_bytes=True), starts, kind.nbytes)
    if report.measured is not None and report.measured.tasks:
        measured = tracks.add('measured')
        packets += _lanes(tracks, measured, report.trace, report.measured)
        packets += _counter(tracks.add('near memory', measured, counts_bytes=True), report.measured.starts(),
                            report.measured.near_bytes)
    ordered = [packet for _, packet in sorted(packets, key=lambda each: each[0])]  # stable: what ends comes first
    return b''.join(_message(_TRACE_PACKET, each) for each in (*tracks.packets, *ordered))


class _Tracks:
    """The descriptions of tracks, each with a number of its own."""

    def __init__(self) -> None:
        self.packets: list[bytes] = []

    def add(self, name: str, parent: int = 0, counts_bytes: bool = False) -> int:
        number = len(self.packets) + 1
        described = _number(_UUID, number) + _text(_TRACK_NAME, name)
        described += _number(_PARENT_UUID, parent) if parent else b''
        described += _message(_COUNTER, _number(_COUNTER_UNIT, _BYTES)) if counts_bytes else b''
        self.packets.append(_message(_TRACK_DESCRIPTOR, described))
        return number


def _lanes(tracks: _Tracks, parent: int, trace: Trace, timeline: Timeline) -> Iterator[tuple[int, bytes]]:
    numbers = {stream: tracks.add(name, parent) for stream, name in LANES.items()}
    for task in timeline.tasks:
        yield from _slice(numbers[task.stream], task.start_seconds, task.end_seconds, *_told(trace, task))
    waits = tracks.add('waits', parent)
    for stall, start_seconds in timeline.waits():
        made = f'map {stall.map}' if stall.map >= 0 else ''
        yield from _slice(waits, start_seconds, start_seconds + stall.seconds, _WAITS[stall.cause],
                          {'at': trace.name_of(stall.position), 'for': made})


def _told(trace: Trace, task: Task) -> tuple[str, dict[str, str | int]]:
    """The name of a task, and what else is known of it."""
    if task.stream is Stream.COMPUTE:
        again = {'runs again first, us': round(task.recomputed_seconds * 1e6)} if task.recomputed_seconds else {}
        return trace.name_of(task.subject), {'position': task.subject, **again}
    maker = trace.maker_of(task.subject)
    made_by = 'the batch' if maker is None else f'{maker.label}{maker.place}'
    return f'map {task.subject}', {'made by': made_by, 'bytes': trace.maps[task.subject].nbytes}


def _counter(track: int, starts: Iterable[float], nbytes: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    before = -1
    for start_seconds, each in zip(starts, nbytes, strict=True):
        if each != before:
            yield _event(track, start_seconds, _IS_COUNTER, _number(_COUNTER_VALUE, each))
            before = each


def _slice(track: int, start_seconds: float, end_seconds: float, name: str,
           told: dict[str, str | int]) -> Iterator[tuple[int, bytes]]:
    annotations = b''.join(_message(_ANNOTATION, _text(_ANNOTATION_NAME, key) + (
        _number(_ANNOTATION_INT, value) if isinstance(value, int) else _text(_ANNOTATION_TEXT, value)))
        for key, value in told.items() if value != '')
    yield _event(track, start_seconds, _BEGIN, _text(_EVENT_NAME, name) + annotations)
    yield _event(track, end_seconds, _END)


def _event(track: int, seconds: float, kind: int, more: bytes = b'') -> tuple[int, bytes]:
    at = round(seconds * 1e9)
    event = _number(_TYPE, kind) + _number(_TRACK_UUID, track) + more
    return at, _number(_TIMESTAMP, at) + _number(_SEQUENCE_ID, 1) + _message(_TRACK_EVENT, event)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: str) -> bytes:
    return _message(field, value.encode(errors='replace'))  # a path may have what is no text


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the highest bit says that more follow. Negative numbers are 64 bits."""
    value &= (1 << 64) - 1
    encoded = bytearray()
    while value > 0x7f:
        encoded.append(value & 0x7f | 0x80)
        value >>= 7
    return bytes((*encoded, value))
