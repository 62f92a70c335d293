"""The calls that fakes stand in for, as the installed wheels have them.

What is recorded here is what `CupyCalls` and `MappingCalls` rely on; the fakes are held to the same.
"""
import inspect
import re

import pytest

from chainer_ooc.backends.cuda.allocators.allocator import NoRoomError
from chainer_ooc.backends.cuda.allocators.calls import CupyCalls
from chainer_ooc.backends.cuda.allocators.mapping import MappingCalls
from support import fake_device_memory as fake

#: Arguments of each call, in order.
DRIVER = {
    'cuMemGetAllocationGranularity': ['prop', 'option'],
    'cuMemAddressReserve': ['size', 'alignment', 'addr', 'flags'],
    'cuMemAddressFree': ['ptr', 'size'],
    'cuMemCreate': ['size', 'prop', 'flags'],
    'cuMemRelease': ['handle'],
    'cuMemMap': ['ptr', 'size', 'offset', 'handle', 'flags'],
    'cuMemSetAccess': ['ptr', 'size', 'desc', 'count'],
    'cuMemUnmap': ['ptr', 'size'],
    'cuEventCreate': ['Flags'],
    'cuEventRecord': ['hEvent', 'hStream'],
    'cuEventSynchronize': ['hEvent'],
    'cuEventDestroy': ['hEvent'],
}

RUNTIME = {
    'getDevice': [],
    'deviceGetAttribute': ['attrib', 'device'],
    'deviceGetMemPool': ['device'],
    'memGetInfo': [],
    'memPoolTrimTo': ['pool', 'size'],
    'memPoolGetAttribute': ['pool', 'attr'],
    'memPoolSetAttribute': ['pool', 'attr', 'value'],
}

MEMORY = {
    'Memory': [],
    'ManagedMemory.prefetch': ['stream'],
    'MemoryPool.malloc': ['size'],
    'MemoryPool.used_bytes': [],
    'MemoryPool.free_bytes': [],
    'MemoryPool.total_bytes': [],
    'MemoryPool.free_all_blocks': [],
    'malloc_async': ['size'],
    'set_allocator': ['allocator'],
    'get_allocator': [],
}

HOOK = {
    'malloc_postprocess': ['device_id', 'size', 'mem_size', 'mem_ptr', 'pmem_id'],
    'free_postprocess': ['device_id', 'mem_size', 'mem_ptr', 'pmem_id'],
}


def _documented(function):
    """Argument names out of the first line of a compiled function's docstring, where its signature is."""
    inside = re.search(r'\((.*)\)', function.__doc__.splitlines()[0]).group(1)
    names = [re.split('[=:]', each)[0].split()[-1] for each in inside.split(',') if each.strip()]
    return [name for name in names if name not in ('self', '*')]


@pytest.fixture
def driver():
    return pytest.importorskip('cuda.bindings.driver', reason='cuda-bindings is not installed')


@pytest.fixture
def cupy():
    return pytest.importorskip('cupy', reason='CuPy is not installed')


@pytest.mark.parametrize('name', [*DRIVER])
def test_the_bindings_take_what_the_fake_takes(driver, name):
    # 12.x has no signature objects: there the docstring is the record.
    try:
        names = [*inspect.signature(getattr(driver, name)).parameters]
    except ValueError:
        names = _documented(getattr(driver, name))
    assert names == DRIVER[name]


@pytest.mark.parametrize('name', [*DRIVER])
def test_the_fake_takes_what_is_recorded(name):
    function = getattr(fake.FakeDriver(fake.FakeDevice(0)), name)
    assert [*inspect.signature(function).parameters] == DRIVER[name]


def test_the_bindings_have_the_names_of_the_fake(driver):
    assert driver.CUresult.CUDA_SUCCESS == 0
    assert driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY == 2
    assert int(driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE) == 1
    assert int(driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED) == 1
    assert int(driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE) == 3
    assert int(driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM) == 0
    assert driver.CUevent_flags.CU_EVENT_DISABLE_TIMING.value == 2


def test_the_structures_take_what_is_written_to_them(driver):
    mapping = MappingCalls(3, driver)
    properties, access = mapping._properties, mapping._access
    assert properties.type == driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    assert properties.location.type == access.location.type == driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    assert properties.location.id == access.location.id == 3
    assert access.flags == driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE


def test_a_refusal_of_the_real_bindings_is_named(driver, monkeypatch):
    mapping = MappingCalls(0, driver)

    def cuMemUnmap(ptr, size):  # noqa: N802 - the driver's name
        return (driver.CUresult.CUDA_ERROR_INVALID_VALUE,)

    monkeypatch.setattr(mapping, '_driver', _With(driver, cuMemUnmap))
    with pytest.raises(RuntimeError, match=r'cuMemUnmap of 2\.1 MB failed with CUDA_ERROR_INVALID_VALUE'):
        mapping.unmap(1 << 21, 2 << 20)


class _With:
    """A module with one function replaced."""

    def __init__(self, module, function):
        self._module = module
        setattr(self, function.__name__, function)

    def __getattr__(self, name):
        return getattr(self._module, name)


def test_numbers_serve_as_handles(driver):
    """Streams of CuPy are known by their addresses; the bindings turn a number into what they need."""
    assert int(driver.CUstream(2)) == 2
    assert int(driver.CUdeviceptr(1 << 40)) == 1 << 40


@pytest.mark.parametrize('name', [*RUNTIME])
def test_the_runtime_of_cupy_takes_what_is_recorded(cupy, name):
    assert _documented(getattr(cupy.cuda.runtime, name)) == RUNTIME[name]


@pytest.mark.parametrize('name', ['cudaDevAttrConcurrentManagedAccess', 'cudaDevAttrMemoryPoolsSupported',
                                  'cudaMemPoolAttrReleaseThreshold', 'cudaMemPoolAttrReservedMemCurrent',
                                  'cudaMemPoolAttrUsedMemCurrent'])
def test_the_runtime_of_cupy_has_the_numbers(cupy, name):
    assert isinstance(getattr(cupy.cuda.runtime, name), int)


@pytest.mark.parametrize('name', [*MEMORY])
def test_the_memory_of_cupy_takes_what_is_recorded(cupy, name):
    found = cupy.cuda.memory
    for part in name.split('.'):
        found = getattr(found, part)
    if isinstance(found, type):
        assert 'size (int)' in found.__doc__
    else:
        assert _documented(found)[:len(MEMORY[name])] == MEMORY[name]  # what newer ones take beside it has a default


@pytest.mark.parametrize('name', [*HOOK])
def test_the_hook_of_cupy_is_told_what_is_recorded(cupy, name):
    told = getattr(cupy.cuda.MemoryHook, name)
    assert [*inspect.signature(told).parameters][1:] in (HOOK[name], ['kwargs'])
    for argument in HOOK[name]:
        assert argument in told.__doc__


def test_only_a_refusal_of_memory_becomes_an_error_of_memory(cupy):
    calls = CupyCalls.__new__(CupyCalls)  # what __init__ asks the driver is not needed here
    calls._runtime = cupy.cuda.runtime

    def failing(status):
        def take(nbytes):
            raise cupy.cuda.runtime.CUDARuntimeError(status)
        return take

    with pytest.raises(NoRoomError, match=r'cudaMalloc of 2\.1 MB was refused'):
        calls._taken('cudaMalloc', 2 << 20, failing(2))
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match='cudaErrorInvalidValue'):
        calls._taken('cudaMalloc', 2 << 20, failing(1))


def test_cupys_names_that_the_calls_use_exist(cupy):
    for name in ('MemoryPool', 'get_current_stream', 'get_allocator', 'set_allocator', 'using_allocator'):
        assert callable(getattr(cupy.cuda, name))
    for name in ('Memory', 'ManagedMemory', 'MemoryPointer', 'UnownedMemory', 'malloc_async'):
        assert callable(getattr(cupy.cuda.memory, name))
    assert issubclass(cupy.cuda.runtime.CUDARuntimeError, RuntimeError)
    assert callable(cupy.get_default_memory_pool)
