"""Every name of CuPy's that `driver` uses, held to the installed wheel: 13 and 14; no GPU is needed.

The calls are compiled; what they take is in the first line of their docstrings.
"""
import pytest

from chainer_ooc.backends.cuda import preparations

cupy = pytest.importorskip('cupy', reason='CuPy is not installed')

#: As both versions have them.
SIGNATURES = {
    'getDevice': 'getDevice() -> int',
    'setDevice': 'setDevice(int device)',
    'getDeviceProperties': 'getDeviceProperties(int device)',
    'driverGetVersion': 'driverGetVersion() -> int',
    'runtimeGetVersion': 'runtimeGetVersion() -> int',
    'memGetInfo': 'memGetInfo()',
    'memcpyAsync': 'memcpyAsync(intptr_t dst, intptr_t src, size_t size, int kind, intptr_t stream)',
    'hostAlloc': 'hostAlloc(size_t size, unsigned int flags) -> intptr_t',
    'freeHost': 'freeHost(intptr_t ptr)',
    'hostRegister': 'hostRegister(intptr_t ptr, size_t size, unsigned int flags)',
    'hostUnregister': 'hostUnregister(intptr_t ptr)',
    'deviceGetAttribute': 'deviceGetAttribute(int attrib, int device) -> int',
    'eventQuery': 'eventQuery(intptr_t event)',
}
METHODS = {
    (cupy.cuda.Event, '__init__'): 'self, block=False, disable_timing=False, interprocess=False',
    (cupy.cuda.Event, 'synchronize'): 'self',
    (cupy.cuda.Stream, '__init__'): 'self, null=False, non_blocking=False',
    (cupy.cuda.Stream, 'record'): 'self, event=None',
    (cupy.cuda.Stream, 'wait_event'): 'self, event',
    (cupy.cuda.Stream, 'synchronize'): 'self',
}


def first_line(function):
    return (function.__doc__ or '').strip().split('\n')[0].split(':')[0]


@pytest.mark.parametrize('name', SIGNATURES)
def test_runtime_calls_take_what_they_are_given(name):
    assert first_line(getattr(cupy.cuda.runtime, name)) == SIGNATURES[name]


@pytest.mark.parametrize(('status', 'name'), [(2, 'cudaErrorMemoryAllocation'),
                                              (713, 'cudaErrorHostMemoryNotRegistered')])
def test_refusals_of_pinned_pages_are_known_by_their_numbers(status, name):
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match=name):
        cupy.cuda.runtime.check_status(status)


@pytest.mark.parametrize(('owner', 'name'), METHODS)
def test_methods_take_what_they_are_given(owner, name):
    parameters = first_line(getattr(owner, name)).split('(', 1)[1].rstrip(')')
    if name == '__init__':  # by name; those after it differ between versions
        parameters = parameters[:len(METHODS[owner, name])]
    assert parameters == METHODS[owner, name]


def test_functions_take_what_they_are_given():
    assert first_line(cupy.cuda.get_elapsed_time) == 'get_elapsed_time(start_event, end_event)'
    assert first_line(cupy.cuda.get_current_stream) == 'get_current_stream(int device_id=-1)'


def test_constants_are_cudas():
    runtime = cupy.cuda.runtime
    assert (runtime.memcpyHostToDevice, runtime.memcpyDeviceToHost, runtime.hostAllocPortable) == (1, 2, 1)
    assert runtime.cudaDevAttrCanUseHostPointerForRegisteredMem == 91


def test_a_status_is_raised_as_an_error_that_has_it():
    runtime = cupy.cuda.runtime
    assert runtime.check_status(0) is None
    with pytest.raises(RuntimeError, match='cudaErrorNotReady') as raised:
        runtime.check_status(600)
    assert type(raised.value) is runtime.CUDARuntimeError
    assert raised.value.status == 600


def test_kernels_that_cupy_compiles_are_counted(monkeypatch, tmp_path):
    """CuPy looks its compiler up when it needs it, so that ours stands before it."""
    compiled = []
    # It wants CUDA's headers first, which this machine need not have.
    monkeypatch.setattr('cuda.pathfinder.find_nvidia_header_directory', lambda library: str(tmp_path))
    monkeypatch.setattr(cupy.cuda.compiler, '_compile_module_with_cache', lambda *args, **kwargs: compiled.append(args))
    for _ in range(2):
        preparations.watch_compiler(cupy.cuda.compiler)
    before = preparations.total()
    cupy._core.core.compile_with_cache('extern "C" __global__ void nothing() {}', ())
    assert len(compiled) == 1
    assert preparations.total() == before + 1


def test_memory_that_is_refused_is_an_error_that_the_backend_knows():
    assert issubclass(cupy.cuda.memory.OutOfMemoryError, MemoryError)
    assert issubclass(cupy.cuda.runtime.CUDARuntimeError, RuntimeError)
    assert issubclass(cupy.cuda.driver.CUDADriverError, RuntimeError)


def test_a_machine_without_a_driver_is_told_when_the_backend_is_made():
    from chainer_ooc.backends.cuda import CudaBackend

    try:
        cupy.cuda.runtime.getDeviceCount()
    except RuntimeError:
        with pytest.raises(RuntimeError, match='cudaError'):
            CudaBackend()
    else:
        pytest.skip('there is a GPU')
