"""CuPy's own arrays over host memory: no device is needed to make them, to take views of them and to let them go.

What needs a device are kernels. `apply` computes with NumPy where an array lies instead, so that functions of a test's
own run on such arrays, and with them a whole training under the CUDA backend. `Device` is `fake_driver.FakeDriver` for
them: its copies are as late as CUDA's may be.
"""
import ctypes
import weakref

import numpy as np

from chainer_ooc.backends import arrays
from chainer_ooc.backends.cuda.allocators.allocator import Allocator, NoRoomError
from chainer_ooc.backends.cuda.allocators.calls import CupyCalls
from chainer_ooc.backends.cuda.allocators.ledger import Guest, Owner
from chainer_ooc.backends.cuda.budget import AllocatorBudget
from support.chaos.memory import POISON
from support.fake_device_memory import FakeCalls, FakeDevice, allocator_of
from support.fake_driver import FakeDriver, Range


class HostMemory:
    """Memory that looks like the device's to whoever only asks for its address."""

    def __init__(self, allocator, nbytes):
        self._array = np.full(nbytes, POISON, np.uint8)
        self._allocator = allocator
        self.ptr, self.size, self.device_id = self._array.ctypes.data, nbytes, 0
        allocator.live_bytes += nbytes

    def __del__(self):
        self._allocator.live_bytes -= self.size


class HostAllocator(Allocator):
    """Gives host memory, full of poison, and keeps nothing."""

    name = 'host'

    def __init__(self):
        super().__init__(0)
        self.live_bytes, self.trims = 0, 0

    def _malloc(self, nbytes):
        size_bytes = -(-nbytes // 512) * 512
        if self.limit_bytes is not None and self.live_bytes + size_bytes > self.limit_bytes:
            raise NoRoomError(f'{size_bytes} bytes beside {self.live_bytes} of {self.limit_bytes}')
        return self._given(HostMemory(self, size_bytes), nbytes)

    def held_bytes(self):
        return self.live_bytes

    def trim(self, keep_bytes):
        self.trims += 1


class HostCalls(CupyCalls):
    """CuPy's calls, but for those that ask a device.

    Attributes:
        older_bytes: what CuPy's own pool has taken, as a test says.
    """

    older_bytes = 0

    def __init__(self, cupy):  # what the original asks the driver is not needed here
        self._cuda, self._memory, self.device_id = cupy.cuda, cupy.cuda.memory, 0

    def outside_bytes(self):
        return self.older_bytes

    def trim_outside(self):
        pass

    def is_current(self):
        return True

    def free_bytes(self):
        return 1 << 36


class PiecesAllocator(HostAllocator):
    """As the host's, and refuses what the allocator 'virtual' would: it keeps book of chunks that nobody touches."""

    def __init__(self):
        super().__init__()
        self._pieces = allocator_of('virtual', FakeCalls(FakeDevice(1 << 40)))

    def _malloc(self, nbytes):
        self._pieces.limit_bytes = self.limit_bytes
        piece = self._pieces.malloc(nbytes)
        memory = HostMemory(self, -(-nbytes // 512) * 512)
        memory.piece = piece  # ends with it
        return self._given(memory, nbytes)

    def held_bytes(self):
        return self._pieces.held_bytes()

    def lost_bytes(self, limit_bytes):
        return self._pieces.lost_bytes(limit_bytes)

    def trim(self, keep_bytes):
        self._pieces.trim(keep_bytes)


def outside(cupy):
    """An allocator as CuPy's own: its memory is none of a budget's."""
    def allocate(nbytes):
        memory = np.full(max(nbytes, 1), POISON, np.uint8)
        return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(memory.ctypes.data, memory.nbytes, memory, 0), 0)

    return allocate


def budget(cupy):
    """A budget whose memory is the host's."""
    return AllocatorBudget(HostAllocator(), HostCalls(cupy))


class Device(FakeDriver):
    """A fake device whose arrays are CuPy's."""

    def __init__(self, cupy, seed=0, **options):
        super().__init__(seed, **options)
        self._cupy = cupy
        self.real_budget = budget(cupy)

    def budget(self, allocator):
        return self.real_budget

    def empty(self, nbytes):
        array = self._cupy.empty((nbytes,), np.uint8)
        with self.lock:
            self._know(arrays.root_of(array), self._now())
        return array

    def address(self, array):
        with self.lock:
            owner = arrays.root_of(array)
            if not any(found.owner() is owner for found in self._near):
                self._know(owner, 0)  # a function's own: compute has had it for some time
            return array.data.ptr

    def _know(self, owner, since):
        self._near.append(Range(owner.pointer, owner.nbytes, weakref.ref(owner), since))

    def show(self, address, nbytes, gone):
        return arrays.flat_bytes(Guest(address, nbytes, 0, gone))

    def manages(self, root):
        return isinstance(root, Owner)


def seen(array):
    """What a CuPy array holds, as an array of NumPy over the same memory."""
    memory = array.data.mem
    block = (ctypes.c_uint8 * memory.size).from_address(memory.ptr)
    return np.ndarray(array.shape, array.dtype, block, array.data.ptr - memory.ptr, array.strides)


def apply(xp, compute, *inputs):
    """Computes with NumPy, into a new array of the library that the inputs are of."""
    if xp is np:
        return np.ascontiguousarray(compute(*inputs))
    result = np.ascontiguousarray(compute(*map(seen, inputs)))
    array = xp.empty(result.shape, result.dtype)
    seen(array)[...] = result
    return array
