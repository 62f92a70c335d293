"""Where swap-ins start if the decision names positions. Calls 0..2, steps 3..7; `U` is the use."""
import numpy as np
import pytest

from chainer_ooc.problem import Starts, Verdict
from chainer_ooc.schedule.chains import find_chains
from chainer_ooc.schedule.schedule import schedule_swap_ins


@pytest.fixture
def begin(trace_of):
    """Starts of the swap-ins of maps (nbytes, first backward use)."""
    def begin(starts, free_bytes, *maps):
        trace = trace_of([0] * 3, [0] * 5, [(nbytes, 0, 0, [use]) for nbytes, use in maps])
        verdicts = (Verdict.SWAP,) * len(maps)
        swap_ins = schedule_swap_ins(
            trace, verdicts, find_chains(trace, verdicts), np.array(free_bytes, np.int64), starts)
        return {each.map: each.start for each in swap_ins}
    return begin


def test_a_swap_in_starts_with_the_position_that_is_named(begin):
    # position  0  1  2 | 3  4  5  6  7
    # map 0                  [==== U
    assert begin(Starts(positions={0: 4}), [9] * 8, (4, 6)) == {0: 4}


def test_without_room_there_it_starts_later(begin):
    # position  0  1  2 | 3  4  5  6  7
    # free                9  3  9
    # map 0                     [= U
    assert begin(Starts(positions={0: 3}), [9, 9, 9, 9, 3, 9, 9, 9], (4, 6)) == {0: 5}


def test_without_a_check_of_memory_it_starts_there_anyway(begin):
    assert begin(Starts(positions={0: 3}, checks_memory=False), [0] * 8, (4, 6)) == {0: 3}


def test_it_starts_in_backward_and_not_after_its_use(begin):
    assert begin(Starts(positions={0: 1, 1: 9}), [9] * 8, (4, 5), (4, 7)) == {0: 3, 1: 7}


def test_it_never_overtakes_the_one_that_is_needed_first(begin):
    # map 0                     [= U
    # map 1                     [==== U        named for 3
    assert begin(Starts(positions={0: 5, 1: 3}), [9] * 8, (1, 6), (1, 7)) == {0: 5, 1: 5}


def test_maps_that_are_not_named_follow_the_other_rules(begin):
    assert begin(Starts(ahead=2, positions={0: 3}), [9] * 8, (1, 5), (1, 7)) == {0: 3, 1: 5}
    assert begin(Starts(positions={1: 5}), [9] * 8, (1, 5), (1, 7)) == {0: 3, 1: 5}
