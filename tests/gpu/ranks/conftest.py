"""Starts one rank for each GPU, with mpiexec; tests are skipped for what is missing for that."""
import importlib.util

import pytest

from support.ranks.launch import mpiexec


def missing(ranks):
    """Why so many ranks cannot have a GPU each with NCCL between them, or None."""
    if importlib.util.find_spec('mpi4py') is None or mpiexec() is None:
        return 'needs the extra mpi: pip install "chainer-ooc[mpi]"'
    from chainermn import nccl

    if not nccl._available:
        return 'needs NCCL: pip install nvidia-nccl-cu13, or -cu12'
    import cupy

    found = cupy.cuda.runtime.getDeviceCount()
    return None if found >= ranks else f'needs {ranks} GPUs, and there is {found}'


@pytest.fixture(scope='session', params=[1, 2])
def ranks(request):
    """How many ranks, each with a GPU of its own; one shows that NCCL and its buffers are no trouble by themselves."""
    reason = missing(request.param)
    if reason:
        pytest.skip(reason)
    return request.param
