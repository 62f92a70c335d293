"""Floors say when they may not be the last: `InfeasibleBudgetError.doubt`."""
import threading

import pytest
from ooc_training import Training, ooc

from chainer_ooc.errors import InfeasibleBudgetError


def refusal(training):
    with pytest.raises(InfeasibleBudgetError) as refused:
        training.iterate()
    return refused.value


def test_a_floor_that_a_recording_without_disturbance_tells_is_named_without_doubt():
    training = Training('residual')
    with ooc(budget=1):
        training.iterate()
        error = refusal(training)
    assert error.doubt == ''
    assert 'smallest that works' in str(error)


def test_a_floor_is_in_doubt_while_another_thread_trains():
    step, end = threading.Event(), threading.Event()

    def train_beside():
        with ooc():
            beside = Training('old')
            beside.iterate()
            step.set()
            end.wait(20)
    other = threading.Thread(target=train_beside)
    other.start()
    assert step.wait(20)
    training = Training('residual')
    try:
        with ooc(budget=1):
            training.iterate()
            error = refusal(training)
    finally:
        end.set()
        other.join()
    assert 'other threads' in error.doubt
    assert error.doubt in str(error)
    assert 'smallest that works' not in str(error)
