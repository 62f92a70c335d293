"""Cases of chainer.functions.math that look at several elements at once: reductions, products of matrices."""
import chainer.functions as F
import numpy as np
from chainer.utils import CooMatrix

from support.conformance.conformance_cases import case, feature, labels, weight

SQUARE = feature(3, 3)
SQUARES = feature(2, 3, 3)
ROWS, COLUMNS = labels(3, 5), np.arange(5, dtype=np.int32) % 4


def regular(call):
    """Far from a matrix without inverse."""
    return lambda x: call(F.broadcast_to(np.eye(3, dtype=np.float32) * 3, x.shape) + x)


def sparse(data):
    matrix = CooMatrix(data.array, ROWS, COLUMNS, (3, 4))
    matrix.data = data  # as a function of others: its own constructor takes an array
    return matrix


CASES = {
    'argmax': case(lambda x: F.argmax(x, axis=1), feature(3, 4), forward_only=True),
    'argmin': case(F.argmin, feature(3, 4), forward_only=True),
    'average': case(F.average, feature(3, 4)),
    'average/weighted': case(
        lambda x, y: F.average(x, axis=0, weights=y + 2, keepdims=True), feature(3, 4), feature(3)),
    'batch_det': case(regular(F.batch_det), SQUARES),
    'batch_inv': case(regular(F.batch_inv), SQUARES),
    'batch_l2_norm_squared': case(F.batch_l2_norm_squared, feature(3, 2, 4)),
    'batch_matmul': case(F.batch_matmul, feature(2, 3, 4), feature(2, 4, 3), quiet=(
        ('batch_matmul is deprecated', 'it has a newer name'),)),
    'bias': case(F.bias, feature(3, 4, 2), weight(4)),
    'cholesky': case(regular(lambda x: F.cholesky(F.matmul(x, x, transb=True))), SQUARE),
    'cumprod': case(lambda x: F.cumprod(x, axis=1), feature(3, 4)),
    'cumprod/of all': case(F.cumprod, feature(3, 4, low=0.5)),
    'cumsum': case(lambda x: F.cumsum(x, axis=0), feature(3, 4)),
    'cumsum/of all': case(F.cumsum, feature(3, 4)),
    'det': case(regular(F.det), SQUARE),
    'einsum': case(lambda x, y: F.einsum('ij,kj->ik', x, y), feature(3, 4), feature(2, 4)),
    'einsum/three, with dots': case(
        lambda *xs: F.einsum('...ij,jk,k', *xs), feature(2, 3, 4), feature(4, 5), feature(5)),
    'fft': case(lambda x, y: F.fft((x, y)), feature(3, 4), feature(3, 4)),
    'identity': case(F.identity, feature(3, 4)),
    'identity/of two': case(lambda x, y: F.identity(x, y), feature(3, 4), feature(2)),
    'ifft': case(lambda x, y: F.ifft((x, y)), feature(3, 4), feature(3, 4)),
    'inv': case(regular(F.inv), SQUARE),
    'linear_interpolate': case(F.linear_interpolate, feature(3, 4), feature(3, 4), feature(3, 4)),
    'logsumexp': case(lambda x: F.logsumexp(x, axis=1), feature(3, 4)),
    'logsumexp/of all': case(F.logsumexp, feature(3, 4)),
    'matmul': case(F.matmul, feature(3, 4), feature(4, 2)),
    'matmul/transposed': case(
        lambda x, y: F.matmul(x, y, transa=True, transb=True), feature(2, 4, 3), feature(2, 5, 4)),
    'matmul/with itself': case(lambda x: F.matmul(x, x), SQUARE),
    'matmul/of a vector': case(F.matmul, feature(3, 4), feature(4)),
    'max': case(lambda x: F.max(x, axis=1), feature(3, 4)),
    'max/of all': case(F.max, feature(3, 4)),
    'min': case(lambda x: F.min(x, axis=0, keepdims=True), feature(3, 4)),
    'prod': case(lambda x: F.prod(x, axis=1), feature(3, 4)),
    'scale': case(F.scale, feature(3, 4, 2), weight(4)),
    'sparse_matmul': case(lambda data, dense: F.sparse_matmul(sparse(data), dense), feature(5), feature(4, 2)),
    'sparse_matmul/sparse on the right': case(
        lambda data, dense: F.sparse_matmul(dense, sparse(data), transa=True), feature(5),
        feature(3, 2)),
    'sum': case(lambda x: F.sum(x, axis=(0, 2)), feature(3, 4, 2)),
    'sum/of all': case(F.sum, feature(3, 4)),
    'sum_to': case(lambda x: F.sum_to(x, (3, 1)), feature(3, 4)),
    'sum_to/the same': case(lambda x: F.sum_to(x, (3, 4)), feature(3, 4)),
    'tensordot': case(lambda x, y: F.tensordot(x, y, axes=([0, 2], [1, 0])), feature(3, 4, 2), feature(2, 3, 5)),
}
