"""What a call costs beside its work, and what is looked up only when it is needed."""
import sys
from unittest import mock

import chainer
import chainer.functions as F
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.execute.memory.eviction import Candidates
from chainer_ooc.execute.storage.storage import Storage

CALLS = 50
#: Python functions that one call and its step may run beside Chainer's own, under a plan that moves nothing.
MOST_FUNCTIONS = 60
#: The same beside calls whose maps move.
MOST_FUNCTIONS_BESIDE = 110
#: The same under a plan that swaps three maps of four.
MOST_FUNCTIONS_MOVING = 440


def functions_run(iteration):
    """How many Python functions an iteration runs: what does not depend on how busy the machine is."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event == 'call'
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        iteration()
    finally:
        sys.setprofile(before)
    return count


def chain():
    h = chainer.Variable(np.ones(100, 'f'))
    for number in range(CALLS):
        h = (F.tanh, F.sigmoid)[number % 2](h)
    F.sum(h).backward()


@pytest.mark.parametrize('policy', ['keep', 'pooch', 'swap-all'])
def test_a_small_call_runs_few_functions_of_ours(policy):
    chain()
    plain = functions_run(chain)
    with chainer.using_config('ooc', policy):
        for _ in range(3):
            chain()
        managed = functions_run(chain)
        assert chainer_ooc.stats().phase == 'run'
    assert (managed - plain) / CALLS < MOST_FUNCTIONS


def beside_wide_ones():
    h = F.sum(F.sigmoid(F.tanh(chainer.Variable(np.ones((100, 100), 'f')))), axis=1)
    for number in range(CALLS):
        h = (F.tanh, F.sigmoid)[number % 2](h)
    F.sum(h).backward()


def test_a_call_beside_others_whose_maps_move_runs_few_functions_of_ours():
    def count(calls):
        with mock.patch.object(sys.modules[__name__], 'CALLS', calls):
            beside_wide_ones()
            plain = functions_run(beside_wide_ones)
            with chainer.using_config('ooc', 'swap-all'), chainer.using_config('ooc_min_bytes', 10_000):
                for _ in range(3):
                    beside_wide_ones()
                managed = min(functions_run(beside_wide_ones) for _ in range(4))
                assert chainer_ooc.stats().swap == 2
        return managed - plain

    assert (count(3 * CALLS) - count(CALLS)) / (2 * CALLS) < MOST_FUNCTIONS_BESIDE


def test_a_call_whose_map_moves_runs_few_functions_of_ours():
    chain()
    plain = functions_run(chain)
    with chainer.using_config('ooc', 'swap-all'), chainer.using_config('ooc_min_bytes', 0):
        for _ in range(3):
            chain()
        managed = min(functions_run(chain) for _ in range(8))  # plans are made again in some, and some wait for copies
        assert chainer_ooc.stats().swap > CALLS // 2
    assert (managed - plain) / CALLS < MOST_FUNCTIONS_MOVING


def test_what_is_used_last_as_it_is_known_when_memory_is_short_goes_first():
    roots = [np.ones(10) for _ in range(3)]
    near, far, again = (Storage(None, root) for root in roots)
    next_uses, candidates = {near: 1.0, far: 2.0, again: 9.0}, Candidates()
    for storage in (near, far, again):
        candidates.add(storage)
    assert candidates.pop(next_uses.get) is again  # 9
    next_uses.update({near: 7.0, far: 6.0, again: 3.0})
    candidates.add(again)
    candidates.add(near)
    # near: 7, was 1; far: still 2, as it was not used since; again: 3, was 9
    assert [candidates.pop(next_uses.get) for _ in range(4)] == [near, again, far, None]
