"""Skips everything in this folder where there is no usable GPU, for one reason that says what is missing.

With one, each test runs under deterministic settings, in a process whose CUDA context and library handles exist: they
open descriptors that stay, which the fixture that looks for traces would take for a test's own.
"""
import contextlib
import functools
import importlib.util
import os
import pathlib

import pytest

HERE = pathlib.Path(__file__).parent

import chainer_ooc  # noqa: E402  before the helpers, which import chainer


@functools.cache
def missing():
    """Why no test can run here, or None."""
    if importlib.util.find_spec('cupy') is None:
        return 'no usable GPU: CuPy is not installed (see docs/gpu.md)'
    try:
        import chainer
        if not chainer.backends.cuda.available:
            return 'no usable GPU: chainer.backends.cuda.available is False (see docs/gpu.md)'
        import cupy
        assert int((cupy.arange(4) + 1).sum()) == 10
    except Exception as error:
        why = ' '.join(str(error).split())[:200]
        return f'no usable GPU: {type(error).__name__}: {why} (see docs/gpu.md)'
    return None


#: What newer versions of Python and NumPy than those of the suite say of Chainer: a machine with a GPU has its own.
OF_VERSIONS = ('DeprecationWarning', 'PendingDeprecationWarning', 'FutureWarning', 'SyntaxWarning')


def pytest_collection_modifyitems(items):
    here = [item for item in items if item.path.is_relative_to(HERE)]
    for item in here:
        for category in OF_VERSIONS:
            item.add_marker(pytest.mark.filterwarnings(f'default::{category}'))
    reason = missing() if here else None
    if reason:
        for item in here:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True, scope='session')
def context():
    """Opens what stays open: the context, the handles of cuBLAS, cuRAND and cuDNN, what each allocator needs."""
    from chainer_ooc.config import ALLOCATORS
    from support.gpu.gpu_training import AMPLE, GpuTraining, train
    GpuTraining('residual').iterate(2)
    GpuTraining('hidden').iterate(1)
    for allocator in ALLOCATORS:
        with contextlib.suppress(Exception):  # what is wrong with one, its own test says
            train('residual', 'swap-all', 2, allocator=allocator, budget=AMPLE)
    chainer_ooc.reset()


@pytest.fixture(autouse=True)
def deterministic():
    import chainer
    import cupy

    from support import pinning
    with (chainer.using_config('cudnn_deterministic', True), chainer.using_config('autotune', False),
          pinning.at_once()):  # else the few iterations of a test may be over before their memory is pinned
        yield
    chainer_ooc.reset(unpin=True)
    cupy.cuda.runtime.deviceSynchronize()


@pytest.fixture
def device_memory():
    """A function that gives the bytes of the device that are taken, by the driver's own word, after tidying up."""
    import gc

    if int(os.environ.get('PYTEST_XDIST_WORKER_COUNT', 1)) > 1:
        pytest.skip('looks at the memory of the whole card, where other tests run: run it without -n')
    import cupy

    def taken_bytes():
        gc.collect()
        cupy.get_default_memory_pool().free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()
        cupy.cuda.runtime.deviceSynchronize()
        free_bytes, total_bytes = cupy.cuda.runtime.memGetInfo()
        return total_bytes - free_bytes
    return taken_bytes
