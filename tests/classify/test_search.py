"""What searches share."""
import threading

import tqdm

from chainer_ooc.classify.progress import Bar


def test_a_progress_bar_starts_no_thread():
    assert tqdm.tqdm.monitor_interval
    assert list(Bar(range(3), disable=None)) == [0, 1, 2]
    assert list(Bar(range(3), disable=False, leave=False)) == [0, 1, 2]
    assert not any('monitor' in type(each).__name__.lower() for each in threading.enumerate())
