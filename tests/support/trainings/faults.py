"""Trainings into which a fault is injected: nothing is lost or left, and the next iteration works."""
import gc
import threading
import time
import traceback

import chainer
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.execute import sessions
from support.trainings.ooc_training import Training, assert_same_bits, ooc, plain, spill_bytes


def nothing_left():
    """What reset has to have given back."""
    return (
        [each.name for each in threading.enumerate() if each.name.startswith('chainer_ooc')], spill_bytes(),
        list(chainer.get_function_hooks()))


class Saved:
    """A training's state, so that a failed iteration can be repeated."""

    def __init__(self, training):
        self.random = np.random.get_state()
        self.persistent = {
            path: np.copy(getattr(link, name)) for path, link, name in _persistents(training.model)}

    def restore(self, training):
        np.random.set_state(self.random)
        for path, link, name in _persistents(training.model):
            if isinstance(getattr(link, name), np.ndarray):
                getattr(link, name)[...] = self.persistent[path]
            else:
                setattr(link, name, self.persistent[path].item())


def _persistents(model):
    return [(f'{path}/{name}', link, name) for path, link in model.namedlinks() for name in link._persistent]


def break_off(training):
    """An iteration that fails, at the latest where the last copies are waited for."""
    training.forward().backward()
    time.sleep(0.05)
    loss = training.forward()  # lives until its copies have failed
    sessions.current().memory.settle()
    del loss
    chainer_ooc.reset()


def train_with_a_fault(network, policy, at, break_it, expected, **entries):
    """Trains 4 iterations; iteration `at` is first run under `break_it` (a context manager), then repeated."""
    training = Training(network)
    with ooc(policy, **entries):
        for number in range(4):
            if number == at:
                saved = Saved(training)
                with break_it, pytest.raises(expected) as failed:
                    break_off(training)
                traceback.clear_frames(failed.tb)
                gc.collect()  # the graph hangs on the exception
                saved.restore(training)
            training.iterate()
    assert_same_bits(training.finish(), plain(network))
    gc.collect()
    chainer_ooc.reset()
    assert nothing_left() == ([], 0, [])
    return failed.value


class Patched:
    """Replaces an attribute for a while; `count` calls go through first, then `times` calls fail."""

    def __init__(self, owner, name, failure, after=0, times=10**9):
        self.owner, self.name, self.failure, self.after, self.times = owner, name, failure, after, times
        self.calls = 0

    def __enter__(self):
        self.original = getattr(self.owner, self.name)
        original = self.original

        def replaced(*args, **kwargs):
            self.calls += 1
            if self.after < self.calls <= self.after + self.times:
                return self.failure(original, *args, **kwargs)
            return original(*args, **kwargs)

        setattr(self.owner, self.name, replaced)

    def __exit__(self, *error):
        setattr(self.owner, self.name, self.original)


def interrupt(original, *args, **kwargs):
    raise KeyboardInterrupt


def interrupted_after(original, *args):
    original(*args)  # what it returns is lost, as between a call and the assignment of its result
    raise KeyboardInterrupt
