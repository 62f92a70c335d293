"""What the tests of the CUDA device share; chainer_ooc comes before chainer."""

import pytest

import chainer_ooc  # noqa: F401  before the helpers, which import chainer
from chainer_ooc.backends.cuda import CudaBackend, regions


@pytest.fixture
def verdict_mixes(monkeypatch):
    """The policies that only tests have; see `verdict_mixes.py` of tests/support."""
    from chainer_ooc.classify import policies
    from support.trainings import verdict_mixes
    for name, policy in verdict_mixes.POLICIES.items():
        monkeypatch.setitem(policies.POLICIES, name, policy)


@pytest.fixture
def fake(request):
    """Makes backends on fakes; each must be used by the rules, and leave nothing once it is closed."""
    from support.fake_driver import FakeDriver

    made = []

    def make(seed=0, spill_dir=None, *, forgiven=(), driver=None, host_limit_bytes=1 << 30, **device):
        driver = FakeDriver(seed, **device) if driver is None else driver
        made.append((CudaBackend(spill_dir, host_limit_bytes=host_limit_bytes, driver=driver), driver, forgiven))
        return made[-1][0]

    make.driver_of = lambda backend: next(driver for each, driver, _ in made if each is backend)
    yield make
    for backend, driver, forgiven in made:
        backend.close()
        assert [each for each in driver.misuses if each not in forgiven] == []
        assert driver.left_behind() == []
    regions.give_back()
