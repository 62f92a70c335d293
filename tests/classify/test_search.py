"""What searches share."""
import subprocess
import sys
import threading

import pytest
import tqdm

from chainer_ooc.classify import search
from chainer_ooc.classify.progress import Bar


def test_a_progress_bar_starts_no_thread():
    assert tqdm.tqdm.monitor_interval
    assert list(Bar(range(3), disable=None)) == [0, 1, 2]
    assert list(Bar(range(3), disable=False, leave=False)) == [0, 1, 2]
    assert not any('monitor' in type(each).__name__.lower() for each in threading.enumerate())


@pytest.mark.parametrize('failure', [ImportError('failed to map segment from shared object'), MemoryError()])
def test_a_search_goes_on_where_no_progress_bar_can_be_loaded(monkeypatch, failure):
    def refused(self, name, path, target=None):
        if name.endswith('.progress'):
            raise failure

    monkeypatch.delitem(sys.modules, 'chainer_ooc.classify.progress')
    monkeypatch.setattr(sys, 'meta_path', [type('Refusing', (), {'find_spec': refused})(), *sys.meta_path])
    assert [*search._shown([1, 2], 'keep or swap')] == [1, 2]


def test_a_progress_bar_maps_no_memory_that_stays():
    body = """
import sys
from chainer_ooc.classify.progress import Bar
list(Bar(range(3), disable=None)), list(Bar(range(3), disable=False, leave=False))
print(any(' rw-s ' in line for line in open('/proc/self/maps')))"""
    done = subprocess.run([sys.executable, '-c', body], capture_output=True, text=True, check=True)
    assert done.stdout == 'False\n'
