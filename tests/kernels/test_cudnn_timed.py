"""With chainer.config.autotune a convolution's engines are timed once, and the fastest runs from then on."""
import threading
from dataclasses import replace

import chainer_ooc  # noqa: F401  before chainer

# isort: split
import numpy as np
import pytest

from chainer_ooc.backends.cuda import preparations
from chainer_ooc.kernels.cudnn import execution, facade, handles
from chainer_ooc.kernels.cudnn.operations import Port
from chainer_ooc.kernels.cudnn.settings import PlanSettings
from support.fake_cudnn import Engine, heur_mode, numerical_note

A, B, FALLBACK = heur_mode.A, heur_mode.B, heur_mode.FALLBACK
TIMED = PlanSettings(1000, False, False, True)


@pytest.fixture(autouse=True)
def nothing_timed_yet(monkeypatch):
    monkeypatch.setattr(execution, '_fastest', {})


def convolve(handle, settings=TIMED, height=8):
    rng = np.random.default_rng(1)
    x, w = rng.normal(size=(2, 3, height, 8)).astype('f'), rng.normal(size=(4, 3, 3, 3)).astype('f')
    y = np.full((2, 4, height, 8), np.nan, 'f')
    assert facade.convolve(handle, settings, Port.Y, x, w, y, ((1, 1),) * 3)
    return y


def ran(cudnn):
    return cudnn.built[-1].engine.name


def test_the_fastest_runs_wherever_it_stands(cudnn, ours):
    cudnn.engines[:] = [Engine('first', seconds=2), Engine('second', seconds=1, modes=(FALLBACK,)),
                        Engine('third', seconds=3, modes=(B,))]
    expected = convolve(ours, replace(TIMED, timed=False))
    assert ran(cudnn) == 'first'
    np.testing.assert_array_equal(convolve(ours), expected)
    assert ran(cudnn) == 'second'


def test_engines_are_timed_once(cudnn, ours, device):
    cudnn.engines[:] = [Engine('slow', seconds=10), Engine('fast', seconds=1), Engine('middling', seconds=1.2)]
    before = preparations.total()
    convolve(ours)
    # a first run of each, three that are timed, but for what the first shows to be slower by half; and the call itself
    assert device.elapsed_seconds == pytest.approx(4 * 10 + 4 * 1 + 4 * 1.2 + 1)
    assert preparations.total() == before + 2  # planned, and timed: this iteration's times count for nothing
    for _ in range(3):
        convolve(ours)
    assert device.elapsed_seconds == pytest.approx(4 * 10 + 4 * 1 + 4 * 1.2 + 4)
    assert preparations.total() == before + 2


def test_what_one_run_shows_to_be_slow_is_run_no_more(cudnn, ours, device):
    cudnn.engines[:] = [Engine('fast', seconds=1), Engine('slow', seconds=10)]
    convolve(ours)
    assert device.elapsed_seconds == pytest.approx(4 * 1 + 2 * 10 + 1)


def test_the_choice_outlives_the_plan_and_holds_for_every_thread(cudnn, ours, device):
    cudnn.engines[:] = [Engine('one', seconds=2), Engine('two', seconds=1)]
    convolve(ours)
    cudnn.engines[:] = [Engine('one', seconds=1), Engine('two', seconds=2)]  # as noise would have it
    other = handles.Handle(cudnn, device)
    convolve(other)
    assert ran(cudnn) == 'two'
    thread = threading.Thread(target=convolve, args=(handles.Handle(cudnn, device),))
    thread.start()
    thread.join()
    assert ran(cudnn) == 'two'
    convolve(other, height=9)  # another operation has a choice of its own
    assert ran(cudnn) == 'one'


def test_only_what_the_settings_allow_is_timed(cudnn, ours):
    cudnn.engines[:] = [
        Engine('other bits', seconds=1, notes=(numerical_note.NONDETERMINISTIC,)), Engine('greedy', 1001, seconds=1),
        Engine('TF32', seconds=1, notes=(numerical_note.TENSOR_CORE,)), Engine('frost_conv', seconds=1),
        Engine('slow', 900, seconds=5), Engine('allowed', seconds=4)]
    convolve(ours, replace(TIMED, deterministic=True))
    assert ran(cudnn) == 'allowed'
    (_, _, nbytes), = ours.asked()
    assert nbytes == 0


def test_an_engine_that_fails_is_passed_over(cudnn, ours):
    cudnn.engines[:] = [Engine('faulty', seconds=1, fault=RuntimeError('CUDNN_STATUS_EXECUTION_FAILED')),
                        Engine('hungry', 100, seconds=1, fault=MemoryError('out of memory')),
                        Engine('sound', seconds=2)]
    assert np.isfinite(convolve(ours)).all()
    assert ran(cudnn) == 'sound'
    cudnn.engines[:] = cudnn.engines[:1]
    with pytest.raises(RuntimeError, match='EXECUTION_FAILED'):
        convolve(ours, height=9)


def test_so_many_are_timed_at_most_and_each_once(cudnn, ours, device):
    modes = (A, B, FALLBACK)  # each heuristic may name the same engine
    cudnn.engines[:] = [Engine(f'eng{number}', seconds=1, modes=modes) for number in range(20)]
    convolve(ours)
    assert device.elapsed_seconds == pytest.approx(execution.MOST_TIMED * 4 + 1)
    assert ran(cudnn) == 'eng0'
