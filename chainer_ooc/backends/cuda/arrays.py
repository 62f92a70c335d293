"""CuPy's arrays and the memory under them; see `backends.arrays`.

The root of an array is the `Owner` of its block, which our allocator made with it: CuPy's own memory objects take no
weak references, and a view need not have its array as base.

Left out: memory that did not come through our allocator, such as what was allocated before the first iteration.
`root_of` gives None for it, and it is never moved.
"""

from __future__ import annotations

from typing import Any

from chainer_ooc.backends.base import ByteArray
from chainer_ooc.backends.cuda.allocators.ledger import Owner
from chainer_ooc.backends.host.arrays import COLUMNS, in_order
from chainer_ooc.backends.layout import Layout

#: Of an array with gaps so much is copied at once for a mark.
PART_BYTES = 16 << 20
_SPREAD = 0x5851F42D4C957F2D  # the multiplier of Knuth's MMIX generator: odd, and below 2**63 for every CuPy


def root_of(array: Any) -> Owner | None:
    """Returns the owner of an array's block, or None if that is not ours to move."""
    owner = getattr(array.data.mem, '_owner', None)
    return owner if isinstance(owner, Owner) and array.nbytes else None


def layout_of(array: Any, root: Owner) -> Layout:
    """Describes `array` as a part of the block of `root`; CuPy has no read-only arrays."""
    return Layout(array.dtype, array.shape, array.strides, array.data.ptr - root.pointer, True)


def flat_bytes(root: Owner) -> ByteArray:
    """Returns a block as bytes; a block of a device has no gaps."""
    import cupy

    pointer = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(root.pointer, root.nbytes, root, root.device_id), 0)
    flat: ByteArray = cupy.ndarray((root.nbytes,), 'u1', pointer)
    return flat


def view(block: Any, layout: Layout) -> Any:
    """Lays an array over a block of bytes."""
    import cupy

    return cupy.ndarray(layout.shape, layout.dtype, block.data + layout.offset_bytes, layout.strides)


def zeros(nbytes: int) -> ByteArray:
    """Returns a new block of bytes."""
    import cupy

    block: ByteArray = cupy.zeros(nbytes, 'u1')
    return block


def links(holder: Any) -> tuple[Any, ...]:
    """What an array refers to: the one it is a view of, and its pointer; then on to the memory and its owner."""
    if isinstance(holder, Owner):
        return ()
    if hasattr(holder, 'data'):
        return (holder.data,) if holder.base is None else (holder.base, holder.data)
    return (holder.mem,) if hasattr(holder, 'mem') else (holder._owner,)


def mark(array: Any) -> Any:
    """A checksum that stays on the device: the sums of the content's columns, twice, each times a number of its own."""
    import cupy

    ordered = in_order(array)
    if not ordered.flags.c_contiguous and array.nbytes > PART_BYTES:  # no copy of all of it may have room
        parts = cupy.array_split(array, -(-array.nbytes // PART_BYTES), axis=max(
            range(array.ndim), key=array.shape.__getitem__))
        numbers = [mark(part).reshape(1) for part in parts]
    else:
        words, numbers = _words(cupy.ascontiguousarray(ordered).reshape(-1)), []  # copies what has gaps alone
        for columns in COLUMNS:
            whole = words.size // columns * columns
            numbers += [words[:whole].reshape(-1, columns).sum(axis=0, dtype='u8'), words[whole:]]
    together = cupy.concatenate(numbers)
    return (together * _factors(together.size)).sum()


def _factors(count: int) -> Any:
    """Odd numbers without a pattern: with 1, 3, 5 a word that moves up would make up for its like that moves down."""
    import cupy

    numbers = cupy.arange(1, count + 1, dtype='u8') * _SPREAD
    return (numbers ^ (numbers >> 32)) * _SPREAD | 1


def _words(flat: Any) -> Any:
    """The same bytes as the largest integers that lie at multiples of their size, as a GPU has to read them.

    What is compared lies alike each time: blocks begin at multiples of 512, and a view of one at the same place of it.
    """
    place = getattr(flat.data, 'ptr', 0) | flat.nbytes  # arrays of NumPy, in tests, have no such address
    return flat.view(next(f'u{size}' for size in (8, 4, 2, 1) if place % size == 0))
