"""What the fake driver takes, and the CUDA calls that the real one makes, on a stand-in for CuPy's runtime."""
import contextlib
import inspect

import numpy as np
import pytest

from chainer_ooc.backends.cuda import pages
from chainer_ooc.backends.cuda.allocators.ledger import Owner
from chainer_ooc.backends.cuda.budget import AllocatorBudget
from chainer_ooc.backends.cuda.driver import Driver
from chainer_ooc.backends.cuda.pinned import host_view
from support.fake_driver import FakeBudget, FakeDriver


def methods(kind):
    return {name: each for name, each in vars(kind).items() if inspect.isfunction(each) and name[0] != '_'}


def parameters(function):
    return [(each.name, each.default) for each in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize('name', methods(Driver))
def test_the_fake_takes_what_a_driver_takes(name):
    assert parameters(getattr(FakeDriver, name)) == parameters(methods(Driver)[name])


@pytest.mark.parametrize('name', [each for each in methods(FakeBudget) if each != 'check_room'])
def test_the_fake_budget_takes_what_a_budget_takes(name):
    assert parameters(getattr(FakeBudget, name)) == parameters(getattr(AllocatorBudget, name))


# CuPy


@pytest.fixture
def cupy():
    return pytest.importorskip('cupy', reason='CuPy is not installed')


class Runtime:
    """CuPy's runtime, whose calls are noted and do nothing."""

    def __init__(self, real):
        self.real, self.calls, self.results = real, [], {}

    def __getattr__(self, name):
        found = getattr(self.real, name)
        if name == 'check_status' or not callable(found) or isinstance(found, type):
            return found

        def call(*args):
            self.calls.append((name, *args))
            return self.results.get(name)
        return call


class Handle:
    """A stream or an event."""

    def __init__(self, runtime, ptr, **options):
        self.runtime, self.ptr, self.options = runtime, ptr, options

    def record(self, event):
        self.runtime.calls.append(('record', self.ptr, event.ptr))

    def wait_event(self, event):
        self.runtime.calls.append(('wait_event', self.ptr, event.ptr))

    def synchronize(self):
        self.runtime.calls.append(('synchronize', self.ptr))


@pytest.fixture
def runtime(cupy, monkeypatch):
    stand_in = Runtime(cupy.cuda.runtime)
    stand_in.results['getDevice'] = 3
    monkeypatch.setattr(cupy.cuda, 'runtime', stand_in)
    monkeypatch.setattr(cupy.cuda, 'Event', lambda **options: Handle(stand_in, 7, **options))
    return stand_in


@pytest.fixture
def driver(runtime):
    made = Driver()
    runtime.calls.clear()
    return made


def test_a_driver_has_the_kernels_counted_that_cupy_compiles(cupy, runtime, monkeypatch):
    from chainer_ooc.backends.cuda import preparations

    watched = []
    monkeypatch.setattr(preparations, 'watch_compiler', watched.append)
    Driver()
    assert watched == [cupy.cuda.compiler]


def test_what_a_driver_has_pinned_serves_the_next_one(driver, runtime):
    assert type(driver)().host is driver.host is pages.of(runtime)


def test_a_copy_names_its_ends_its_way_and_its_stream(driver, runtime):
    stream = Handle(runtime, 5)
    driver.copy_out(1000, 2000, 64, stream)
    driver.copy_in(2000, 1000, 64, stream)
    assert runtime.calls == [('memcpyAsync', 1000, 2000, 64, 2, 5), ('memcpyAsync', 2000, 1000, 64, 1, 5)]


def test_pinned_memory_is_portable_and_of_the_size_asked_for(driver, runtime):
    runtime.results['hostAlloc'] = 4096
    assert driver.pin(1001) == 4096
    driver.unpin(4096)
    assert runtime.calls == [('hostAlloc', 1001, 1), ('freeHost', 4096)]


def test_a_large_region_is_registered(driver, runtime):
    runtime.results |= {'deviceGetAttribute': 1, 'hostAlloc': 0}
    address = driver.pin(4 << 20)
    driver.unpin(address)
    assert runtime.calls == [('getDevice',), ('deviceGetAttribute', 91, 3), ('hostRegister', address, 4 << 20, 1),
                             ('hostUnregister', address)]


@pytest.mark.parametrize('timed', [False, True])
def test_an_event_is_made_and_recorded_at_once(driver, runtime, timed):
    event = driver.record(Handle(runtime, 5), timed=timed)
    assert event.options == {'block': True, 'disable_timing': not timed}
    assert runtime.calls == [('record', 5, 7)]


def test_waits_are_put_on_the_stream_that_waits(driver, runtime):
    stream, event = Handle(runtime, 5), Handle(runtime, 7)
    driver.wait_event(stream, event)
    driver.synchronize(event)
    driver.finish(stream)
    assert runtime.calls == [('wait_event', 5, 7), ('synchronize', 7), ('synchronize', 5)]


@pytest.mark.parametrize(('status', 'passed'), [(0, True), (600, False)])
def test_an_event_has_passed_or_not_yet(driver, runtime, status, passed):
    runtime.results['eventQuery'] = status
    assert driver.passed(Handle(runtime, 7)) is passed
    assert runtime.calls == [('eventQuery', 7)]


def test_an_error_of_the_device_is_not_taken_for_not_yet(driver, runtime):
    runtime.results['eventQuery'] = 700
    with pytest.raises(RuntimeError, match='cudaErrorIllegalAddress'):
        driver.passed(Handle(runtime, 7))


def test_not_yet_is_cleared_from_the_thread(driver, runtime, monkeypatch):
    """`check_status` asks CUDA for its last error, which clears it; see `driver`."""
    asked = []
    check = runtime.real.check_status
    monkeypatch.setattr(runtime, 'check_status', lambda status: asked.append(status) or check(status), raising=False)
    runtime.results['eventQuery'] = 600
    assert not driver.passed(Handle(runtime, 7))
    assert asked == [600]


def test_blocks_of_this_device_are_its_own(driver):
    owners = [Owner(4096, 8, number, 512) for number in (3, 0)]
    assert [driver.manages(root) for root in [*owners, np.zeros(8)]] == [True, False, False]


def test_threads_are_put_on_the_device(driver, runtime):
    driver.use()
    assert runtime.calls == [('setDevice', 3)]


def test_a_thread_works_on_the_device_for_a_while(driver, runtime):
    runtime.results['getDevice'] = 0
    with contextlib.suppress(ZeroDivisionError), driver.on_this_device():
        assert runtime.calls[-1] == ('setDevice', 3)
        1 / 0  # noqa: B018
    assert runtime.calls[-1] == ('setDevice', 0)


def test_facts_are_those_of_the_device(driver, runtime):
    runtime.results |= {
        'getDeviceProperties': {'name': b'Some GPU', 'totalGlobalMem': 1 << 34, 'major': 9, 'minor': 0},
        'driverGetVersion': 13020, 'runtimeGetVersion': 12090, 'memGetInfo': (100, 1 << 34)}
    facts = driver.facts()
    assert (facts.name, facts.number, facts.total_bytes, facts.compute_capability) == ('Some GPU', 3, 1 << 34, '9.0')
    assert (facts.driver_version, facts.runtime_version) == ('13.2', '12.9')
    assert driver.free_bytes() == 100


# Arrays of CuPy's


class CupyArrays(FakeDriver):
    """Gives arrays of CuPy's whose memory is the host's."""

    def empty(self, nbytes):
        import cupy

        host = super().empty(max(nbytes, 1))
        memory = cupy.cuda.memory.UnownedMemory(host.ctypes.data, host.nbytes, host, 0)
        return cupy.ndarray((nbytes,), np.uint8, cupy.cuda.memory.MemoryPointer(memory, 0))

    def address(self, array):
        return Driver.address(self, array)


def content(array):
    """The bytes of an array of `CupyArrays`, to read and to write."""
    return np.frombuffer(host_view(array.data.ptr, array.nbytes), np.uint8)


@pytest.mark.parametrize('host_limit_bytes', [1 << 20, 0])
@pytest.mark.parametrize('nbytes', [0, 1, 5000])
def test_an_array_of_cupys_comes_back_as_it_went(cupy, fake, nbytes, host_limit_bytes):
    backend = fake(driver=CupyArrays(), host_limit_bytes=host_limit_bytes)
    array = backend.allocate(nbytes)
    assert array.base is None
    content(array)[:] = np.arange(nbytes) % 251
    copy, out = backend.swap_out(array)
    out.wait()
    into = backend.allocate(nbytes)
    backend.swap_in(copy, into).wait()
    assert into.data.ptr != array.data.ptr
    assert np.array_equal(content(into), content(array))


def test_a_view_of_an_array_of_cupys_is_copied_from_where_it_begins(cupy, fake):
    backend = fake(driver=CupyArrays())
    array = backend.allocate(100)
    content(array)[:] = np.arange(100)
    copy, out = backend.swap_out(array[40:60])
    out.wait()
    into = backend.allocate(20)
    backend.swap_in(copy, into).wait()
    assert content(into).tolist() == list(range(40, 60))


def test_other_arrays_of_cupys_are_refused(cupy, fake):
    backend = fake(driver=CupyArrays())
    array = backend.allocate(100)
    with pytest.raises(ValueError, match='C-contiguous'):
        backend.swap_out(array[::2])
    with pytest.raises(ValueError, match='uint8'):
        backend.swap_out(array.view(np.float32))
