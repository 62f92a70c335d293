"""How an array lies on the block of memory that it is a part of."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

#: What blocks of the host have behind their last byte, at least. NumPy before 2.0.2 takes an operand that ends exactly
#: where the result begins for one that overlaps it, and computes powers, logarithms and more by another loop then: its
#: last bits differ on processors with AVX-512 (numpy/numpy#26972). Arrays of the C library are never that near.
GAP_BYTES = int(np.lib.NumpyVersion(np.__version__) < '2.0.2')


@dataclass(frozen=True)
class Layout:
    """How an array lies on its root: dtype, shape, strides in bytes, offset in bytes, and whether it may be written."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset_bytes: int
    writeable: bool

    @property
    def size(self) -> int:
        """Number of elements, as of an array."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        """Number of axes, as of an array."""
        return len(self.shape)

    def writable(self) -> Layout:
        """The same, for an array that may be written."""
        return replace(self, writeable=True)
