"""The device that rows run on: what is used of its memory, when its work is done, how fast its link is.

`Cuda` asks the driver itself (cudaMemGetInfo), not an allocator, so that what the budget is held against is what
anybody else on the card would see. `Host` has the same for the process's own memory, so that the programme can be tried
without a GPU. Left out: cards beside the first one, and other processes on the card, whose memory counts as ours.
"""
from __future__ import annotations

import contextlib
import gc
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import evidence
import here  # noqa: F401  chainer_ooc before chainer, and the examples on the path

# isort: split
import chainer
import numpy as np

from chainer_ooc.backends.host import limits

REPETITIONS = 5
CHUNKS = 64
SAMPLE_SECONDS = 0.0005
#: Of the host's free memory, what is pinned at once for a figure.
PINNED_SHARE = 0.9


class SkippedError(Exception):
    """A row that has no sense on this machine."""

    outcome = 'skipped'


class Host:
    """Memory of this process; copies are those of NumPy."""

    name = 'host'
    array_module = np

    def describe(self) -> dict[str, Any]:
        """What figures depend on."""
        from surroundings import describe_machine

        machine = describe_machine()
        return {'device': f"host ({machine['cpu']})", 'is_gpu': False, **machine}

    def synchronize(self) -> None:
        """Waits for nothing: NumPy is done when it returns."""

    def used_bytes(self) -> int:
        """Private memory in use."""
        with open('/proc/self/status') as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith('RssAnon'))

    def held_bytes(self) -> int:
        """What is used: nothing else is told apart here."""
        return self.used_bytes()

    def pin(self, nbytes: int, ask_first: bool) -> dict[str, Any]:
        """Nothing is pinned without a GPU.

        Raises:
            SkippedError: always.
        """
        raise SkippedError('nothing is pinned on a machine without a GPU')

    def chunks(self, nbytes: int) -> dict[str, Any]:
        """No addresses are mapped without a GPU.

        Raises:
            SkippedError: always.
        """
        raise SkippedError('no memory is mapped on a machine without a GPU')

    def chainer_device(self) -> Any:
        """What models are sent to."""
        return chainer.get_device('@numpy')

    def trim(self) -> None:
        """Gives back what nobody refers to."""
        gc.collect()

    def link(self, nbytes: int) -> dict[str, Any]:
        """Bytes per second of NumPy's own copy; both directions at once are a GPU's matter."""
        source, target = np.zeros(nbytes, np.uint8), np.ones(nbytes, np.uint8)
        seconds = min(_timed(lambda: np.copyto(target, source)) for _ in range(REPETITIONS))
        return {'out_bytes_per_second': nbytes / seconds, 'in_bytes_per_second': nbytes / seconds}

    def backend_bandwidth(self) -> Any:
        """What the backend itself measures, through the path that swaps use."""
        from chainer_ooc.backends.host.backend import HostBackend

        with contextlib.closing(HostBackend()) as backend:
            return backend.bandwidth()


class Cuda:
    """The first GPU, through CuPy."""

    name = 'cuda'

    def __init__(self) -> None:
        import cupy

        self.array_module = self._cupy = cupy
        self._runtime = cupy.cuda.runtime
        cupy.cuda.Device(0).use()

    def describe(self) -> dict[str, Any]:
        """What figures depend on; the name is the driver's."""
        import importlib.metadata
        import os

        from surroundings import describe_machine

        properties = self._runtime.getDeviceProperties(0)
        name = properties['name']
        free_bytes, total_bytes = self._runtime.memGetInfo()
        versions = {}
        for package in ('cupy-cuda12x', 'cupy-cuda13x', 'nvidia-cudnn-frontend', 'nvidia-cudnn-cu12',
                        'nvidia-cudnn-cu13', 'cuda-bindings', 'torch'):
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                versions[package] = importlib.metadata.version(package)
        # 'memory_bytes' of describe_machine is the host's.
        return {
            **describe_machine(), 'device': name if isinstance(name, str) else name.decode(), 'is_gpu': True,
            'compute_capability': f"{properties['major']}.{properties['minor']}",
            'device_memory_bytes': total_bytes, 'driver': self._runtime.driverGetVersion(),
            'runtime': self._runtime.runtimeGetVersion(), 'cudnn': _cudnn_version(),
            'cudnn_enabled': bool(chainer.backends.cuda.cudnn_enabled), 'device_free_bytes': free_bytes,
            **{f'smi {name}': value for name, value in evidence.smi().items()},
            **{f'host {name}': value for name, value in evidence.host_memory().items()},
            'cupy_tf32': os.environ.get('CUPY_TF32', '0'),
            'use_cudnn_tensor_core': str(chainer.config.use_cudnn_tensor_core), **versions}

    def synchronize(self) -> None:
        """Waits for all streams."""
        self._runtime.deviceSynchronize()

    def used_bytes(self) -> int:
        """What the driver says is taken, contexts and libraries included."""
        free_bytes, total_bytes = self._runtime.memGetInfo()
        return int(total_bytes - free_bytes)

    def held_bytes(self) -> int:
        """What allocators have of it, cached memory included: arrays, and what arrays have left."""
        from chainer_ooc.backends.cuda import budget

        ours = sum(each.held_bytes() for each in budget._budgets.values())
        return ours + int(self._cupy.get_default_memory_pool().total_bytes())

    def seconds_of(self, call: Callable[[], object]) -> float:
        """Seconds that the device takes for what a call queues, on average, after a first one."""
        began, over = self._cupy.cuda.Event(), self._cupy.cuda.Event()
        call()
        began.record()
        for _ in range(REPETITIONS):
            call()
        over.record()
        over.synchronize()
        return max(float(self._cupy.cuda.get_elapsed_time(began, over)) / 1000 / REPETITIONS, 1e-9)

    def pin(self, nbytes: int, ask_first: bool) -> dict[str, Any]:
        """Seconds to pin so many bytes at once as the package does, and to give them back; beside it, by `hostAlloc`.

        Args:
            nbytes: how many.
            ask_first: whether the host's word on what is free counts. A machine that grows as it is used has more.

        Raises:
            SkippedError: the machine has no room for them.
        """
        free_bytes = limits.free_bytes()
        if ask_first and nbytes > PINNED_SHARE * free_bytes:
            raise SkippedError(f'{nbytes / 1e9:.0f} GB are more than {PINNED_SHARE:.0%} of the {free_bytes / 1e9:.0f} '
                               'GB that the host says are free')
        from chainer_ooc.backends.cuda import pages

        runtime, host = self._runtime, pages.of(self._runtime)
        began = time.perf_counter()
        address = host.pin(nbytes)
        pinned = time.perf_counter()
        registered = address in pages._MAPPED
        host.unpin(address)
        unpinned = time.perf_counter()
        address = runtime.hostAlloc(nbytes, runtime.hostAllocPortable)
        allocated = time.perf_counter()
        runtime.freeHost(address)
        return {'pin_seconds': pinned - began, 'unpin_seconds': unpinned - pinned,
                'pin_bytes_per_second': nbytes / max(pinned - began, 1e-9), 'registered': registered,
                'pin_threads': pages.threads(), 'alloc_seconds': allocated - unpinned,
                'free_seconds': time.perf_counter() - allocated,
                'alloc_bytes_per_second': nbytes / max(allocated - unpinned, 1e-9)}

    def chunks(self, nbytes: int) -> dict[str, Any]:
        """Seconds of the driver's calls for one chunk of so many bytes, which are what the allocator 'virtual' costs.

        Medians over 64 chunks, each call with all of them in turn; *together* is a chunk's part of one call for all.
        """
        from chainer_ooc.backends.cuda.allocators.mapping import MappingCalls

        calls = MappingCalls(0)
        address, size = calls.reserve(CHUNKS * nbytes), CHUNKS * nbytes
        places = [address + number * nbytes for number in range(CHUNKS)]
        handles: list[Any] = []
        self.synchronize()
        found = {'create_seconds': _median(lambda _: handles.append(calls.create(nbytes)), places)}
        pairs = [*zip(places, handles, strict=True)]
        found['map_seconds'] = _median(lambda pair: calls.map(pair[0], nbytes, pair[1]), pairs)
        found['allow_seconds'] = _median(lambda place: calls.allow(place, nbytes), places)
        found['unmap_seconds'] = _median(lambda place: calls.unmap(place, nbytes), places)
        for place, handle in pairs:
            calls.map(place, nbytes, handle)
        found['allow_together_seconds'] = _timed(lambda: calls.allow(address, size)) / CHUNKS
        found['unmap_together_seconds'] = _timed(lambda: calls.unmap(address, size)) / CHUNKS
        found['release_seconds'] = _median(lambda handle: calls.release(handle, nbytes), handles)
        calls.free_addresses(address, size)
        return found

    def chainer_device(self) -> Any:
        """What models are sent to."""
        return chainer.get_device('@cupy:0')

    def trim(self) -> None:
        """Gives back what nobody refers to, and what CuPy's pools keep."""
        gc.collect()
        self.synchronize()
        self._cupy.get_default_memory_pool().free_all_blocks()
        self._cupy.get_default_pinned_memory_pool().free_all_blocks()

    def link(self, nbytes: int) -> dict[str, Any]:
        """Bytes per second between the device and exact pinned memory, each way alone and both ways at once."""
        runtime, cupy = self._runtime, self._cupy
        streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
        device = [cupy.empty(nbytes, np.uint8) for _ in range(2)]
        pinned: list[int] = []
        try:
            for _ in range(2):
                pinned.append(runtime.hostAlloc(nbytes, runtime.hostAllocPortable))

            def out() -> None:
                runtime.memcpyAsync(pinned[0], device[0].data.ptr, nbytes, runtime.memcpyDeviceToHost, streams[0].ptr)

            def back() -> None:
                runtime.memcpyAsync(device[1].data.ptr, pinned[1], nbytes, runtime.memcpyHostToDevice, streams[1].ptr)

            found = {
                'out_bytes_per_second': nbytes / self._fastest(out),
                'in_bytes_per_second': nbytes / self._fastest(back),
                'both_bytes_per_second': 2 * nbytes / self._fastest(lambda: (out(), back()))}
        finally:
            self.synchronize()
            for address in pinned:
                runtime.freeHost(address)
        return found

    def backend_bandwidth(self) -> Any:
        """What the backend itself measures, through the path that swaps use."""
        from chainer_ooc.backends.cuda import CudaBackend

        with contextlib.closing(CudaBackend()) as backend:
            return backend.bandwidth()

    def _fastest(self, start: Callable[[], object]) -> float:
        def whole() -> None:
            start()
            self.synchronize()

        whole()  # the first copy of a buffer maps it
        return min(_timed(whole) for _ in range(REPETITIONS))


def of(name: str) -> Host | Cuda:
    """The device of a name, 'host' or 'cuda'."""
    return {'host': Host, 'cuda': Cuda}[name]()


@contextlib.contextmanager
def highest(device: Host | Cuda) -> Iterator[list[int]]:
    """Watches the device's memory from a thread meanwhile; the list's only element is the highest that was seen.

    Asking the driver takes a lock that computations want too, so no time is taken meanwhile.
    """
    seen, over = [device.used_bytes()], threading.Event()

    def watch() -> None:
        while not over.wait(SAMPLE_SECONDS):
            seen[0] = max(seen[0], device.used_bytes())

    thread = threading.Thread(target=watch, name='memory watch', daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
        seen[0] = max(seen[0], device.used_bytes())


def _cudnn_version() -> str:
    """Of the library that is found here, or why none is."""
    from chainer_ooc.kernels.cudnn import library

    try:
        return str(library.find().backend_version())
    except Exception as error:  # whatever a broken installation raises
        return f'{type(error).__name__}: {error}'


def _median(call: Callable[[Any], object], arguments: Sequence[Any]) -> float:
    return statistics.median(_timed(lambda argument=argument: call(argument)) for argument in arguments)


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return max(time.perf_counter() - began, 1e-9)
