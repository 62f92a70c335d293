"""What is called when an object ends is no function of ours: Python loses an interrupt that comes in one, and with it
what the function was to note.
"""
import gc
import pathlib
import weakref

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_ooc
from support.trainings.ooc_training import ooc

PACKAGE = str(pathlib.Path(chainer_ooc.__file__).parent)


def is_ours(ref):
    """Whether the end of what it refers to calls a function in Python of this package's, or a method for it."""
    if isinstance(ref, weakref.WeakMethod):
        method = ref()
        return method is not None and method.__func__.__code__.co_filename.startswith(PACKAGE)
    called = ref.__callback__
    called = getattr(called, 'func', called)  # of a functools.partial
    called = getattr(called, '__func__', called)  # of a bound method
    return hasattr(called, '__code__') and called.__code__.co_filename.startswith(PACKAGE)


class Looking(chainer.FunctionHook):
    """Collects callbacks of ours while a training runs, once in each step of backward."""

    name = 'Looking'

    def __init__(self):
        self.found = []

    def backward_postprocess(self, function, in_data, out_grad):
        refs = [each for each in gc.get_objects() if isinstance(each, weakref.ref)]
        assert refs
        self.found += [str(each.__callback__) for each in refs if is_ours(each)]


@pytest.mark.parametrize('policy', ['keep', 'swap-all', 'pooch', 'superneurons', 'sublinear', 'unified'])
def test_no_function_of_ours_is_called_when_something_ends(policy):
    model = chainer.Sequential(L.Linear(64, 64), F.relu, L.Linear(64, 64), F.tanh, L.Linear(64, 5))
    optimizer = chainer.optimizers.Adam().setup(model)
    x, looking = np.ones((512, 64), np.float32), Looking()
    with ooc(policy, min_bytes=1000):
        for number in range(4):
            with looking:
                loss = F.sum(model(x))
                if number % 2:  # what stands is added to
                    loss.backward()
                    loss = F.sum(model(x))
                loss.backward()
            optimizer.update()
            model.cleargrads()
        assert chainer_ooc.stats().phase == 'run'
    assert looking.found == []


class Ended:
    def note(self, ref):
        pass


@pytest.mark.parametrize('make', [
    lambda each, ended: weakref.ref(each, lambda ref: None), lambda each, ended: weakref.ref(each, ended.note)])
def test_what_would_be_found(make, monkeypatch):
    monkeypatch.setitem(globals(), 'PACKAGE', str(pathlib.Path(__file__).parent))
    ended = Ended()
    ref = make(ended, ended)
    assert is_ours(ref)
    assert not is_ours(weakref.ref(ended, [].append))
