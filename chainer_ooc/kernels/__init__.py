"""What computes in place of Chainer's own kernels: the same functions in less memory, or faster.

    tiled/   convolution, pooling and normalization on the CPU, within chainer.config.ooc_workspace
    onednn/  convolution and batch normalization on the CPU, by oneDNN
    cudnn/   convolution and batch normalization on a GPU

The seams of patches 0060, 0070 and 0080 call them with a function node's arrays, whatever chainer.config.ooc is.
Imports run from here to `backends`, never back: kernels tell a device what they have prepared there, and a device holds
and moves arrays whatever computes on them.
"""

from __future__ import annotations

from typing import Any

Shape = tuple[int, ...]


def steps_of(node: Any) -> tuple[Shape, Shape, Shape]:
    """Stride, padding and dilation of a convolution's function node: one number each for an axis of the image.

    Nodes for two axes have them under names of their own, as they have the two below.
    """
    if hasattr(node, 'sy'):
        return (node.sy, node.sx), (node.ph, node.pw), (node.dy, node.dx)
    return node.stride, node.pad, node.dilate


def kernel_of(node: Any) -> Shape:
    """The window of such a node's gradient."""
    return (node.kh, node.kw) if hasattr(node, 'kh') else tuple(node.ksize)


def outs_of(node: Any) -> Shape:
    """The extents of a deconvolution's output, which are known."""
    return (node.outh, node.outw) if hasattr(node, 'outh') else tuple(node.outs)
