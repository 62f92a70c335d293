"""The few CuPy calls that running a cuDNN plan takes; tests put a host in their place."""

from __future__ import annotations

from typing import Any


class CupyDevice:
    """The current GPU of the calling thread, by CuPy."""

    def number(self) -> int:
        """Returns the number of the current device."""
        import cupy

        return int(cupy.cuda.runtime.getDevice())

    def stream(self) -> int:
        """Returns the address of the stream that the calling thread computes on."""
        import cupy

        return int(cupy.cuda.get_current_stream().ptr)

    def address(self, array: Any) -> int:
        """Returns where the first element of `array` is on the device."""
        return int(array.data.ptr)

    def scratch(self, nbytes: int) -> Any:
        """Returns `nbytes` of device memory from CuPy's allocator, so that it counts in the budget.

        The memory may go back as soon as the kernel is queued: what CuPy hands out next is used on the same stream.
        """
        return self.empty((nbytes,), 'uint8')

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Returns a new array from CuPy's allocator; its content is undefined."""
        import cupy

        return cupy.empty(shape, dtype)
