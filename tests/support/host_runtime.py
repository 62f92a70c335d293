"""CuPy's runtime as far as it pins host memory, by CUDA's rules: they are held to the mappings that the process has.

What breaks a rule is refused as CUDA refuses it, or noted in `misuses` where CUDA would notice nothing:

    memory that is unmapped while it is registered
    memory that is registered and not mapped, or not kept from forked children
    an address that `hostAlloc` did not give, given to `freeHost`
"""
import ctypes
import mmap
import re

import numpy as np

from chainer_ooc.backends.cuda import pages
from support.fake_driver import FakeDriver

INVALID_VALUE, OUT_OF_MEMORY, ALREADY_REGISTERED, NOT_REGISTERED, NOT_SUPPORTED = 1, 2, 712, 713, 801
ADDRESS_ATTRIBUTE = 91
MAPPING = re.compile(r'^([0-9a-f]+)-([0-9a-f]+) (?:.*\n)*?VmFlags:(.*)$', re.MULTILINE)


class CUDARuntimeError(RuntimeError):
    def __init__(self, status):
        super().__init__(f'cudaError {status}')
        self.status = status


def mappings():
    """Start, end and flags of what is mapped, in order; ``dc`` is what a fork does not copy."""
    with open('/proc/self/smaps') as file:
        found = MAPPING.findall(file.read())
    return [(int(start, 16), int(end, 16), set(flags.split())) for start, end, flags in found]


def flags_of(address, nbytes, among=None):
    """The flags that all of a piece of memory has; None unless all of it is mapped. `among`: what is mapped."""
    common, reached = None, address
    for start, end, flags in mappings() if among is None else among:
        if start <= reached < end and reached < address + nbytes:
            common, reached = flags if common is None else common & flags, end
    return common if reached >= address + nbytes else None


class HostRuntime:
    """What `pages.HostPages` calls.

    Attributes:
        statuses: what the next calls of a name fail with, such as ``{'hostRegister': [801]}``; 0 is none.
        same_address: devices know registered memory by its host address.
        registered, allocated: what there is now, sizes by address.
    """

    hostAllocPortable = 1  # noqa: N815 - these are CuPy's names
    cudaDevAttrCanUseHostPointerForRegisteredMem = ADDRESS_ATTRIBUTE  # noqa: N815
    CUDARuntimeError = CUDARuntimeError

    def __init__(self):
        self.calls, self.misuses, self.statuses = [], [], {}
        self.same_address = True
        self.registered, self.allocated = {}, {}

    def names(self):
        """What was called, without what only asks."""
        return [name for name, *_ in self.calls]

    def left_behind(self):
        """What should not be there at the end."""
        return [*self.misuses, *self.registered, *self.allocated, *pages._MAPPED]

    def getDevice(self):  # noqa: N802
        return 0

    def deviceGetAttribute(self, attribute, device):  # noqa: N802
        assert (attribute, device) == (ADDRESS_ATTRIBUTE, 0)
        return int(self.same_address)

    def hostRegister(self, address, nbytes, flags):  # noqa: N802
        self._call('hostRegister', address, nbytes, flags)
        if any(start < address + nbytes and address < start + size for start, size in self.registered.items()):
            raise CUDARuntimeError(ALREADY_REGISTERED)
        found = flags_of(address, nbytes)
        if found is None:
            self.misuses.append('memory was registered that is not mapped')
            raise CUDARuntimeError(INVALID_VALUE)
        if 'dc' not in found:
            self.misuses.append('memory was registered that a forked child shares')
        self.registered[address] = nbytes

    def hostUnregister(self, address):  # noqa: N802
        self._call('hostUnregister', address)
        if address not in self.registered:
            raise CUDARuntimeError(NOT_REGISTERED)
        self.registered.pop(address)

    def hostAlloc(self, nbytes, flags):  # noqa: N802
        self._call('hostAlloc', nbytes, flags)
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        array = np.frombuffer(memory, np.uint8)
        self.allocated[array.ctypes.data] = array
        return array.ctypes.data

    def freeHost(self, address):  # noqa: N802
        self._call('freeHost', address)
        if self.allocated.pop(address, None) is None:
            self.misuses.append('memory was freed that was not allocated')

    def _call(self, name, *arguments):
        self.calls.append((name, *arguments))
        among = mappings() if self.registered else ()
        if any(flags_of(address, nbytes, among) is None for address, nbytes in self.registered.items()):
            self.misuses.append('memory was unmapped while it was registered')
        if status := (self.statuses.get(name) or [0]).pop(0):
            raise CUDARuntimeError(status)


class PagesDriver(FakeDriver):
    """A fake device whose pinned memory is what `pages.HostPages` gives over a `HostRuntime`."""

    def __init__(self, *args, **device):
        super().__init__(*args, **device)
        self.runtime = HostRuntime()
        self.host = pages.HostPages(self.runtime)

    def memory_for(self, nbytes):
        return np.ndarray(nbytes, np.uint8, buffer=(ctypes.c_uint8 * nbytes).from_address(self.host.pin(nbytes)))

    def unpin(self, address):
        with self.lock:
            super().unpin(address)
            self._unpinned.clear()
            self.host.unpin(address)

