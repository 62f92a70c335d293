"""Chainer's batch normalization and local response normalization, in tiles.

The functions are called by the seams of patch 0060. Each returns None for a call that is not for tiles, and Chainer
goes its own way: batch statistics that keep several axes apart, parameters of a smaller dtype than the map, empty maps,
maps whose axes overlap in memory or run backwards, arrays that are not NumPy's own. The running averages, and how
several processes agree on statistics, stay with Chainer.

Results have the bits and the order of axes of Chainer's own way, and so has what nodes keep. The gradients of the
gradients are made of Chainer's functions and take what these take.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from chainer_ooc.kernels.tiled import batch_norm, lrn
from chainer_ooc.kernels.tiled.lrn import Response
from chainer_ooc.kernels.tiled.tiles import workspace_bytes
from chainer_ooc.kernels.tiled.windows import Array


def batch_moments(x: Array, axis: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Array, Array] | None:
    """Mean and variance of BatchNormalization, in the dtype to which map and parameters promote."""
    key = _key(x, axis)
    if key is None or not _native(x):
        return None
    return batch_norm.moments(x, key, np.dtype(dtype), workspace_bytes())


def batch_affine(x: Array, mean: Array, inv_std: Array, gamma: Array, beta: Array) -> Array | None:
    """Output of BatchNormalization and FixedBatchNormalization, whose parameters broadcast with x."""
    parameters = mean, inv_std, gamma, beta
    if not _native(x, *parameters) or x.ndim < 2 or not _share_dtype(x, *parameters):
        return None
    return batch_norm.affine(x, *parameters, workspace_bytes())


def batch_normalization_grad(
        axis: tuple[int, ...], gamma: Array, gy: Array, x: Array, mean: Array, inv_std: Array,
) -> tuple[Array, None, Array, Array] | None:
    """Backward of GeneralBatchNormalizationImpl, where no other process has a part in the sums."""
    found = _gradients(axis, gamma, gy, x, mean, inv_std, fixed=False)
    return found and (found[0], None, found[1], found[2])


def fixed_batch_normalization_grad(
        node: Any, x: Array, gamma: Array, mean: Array, var: Array, gy: Array,
) -> tuple[Array, Array, Array, Array, Array] | None:
    """Forward of FixedBatchNormalizationGrad, whose node has 1 / std, 1 / var and gamma / std."""
    found = _gradients(node.axis, gamma, gy, x, mean, node.inv_std, fixed=True)
    if found is None:
        return None
    gx, ggamma, gbeta = found
    gmean = -node.gamma_over_std * gbeta
    gvar = -0.5 * node.inv_var * (gamma * ggamma).astype(var.dtype, copy=False)
    return gx, ggamma, gbeta, gmean, gvar


def local_response_normalization(node: Any, x: Array) -> tuple[Array] | None:
    """Forward of LocalResponseNormalization."""
    numbers = _response(node)
    if not _native(x) or not numbers.keeps(x.dtype):
        return None
    y, node.unit_scale, node.scale = lrn.normalize(x, numbers, workspace_bytes())
    return y,


def local_response_normalization_grad(node: Any, x: Array, y: Array, gy: Array) -> tuple[Array] | None:
    """Forward of LocalResponseNormalizationGrad."""
    numbers, kept = _response(node), (node.unit_scale, node.scale)
    if not _native(x, y, gy, *kept) or {a.dtype for a in (y, gy, *kept)} != {x.dtype} or not numbers.keeps(x.dtype):
        return None
    return lrn.gradient(x, y, gy, *kept, numbers, workspace_bytes()),


def _gradients(axis: tuple[int, ...], gamma: Array, gy: Array, x: Array, mean: Array, inv_std: Array, *,
               fixed: bool) -> tuple[Array, Array, Array] | None:
    key = _key(x, axis)
    vectors = mean, inv_std, gamma
    if key is None or not _native(x, gy, *vectors) or gy.dtype != x.dtype or not _share_dtype(x, *vectors):
        return None
    return batch_norm.gradients(x, gy, key, *vectors, workspace_bytes(), fixed=fixed)


def _key(x: Array, axis: tuple[int, ...]) -> int | None:
    """Returns the one axis that is not reduced, or None."""
    keys = [number for number in range(x.ndim) if number not in axis]
    return keys[0] if len(keys) == 1 and x.ndim > 1 else None


def _native(*arrays: Array) -> bool:
    """Returns whether NumPy works on all of the arrays as they are in memory."""
    return all(type(array) is np.ndarray and array.size and array.flags.aligned and array.dtype.isnative
               for array in arrays)


def _share_dtype(x: Array, *vectors: Array) -> bool:
    """Returns whether the vectors have one dtype, that of x or larger."""
    dtypes = {vector.dtype for vector in vectors}
    return len(dtypes) == 1 and dtypes == {np.promote_types(x.dtype, vectors[0].dtype)}


def _response(node: Any) -> Response:
    return Response(node.n, node.k, node.alpha, node.beta)
