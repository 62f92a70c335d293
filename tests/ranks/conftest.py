"""These tests start several ranks with mpiexec: `sh tests/ranks/run.sh`. Without --ranks only `ALONE` are collected."""
import pytest

#: What needs one process.
ALONE = ('test_agreement.py',)


def pytest_ignore_collect(collection_path, config):
    is_left_out = collection_path.suffix == '.py' and collection_path.name not in ALONE
    return True if is_left_out and not config.getoption('--ranks') else None


@pytest.fixture(scope='session', params=[2, pytest.param(4, marks=pytest.mark.long)])
def ranks(request):
    """How many ranks."""
    pytest.importorskip('mpi4py', reason='needs the extra mpi: pip install "chainer-ooc[mpi]"')
    return request.param
