"""Pixels in an order in which one tap of all windows is one stretch of memory.

The pixels of some planes are sorted into phases, by where they lie within the stride, and each phase has the same
number of places in every row. Window number i then sees, with a given tap, place i + offset of one phase:

    stride 2, window 3:     pixels   0 1 2 3 4 5 6 7 8        phase 0: 0 2 4 6 8
                                                              phase 1: 1 3 5 7 .
    tap 0 is phase 0 from place 0, tap 1 phase 1 from place 0, tap 2 phase 0 from place 1

so that a running result over the taps is a few calls on long contiguous arrays, not many on short rows: on 14x14 maps
that is six times as fast. The price is that the stretches also run over the ends of rows and planes; what comes out
there belongs to no window and is never read.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from chainer_ooc.kernels.tiled.tiles import Buffer
from chainer_ooc.kernels.tiled.windows import ALL, Array, Index, Windows, gather, scatter


@dataclass(frozen=True)
class Lattice:
    """The order for some undilated windows.

    Attributes:
        phases: windows whose taps are the phases and whose `out` are the places of a phase.
        taps: for each tap in C order, its phase and its offset in places.
        inside: index of the places that are windows, of an array of shape (n, c, *places).
    """

    phases: Windows
    taps: tuple[tuple[int, int], ...]
    inside: Index

    @property
    def places(self) -> int:
        """Places of one phase of a plane."""
        return self.phases.count

    def length(self, planes: int) -> int:
        """Returns how long a stretch is: the places of some planes less the largest offset."""
        return planes * self.places - max(offset for _, offset in self.taps)

    def sort(self, images: Array, outside: float, buffer: Buffer) -> Array:
        """Copies images (n, c, *size) into phases of shape (phases, places of all planes), `outside` around them."""
        block = self._block(buffer, *images.shape[:2])
        gather(images, self.phases, self._columns(block), outside)
        return block.reshape(self.phases.elements, -1)

    def cleared(self, count: int, channels: int, buffer: Buffer) -> Array:
        """Returns phases of shape (phases, places of all planes), all zero."""
        block = self._block(buffer, count, channels)
        block.fill(0)
        return block.reshape(self.phases.elements, -1)

    def unsort(self, phases: Array, images: Array) -> None:
        """Copies phases into images (n, c, *size); zero where no window looks."""
        images.fill(0)
        scatter(self._columns(phases.reshape(*self.phases.kernel, *images.shape[:2], *self.phases.out)),
                self.phases, images)

    def by_window(self, stretch: Array, count: int, channels: int) -> Array:
        """Views an array with one element a place as (n, c, *windows)."""
        return stretch.reshape(count, channels, *self.phases.out)[self.inside]

    def _block(self, buffer: Buffer, count: int, channels: int) -> Array:
        return buffer.shaped(*self.phases.kernel, count, channels, *self.phases.out)

    def _columns(self, block: Array) -> Array:
        axes = len(self.phases.kernel)
        return np.moveaxis(block, (axes, axes + 1), (0, 1))


def lattice_of(windows: Windows) -> Lattice:
    """Finds the order for undilated windows."""
    kernel, stride = windows.kernel, windows.stride
    residues = tuple(map(min, kernel, stride))
    places = tuple(out + (k - 1) // step for out, k, step in zip(windows.out, kernel, stride, strict=True))
    phases = Windows(windows.size, residues, stride, windows.pad, windows.dilate, places)
    taps = []
    for position in itertools.product(*map(range, kernel)):
        steps = [divmod(p, step) for p, step in zip(position, stride, strict=True)]
        taps.append((_number([phase for _, phase in steps], residues), _number([step for step, _ in steps], places)))
    return Lattice(phases, tuple(taps), (ALL, ALL, *(slice(0, out) for out in windows.out)))


def _number(position: list[int], shape: tuple[int, ...]) -> int:
    """Counts the elements before a position in C order, which may lie beyond the end of its row."""
    return sum(p * math.prod(shape[axis + 1:]) for axis, p in enumerate(position))
