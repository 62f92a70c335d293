"""What is written for ui.perfetto.dev, read with Perfetto's own schema."""
import dataclasses

import pytest

from chainer_ooc.report.perfetto import _text, _varint, to_bytes
from chainer_ooc.simulate.timeline import Cause, Stall
from support.planning.drawn_trace import MB

pb2 = pytest.importorskip('perfetto.protos.perfetto.trace.perfetto_trace_pb2', reason='needs the package perfetto')


@pytest.fixture(scope='module')
def packets(report):
    return pb2.Trace.FromString(to_bytes(report)).packet


def tracks(packets):
    """Names of tracks by their numbers, those of parents in front."""
    descriptors = {each.track_descriptor.uuid: each.track_descriptor for each in packets
                   if each.HasField('track_descriptor')}

    def name(number):
        own = descriptors[number]
        return f'{name(own.parent_uuid)}/{own.name}' if own.parent_uuid else own.name

    return {number: name(number) for number in descriptors}


def slices(packets, track):
    """(name, beginning, end) of the slices of a track, in seconds."""
    begun, found = [], []
    for each in packets:
        event = each.track_event
        if tracks(packets).get(event.track_uuid) == track and event.type == event.TYPE_SLICE_BEGIN:
            begun.append((event.name, each.timestamp / 1e9))
        elif tracks(packets).get(event.track_uuid) == track and event.type == event.TYPE_SLICE_END:
            found.append((*begun.pop(), each.timestamp / 1e9))
    assert not begun
    return found


def test_nothing_is_written_that_the_schema_does_not_know(report):
    written = to_bytes(report)
    read = pb2.Trace.FromString(written)
    read.DiscardUnknownFields()
    assert read.ByteSize() == len(written)


def test_lanes_are_tracks_and_tasks_are_slices(packets):
    assert slices(packets, 'predicted/copies out') == [('map 1', 2, 6), ('map 2', 7, 9)]
    assert slices(packets, 'predicted/waits') == [('waits for memory', 2, 6), ('waits for a swap-in', 9, 13)]
    assert slices(packets, 'predicted/compute')[2] == (
        'Layer2, forward of call 2, at /part2 in model.py:9', 6, 7)
    assert slices(packets, 'measured/copies in') == [('map 1', 4, 4.25)]


def test_waits_of_one_position_lie_one_after_the_other_before_it(report):
    waits = (Stall(4, 1, 0.25, Cause.MEMORY), Stall(4, 1, 0.5, Cause.SWAP_IN))
    timeline = dataclasses.replace(report.measured, stalls=waits)
    packets = pb2.Trace.FromString(to_bytes(dataclasses.replace(report, measured=timeline))).packet
    assert slices(packets, 'measured/waits') == [('waits for memory', 3.75, 4), ('waits for a swap-in', 4, 4.5)]


def test_a_slice_says_where_its_map_is_made(packets):
    told = next(each.track_event.debug_annotations for each in packets if each.track_event.name == 'map 1')
    assert {each.name: each.string_value or each.int_value for each in told} == {
        'made by': 'Layer0, at /part0 in model.py:7', 'bytes': 4 * MB}


def test_memory_is_counters_in_bytes(packets, report):
    names = tracks(packets)
    found = [(each.timestamp / 1e9, each.track_event.counter_value) for each in packets
             if names.get(each.track_event.track_uuid) == 'predicted/part0'
             and each.track_event.type == each.track_event.TYPE_COUNTER]
    assert found == [(0, 4 * MB), (6, 0), (13, 4 * MB), (15, 0)]
    unit = next(each.track_descriptor.counter.unit for each in packets if each.track_descriptor.name == 'part0')
    assert unit == pb2.CounterDescriptor.UNIT_SIZE_BYTES


def test_times_do_not_go_back(packets):
    at = [each.timestamp for each in packets if each.HasField('track_event')]
    assert at == sorted(at)


@pytest.mark.parametrize(('value', 'encoded'), [
    (0, b'\x00'), (127, b'\x7f'), (128, b'\x80\x01'), (300, b'\xac\x02'), (-1, b'\xff' * 9 + b'\x01')])
def test_numbers_are_varints(value, encoded):
    assert _varint(value) == encoded


def test_what_is_no_text_is_replaced():
    """Python has such characters for the bytes of a path that is not UTF-8."""
    assert _text(1, 'a\udc80b').endswith(b'a?b')
