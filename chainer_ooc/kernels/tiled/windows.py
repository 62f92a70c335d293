"""Sliding windows over images, and the two copies between images and columns.

Chainer pads the whole batch before it takes windows from it. Here the part of the windows that hangs over the edge is
known beforehand, so the image is read and written where it is and no padded copy is made. A box of output rows is again
a set of windows, with another padding: that is how one image is cut when its columns alone are too large.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Index = tuple[slice, ...]

ALL = slice(None)


@dataclass(frozen=True)
class Tap:
    """One element of the window, and the windows for which it lies on the image.

    Every index below starts with two full slices, for images and channels.

    Attributes:
        column: index of the element in columns of shape (n, c, *kernel, *out).
        inside: index of the windows for which it lies on the image.
        outside: indexes of all other windows, in boxes that do not overlap.
        image: index of the pixels that the windows of `inside` see, in their order.
    """

    column: tuple[Any, ...]
    inside: Index
    outside: tuple[Index, ...]
    image: Index


@dataclass(frozen=True)
class Windows:
    """Windows over images of one size; each attribute has one number for each axis of the image.

    Attributes:
        size: shape of the image.
        kernel: shape of the window, not dilated.
        stride: step between windows in pixels.
        pad: how far the first window lies before the image; negative when it starts inside.
        dilate: step between the elements of a window in pixels.
        out: number of windows.
    """

    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    dilate: tuple[int, ...]
    out: tuple[int, ...]

    @property
    def count(self) -> int:
        """Windows of one image."""
        return math.prod(self.out)

    @property
    def elements(self) -> int:
        """Elements of one window in one channel."""
        return math.prod(self.kernel)

    @property
    def pointwise(self) -> bool:
        """Whether window number i is pixel number i: columns are then the image itself."""
        return self.elements == 1 and self.size == self.out and not any(self.pad) and set(self.stride) <= {1}

    def rows(self, rows: slice) -> Windows:
        """Returns the windows of some rows, which are numbers along the first axis of `out`."""
        pad = self.pad[0] - rows.start * self.stride[0]
        return Windows(self.size, self.kernel, self.stride, (pad, *self.pad[1:]), self.dilate,
                       (rows.stop - rows.start, *self.out[1:]))

    def overlap(self) -> tuple[Index, Index]:
        """Returns which elements of an undilated first window are on the image, and which pixels they see."""
        starts = [max(0, pad) for pad in self.pad]
        ends = [max(start, min(k, size + pad))
                for start, k, size, pad in zip(starts, self.kernel, self.size, self.pad, strict=True)]
        pixels = (slice(start - pad, end - pad) for start, end, pad in zip(starts, ends, self.pad, strict=True))
        return (ALL, ALL, *map(slice, starts, ends)), (ALL, ALL, *pixels)

    def taps(self) -> list[Tap]:
        """Returns the elements of the window in C order."""
        axes = [[self._axis(axis, element) for element in range(self.kernel[axis])] for axis in range(len(self.kernel))]
        return [self._tap(position, [axes[axis][element] for axis, element in enumerate(position)])
                for position in itertools.product(*map(range, self.kernel))]

    def _axis(self, axis: int, element: int) -> tuple[int, int, slice]:
        """Returns first and last + 1 window along an axis for which the element is on the image, and the pixels."""
        stride, first = self.stride[axis], element * self.dilate[axis] - self.pad[axis]
        start = max(0, -(first // stride))
        stop = min(self.out[axis], (self.size[axis] - 1 - first) // stride + 1)
        if stop <= start:
            return 0, 0, slice(0, 0)
        return start, stop, slice(first + start * stride, first + (stop - 1) * stride + 1, stride)

    def _tap(self, position: tuple[int, ...], axes: list[tuple[int, int, slice]]) -> Tap:
        inside: Index = (ALL, ALL)
        outside: list[Index] = []
        for (start, stop, _), out in zip(axes, self.out, strict=True):
            outside += [(*inside, slice(*ends)) for ends in ((0, start), (stop, out)) if ends[0] < ends[1]]
            inside = (*inside, slice(start, stop))
        return Tap((ALL, ALL, *position), inside, tuple(outside), (ALL, ALL, *(pixels for _, _, pixels in axes)))


def windows_over(
        size: tuple[int, ...], kernel: tuple[int, ...], stride: tuple[int, ...], pad: tuple[int, ...],
        dilate: tuple[int, ...] | None = None, *, cover_all: bool = False) -> Windows:
    """Counts the windows as Chainer does.

    Args:
        size: shape of the image.
        kernel: shape of the window, not dilated.
        stride: step between windows in pixels.
        pad: zeros before and after the image.
        dilate: step between the elements of a window in pixels, 1 by default.
        cover_all: whether a last window may hang over the end, so that every pixel is seen.

    Raises:
        AssertionError: no window fits; as in Chainer, for programs that try sizes.
    """
    dilate = dilate or (1,) * len(size)
    spare = [s + 2 * p - (k - 1) * d - 1 for s, p, k, d in zip(size, pad, kernel, dilate, strict=True)]
    out = tuple((room + (step - 1 if cover_all else 0)) // step + 1 for room, step in zip(spare, stride, strict=True))
    if min(out) <= 0:
        raise AssertionError(
            f'output sizes should be positive, but are {out} (image {size}, window {kernel}, stride {stride}, pad '
            f'{pad}, dilate {dilate}); use a larger image or pad, or a smaller window')
    return Windows(size, kernel, stride, pad, dilate, out)


def gather(images: Array, windows: Windows, columns: Array, outside: float = 0) -> None:
    """Copies what the windows see.

    Args:
        images: of shape (n, c, *size).
        windows: where to look.
        columns: written; of shape (n, c, *kernel, *out), any layout and any dtype that takes the images'.
        outside: what they see outside of the image.
    """
    for tap in windows.taps():
        slab = columns[tap.column]
        for box in tap.outside:
            slab[box] = outside
        slab[tap.inside] = images[tap.image]


def scatter(columns: Array, windows: Windows, images: Array) -> None:
    """Adds every column to the pixels that its window sees: the transpose of `gather`.

    Args:
        columns: of shape (n, c, *kernel, *out).
        windows: where to add.
        images: changed in place; of shape (n, c, *size). A pixel gets its terms in the order of the taps.
    """
    for tap in windows.taps():
        pixels = images[tap.image]
        np.add(pixels, columns[tap.column][tap.inside], out=pixels)
