"""Two recordings give a third, exactly, or a message."""
import dataclasses

import pytest

from chainer_ooc.papers.extrapolation import ExtrapolationError, extrapolate, structure
from chainer_ooc.trace import ArrayForm, Call, FeatureMap, Step, Trace


def recorded(batch, side=8, label='ReLU', seconds=0.5):
    """A call on images of so many pixels, and its step; times and scratch memory are what a recording has."""
    form = ArrayForm('<f4', (batch, 3, side, side))
    nbytes = 4 * batch * 3 * side * side
    kept = FeatureMap(0, nbytes, None, False, True, True, 0, (1,), (batch, 3, side, side), 'float32')
    made = FeatureMap(1, nbytes, 0, False, False, False, 0, (), (batch, 3, side, side), 'float32')
    call = Call(0, label, (0,), (1,), (), seconds, nbytes + 77, (form,), (form,), True)
    step = Step(1, 0, (0,), seconds, nbytes + 99, 123)
    return Trace('host', (call,), (step,), (kept, made), seconds, 1e9, 1e9, 0.5, {'numpy': '2'}, 'here', None,
                 1000 + batch, 500)


@pytest.mark.parametrize('batch', [1, 2, 3, 5, 640])
def test_a_third_recording_is_met_exactly(batch):
    assert extrapolate(recorded(2), recorded(3), 2, 3, batch) == structure(recorded(batch))


def test_sizes_need_not_be_neighbours_or_in_order():
    assert extrapolate(recorded(7), recorded(3), 7, 3, 4) == structure(recorded(4))


def test_forms_follow_so_that_the_graph_is_the_same():
    found = extrapolate(recorded(2), recorded(3), 2, 3, 640)
    assert found.calls[0].arguments == found.calls[0].results == (ArrayForm('<f4', (640, 3, 8, 8)),)
    assert found.fingerprint == recorded(640).fingerprint


def test_what_was_measured_is_left_out():
    bare = structure(recorded(2))
    assert (bare.seconds, bare.write_bytes_per_second, bare.read_bytes_per_second, bare.copy_slowdown) == (0, 0, 0, 0)
    assert (bare.calls[0].seconds, bare.calls[0].peak_bytes) == (0, 0)
    assert (bare.steps[0].seconds, bare.steps[0].peak_bytes, bare.steps[0].other_bytes) == (0, 0, 0)
    assert bare.maps == recorded(2).maps
    assert (bare.standing_forward_bytes, bare.standing_backward_bytes) == (1002, 500)


def test_recordings_of_one_size_are_refused():
    with pytest.raises(ExtrapolationError, match='both recordings are of size 2; record one of another size'):
        extrapolate(recorded(2), recorded(2), 2, 2, 3)


def test_two_programs_are_refused():
    with pytest.raises(ExtrapolationError, match=r"differ in label of calls\[0\]: 'ReLU' and 'Tanh'"):
        extrapolate(recorded(2), recorded(3, label='Tanh'), 2, 3, 4)


def test_other_positions_are_no_size():
    moved = recorded(3)
    moved = dataclasses.replace(moved, maps=(dataclasses.replace(moved.maps[0], backward_uses=(2,)), moved.maps[1]))
    with pytest.raises(ExtrapolationError, match=r'backward_uses of maps\[0\]'):
        extrapolate(recorded(2), moved, 2, 3, 4)


def test_another_number_of_calls_is_refused():
    longer = dataclasses.replace(recorded(3), calls=recorded(3).calls * 2)
    with pytest.raises(ExtrapolationError, match='calls has 1 entries in one recording and 2 in the other'):
        extrapolate(recorded(2), longer, 2, 3, 4)


def test_a_curve_is_refused():
    # bytes grow with the square of the side: no straight line, whole number or not
    with pytest.raises(ExtrapolationError, match=r'map 0 has 648 bytes and the shape \(2, 3, 5, 5\)'):
        extrapolate(recorded(2, side=4), recorded(2, side=7), 4, 7, 5)


def test_a_figure_that_is_no_whole_number_is_refused():
    with pytest.raises(ExtrapolationError, match='leads to no whole number'):
        extrapolate(recorded(2), recorded(3), 2, 4, 3)


def test_nothing_becomes_negative():
    with pytest.raises(ExtrapolationError, match='no whole number'):
        extrapolate(recorded(2), recorded(3), 2, 3, -1)
