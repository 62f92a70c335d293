"""Every line that calls CuPy for memory runs once, against a module that has what the calls use and nothing else.

That the installed CuPy has the same is checked in `test_memory_signatures`.
"""
import sys
from types import SimpleNamespace

import pytest

from chainer_ooc.backends.cuda import budget as budget_module
from chainer_ooc.backends.cuda.allocators.allocator import NoRoomError, UnavailableError
from chainer_ooc.backends.cuda.allocators.calls import CupyCalls
from chainer_ooc.backends.cuda.allocators.mapping import MappingCalls
from support import fake_device_memory as fake

MIB = fake.MIB


class CudaRuntimeError(RuntimeError):
    def __init__(self, status):
        super().__init__(status)
        self.status = status


class Runtime:
    """`cupy.cuda.runtime`, of a device with a stream-ordered pool."""

    CUDARuntimeError = CudaRuntimeError
    cudaDevAttrConcurrentManagedAccess = 89  # noqa: N815 - CUDA's name
    cudaDevAttrMemoryPoolsSupported = 115  # noqa: N815 - CUDA's name
    cudaMemPoolAttrReleaseThreshold = 4  # noqa: N815 - CUDA's name
    cudaMemPoolAttrReservedMemCurrent = 5  # noqa: N815 - CUDA's name
    cudaMemPoolAttrUsedMemCurrent = 7  # noqa: N815 - CUDA's name

    def __init__(self, device):
        self.device = device
        self.attributes = {89: 1, 115: 1}
        self.of_pool = {4: 5000, 5: 64 * MIB, 7: 30 * MIB}
        self.asked = []

    def getDevice(self):  # noqa: N802 - CuPy's name
        return 2

    def deviceGetAttribute(self, attrib, device):  # noqa: N802 - CuPy's name
        assert device == 2
        return self.attributes[attrib]

    def deviceGetMemPool(self, device):  # noqa: N802 - CuPy's name
        return 77

    def memGetInfo(self):  # noqa: N802 - CuPy's name
        self.asked.append('memGetInfo')
        return self.device.capacity_bytes - self.device.taken_bytes, self.device.capacity_bytes

    def memPoolGetAttribute(self, pool, attr):  # noqa: N802 - CuPy's name
        assert pool == 77
        return self.of_pool[attr]

    def memPoolSetAttribute(self, pool, attr, value):  # noqa: N802 - CuPy's name
        assert pool == 77
        self.of_pool[attr] = value

    def memPoolTrimTo(self, pool, size):  # noqa: N802 - CuPy's name
        self.asked.append(('memPoolTrimTo', pool, size))


class Stream:
    ptr = 0
    synchronized = 0

    def synchronize(self):
        self.synchronized += 1


class Memory(fake.FakeMemory):
    """`cupy.cuda.Memory` and, with a prefetch, `ManagedMemory`."""

    def __init__(self, size):
        try:
            super().__init__(Memory.device, size)
        except NoRoomError:
            raise CudaRuntimeError(2) from None

    def prefetch(self, stream):
        Memory.prefetched.append((stream, self.size))


@pytest.fixture
def cupy(monkeypatch):
    device, stream = fake.FakeDevice(100 * MIB), Stream()
    Memory.device, Memory.prefetched = device, []
    fakes = fake.FakeCalls(device)
    memory = SimpleNamespace(
        Memory=Memory, ManagedMemory=Memory, MemoryPointer=lambda mem, offset: fake.FakePointer(mem),
        UnownedMemory=lambda ptr, size, owner, device_id: fake.Unowned(ptr, size, owner),
        malloc_async=lambda size: fake.FakePointer(Memory(size)))
    cuda = SimpleNamespace(
        memory=memory, runtime=Runtime(device), MemoryPool=fakes.pool, get_current_stream=lambda: stream,
        get_allocator=fakes.current_allocator, set_allocator=fakes.set_allocator)
    module = SimpleNamespace(cuda=cuda, get_default_memory_pool=lambda: fakes.default_pool, stream=stream, fakes=fakes)
    monkeypatch.setitem(sys.modules, 'cupy', module)
    return module


def test_memory_is_taken_and_refused(cupy):
    calls = CupyCalls()
    assert calls.device_id == 2
    for take in (calls.device_memory, calls.stream_ordered_memory, calls.managed_memory):
        kept = take(60 * MIB)
        assert calls.free_bytes() == 40 * MIB
        with pytest.raises(NoRoomError, match=r'of 62\.9 MB was refused by the device'):
            take(60 * MIB)
        del kept
    assert Memory.prefetched == [(cupy.stream, 60 * MIB)]


def test_managed_memory_is_not_prefetched_where_that_cannot_be(cupy):
    cupy.cuda.runtime.attributes[89] = 0
    CupyCalls().managed_memory(MIB)
    assert not Memory.prefetched


def test_a_thread_gets_a_context_once(cupy):
    calls = CupyCalls()
    cupy.cuda.runtime.asked.clear()
    assert calls.stream() is calls.stream() is cupy.stream
    assert cupy.cuda.runtime.asked == ['memGetInfo']


def test_the_drivers_pool_keeps_what_is_freed_until_it_is_restored(cupy):
    runtime, pool = cupy.cuda.runtime, CupyCalls().stream_ordered_pool()
    assert (pool.used_bytes(), pool.held_bytes()) == (30 * MIB, 64 * MIB)
    pool.keep_freed()
    pool.keep_freed()
    assert runtime.of_pool[4] == 2**64 - 1
    pool.trim(MIB)
    assert runtime.asked[-1] == ('memPoolTrimTo', 77, MIB)
    assert cupy.stream.synchronized == 1
    pool.restore()
    assert runtime.of_pool[4] == 5000
    runtime.of_pool[4] = 6000
    pool.restore()
    assert runtime.of_pool[4] == 6000


def test_a_device_without_such_a_pool_has_cupys(cupy, monkeypatch, caplog):
    monkeypatch.setattr(budget_module, '_budgets', {})
    cupy.cuda.runtime.attributes[115] = 0
    with pytest.raises(UnavailableError, match='cudaMallocAsync'):
        CupyCalls().stream_ordered_pool()
    with caplog.at_level('WARNING', 'chainer_ooc'):
        budget = budget_module.budget_of('async')
        assert budget_module.budget_of('async') is budget is budget_module.budget_of('pool')
    assert caplog.text.count("ooc_allocator 'pool' is used") == 1
    assert budget.name == 'pool'  # in what `doctor` shows
    with fake.installed_budget(budget):
        array = cupy.fakes.allocator(4 * MIB)
        assert budget_module.budget_of('unified').outside_bytes() == array.mem.size


def test_there_is_one_budget_for_each_allocator(cupy, monkeypatch):
    monkeypatch.setattr(budget_module, '_budgets', {})
    pool, managed = budget_module.budget_of('pool'), budget_module.budget_of('unified')
    assert budget_module.budget_of('pool') is pool is not managed
    parameters = cupy.fakes.allocator(3 * MIB)
    pool.limit_bytes = 20 * MIB
    with fake.installed_budget(pool):
        array = cupy.fakes.allocator(4 * MIB)
        assert pool.used_bytes() == array.mem.size
        assert managed.outside_bytes() == parameters.mem.size + array.mem.size
        assert sum(each.held_bytes() for each in budget_module._budgets.values()) == array.mem.size
    assert pool.free_bytes() == 13 * MIB
    del array
    pool.close()
    managed.close()
    assert cupy.fakes.device.taken_bytes == 3 * MIB


def test_virtual_addresses_without_the_bindings_name_the_remedy_and_another_is_used(cupy, monkeypatch, caplog):
    monkeypatch.setattr(budget_module, '_budgets', {})
    monkeypatch.setitem(sys.modules, 'cuda.bindings', None)
    with caplog.at_level('WARNING', 'chainer_ooc'):
        assert budget_module.budget_of('virtual') is budget_module.budget_of('async')
    assert 'needs cuda-bindings 12.6' in caplog.text
    assert "ooc_allocator 'async' is used" in caplog.text


def test_a_device_whose_memory_cannot_be_mapped_is_named():
    driver = fake.FakeDriver(fake.FakeDevice(MIB))
    driver.failing['cuMemGetAllocationGranularity'] = fake.FakeResult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(UnavailableError, match='needs a device whose memory can be mapped: cuMemGetAllocationGran'):
        MappingCalls(0, driver).granularity_bytes()
