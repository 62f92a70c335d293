"""Whole trainings on another device than that of their arrays."""
import contextlib
from unittest import mock

from chainer_ooc import backends


@contextlib.contextmanager
def chosen(maker):
    """Has sessions get their backends from `maker`, which is given the spill folder, in every thread; gives those made.

    A session keeps the backend that it has: call `chainer_ooc.reset()` before, and after.
    """
    made = []

    def make(device, options):
        made.append(maker(options.spill_dir))
        return made[-1]
    with mock.patch.object(backends, '_make', make):
        yield made
