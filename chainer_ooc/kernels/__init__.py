"""What computes in place of Chainer's own kernels: the same functions in less memory, or faster.

    tiled/   convolution, pooling and normalization on the CPU, within chainer.config.ooc_workspace
    onednn/  convolution and batch normalization on the CPU, by oneDNN
    cudnn/   convolution and batch normalization on a GPU

The seams of patches 0060, 0070 and 0080 call them with a function node's arrays, whatever chainer.config.ooc is.
Imports run from here to `backends`, never back: kernels tell a device what they have prepared there, and a device holds
and moves arrays whatever computes on them.
"""
