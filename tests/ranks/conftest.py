"""These tests start several ranks with mpiexec: `sh tests/ranks/run.sh`. Without --ranks they are not collected."""
import pytest


def pytest_ignore_collect(config):
    return None if config.getoption('--ranks') else True


@pytest.fixture(scope='session', params=[2, 4])
def ranks(request):
    """How many ranks."""
    pytest.importorskip('mpi4py', reason='needs the extra mpi: pip install "chainer-ooc[mpi]"')
    return request.param
