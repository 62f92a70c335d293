"""What a call costs beside its work, and what is looked up only when it is needed."""
import contextlib
import functools
import pathlib
import subprocess
import sys

import chainer
import chainer.functions as F
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.backends.spill.swap_thread import SwapThread
from chainer_ooc.backends.spill.transfer import HostTransfer
from chainer_ooc.execute.memory.eviction import Candidates
from chainer_ooc.execute.storage.storage import Storage

CALLS = 50
#: Python functions that one call and its step may run beside Chainer's own, under a plan that moves nothing.
MOST_FUNCTIONS = 60
#: The same beside calls whose maps move.
MOST_FUNCTIONS_BESIDE = 110
#: The same under a plan that swaps three maps of four.
MOST_FUNCTIONS_MOVING = 440


def functions_run(iteration, calls):
    """How many Python functions an iteration runs: what does not depend on how busy the machine is."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event == 'call'
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        iteration(calls)
    finally:
        sys.setprofile(before)
    return count


def functions_a_call(iteration, runs=1):
    """How many a call and its step run, without what an iteration runs itself; the fewest of so many runs.

    Plans are made again in some.
    """
    counts = []
    for calls in (CALLS, 3 * CALLS):
        for _ in range(3):
            iteration(calls)
        counts.append(min(functions_run(iteration, calls) for _ in range(runs)))
    return (counts[1] - counts[0]) / (2 * CALLS)


def chain(calls):
    h = chainer.Variable(np.ones(100, 'f'))
    for number in range(calls):
        h = (F.tanh, F.sigmoid)[number % 2](h)
    F.sum(h).backward()


def beside_wide_ones(calls):
    h = F.sum(F.sigmoid(F.tanh(chainer.Variable(np.ones((100, 100), 'f')))), axis=1)
    for number in range(calls):
        h = (F.tanh, F.sigmoid)[number % 2](h)
    F.sum(h).backward()


@functools.cache
def plain_functions_a_call(name):
    """The same in plain Chainer, in a process in which nothing was ever out-of-core."""
    code = ('import chainer_ooc, runpy\n'
            f'own = runpy.run_path({__file__!r})\n'
            f'print(own["functions_a_call"](own[{name!r}]))')
    ended = subprocess.run([sys.executable, '-c', code], capture_output=True, check=True, text=True,
                           cwd=pathlib.Path(chainer_ooc.__file__).parents[1])
    return float(ended.stdout)


def functions_of_ours(iteration, runs, **entries):
    with contextlib.ExitStack() as stack:
        for name, value in entries.items():
            stack.enter_context(chainer.using_config(name, value))
        managed = functions_a_call(iteration, runs)
        assert chainer_ooc.stats().phase == 'run'
        return managed - plain_functions_a_call(iteration.__name__), chainer_ooc.stats().swap


@pytest.fixture
def copies_at_once(monkeypatch):
    """Each copy has ended when it was asked for: how long one takes decides which functions look for it, and wait."""
    submit = SwapThread.submit

    def submit_and_wait(thread, task):
        before = sys.getprofile()
        sys.setprofile(None)
        try:
            submit(thread, task)
            ended = HostTransfer(0)
            submit(thread, lambda: ended.end(0.0, None))
            ended.wait()
        finally:
            sys.setprofile(before)
    monkeypatch.setattr(SwapThread, 'submit', submit_and_wait)


@pytest.mark.parametrize('policy', ['keep', 'pooch', 'swap-all'])
def test_a_small_call_runs_few_functions_of_ours(policy):
    count, _ = functions_of_ours(chain, 3, ooc=policy)
    assert count < MOST_FUNCTIONS


@pytest.mark.usefixtures('copies_at_once')
def test_a_call_beside_others_whose_maps_move_runs_few_functions_of_ours():
    count, swapped = functions_of_ours(beside_wide_ones, 4, ooc='swap-all', ooc_min_bytes=10_000)
    assert count < MOST_FUNCTIONS_BESIDE
    assert swapped == 2


@pytest.mark.usefixtures('copies_at_once')
def test_a_call_whose_map_moves_runs_few_functions_of_ours():
    count, swapped = functions_of_ours(chain, 4, ooc='swap-all', ooc_min_bytes=0)
    assert count < MOST_FUNCTIONS_MOVING
    assert swapped > CALLS // 2


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
