"""What a random graph is made of: operations on whatever Variables are at hand.

Each takes the graph (for parameters, labels and other Variables), a Variable of any shape and a number to choose with,
and returns one Variable or several. Shapes are made to fit, and values stay small, so that any row of operations is a
program. `OPERATIONS` is the table that programs draw from.
"""
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from support.trainings.ooc_networks import OldStyle, OldStyleOutputs, SumAndProduct

#: Operations that make more elements than they get begin with a part of what has more than this.
LARGE = 600


class Hiding(chainer.FunctionNode):
    """A user's own function: it draws, keeps two arrays on itself that share storage, and retains its output."""

    def forward(self, inputs):
        x, = inputs
        self.noise = np.random.uniform(0.5, 1.5, x.shape).astype(x.dtype)
        self.turned = self.noise.T
        y = np.tanh(x * self.noise)
        self.retain_outputs((0,))
        return y,

    def backward(self, indexes, grads):
        y, = self.get_retained_outputs()
        return grads[0] * (1 - y * y) * self.turned.T,


class Stateful(chainer.Chain):
    """A link with a persistent value that each forward call changes, and whose output depends on it."""

    def __init__(self):
        super().__init__()
        self.add_persistent('calls', np.zeros((), np.float32))

    def forward(self, x):
        self.calls += 1
        return F.sin(x * np.float32(1 + 0.1 * self.calls))


def matrix(h, columns=None):
    """Two axes, the second of a divisor of the size that is at most `columns`."""
    columns = divisor(h.size, columns or 12)
    return F.reshape(h, (h.size // columns, columns))


def image(h):
    """Four axes."""
    if h.ndim == 4:
        return h
    width = divisor(h.size, 6)
    height = divisor(h.size // width, 6)
    channels = divisor(h.size // width // height, 4)
    return F.reshape(h, (h.size // width // height // channels, channels, height, width))


def divisor(size, most):
    return max(each for each in range(1, most + 1) if size % each == 0)


def small(h):
    return F.flatten(h)[:LARGE // 2] if h.size > LARGE else h


def like(other, h):
    """`other` in the shape of `h`."""
    if other.shape == h.shape:
        return other
    flat = F.flatten(other)
    if flat.size < h.size:
        flat = F.tile(flat, -(-h.size // flat.size))
    return F.reshape(flat[:h.size], h.shape)


def _window(h, n):
    return min(2 + n % 2, *h.shape[2:])


def _convolution(graph, h, n):
    h = image(small(h))
    channels = h.shape[1]
    make = (lambda: L.Convolution2D(channels, 4, 3, pad=1), lambda: L.Convolution2D(channels, 3, 1, nobias=True),
            lambda: L.Deconvolution2D(channels, 3, 3, pad=1), lambda: L.DepthwiseConvolution2D(channels, 2, 3, pad=1),
            lambda: L.DilatedConvolution2D(channels, 3, 3, pad=2, dilate=2))[n % 5]
    return graph.link(make)(h)


def _linear(graph, h, n):
    h = matrix(small(h))
    return graph.link(lambda: L.Linear(h.shape[1], 3 + n % 6))(h)


def _same_linear(graph, h, n):
    h = like(h, chainer.Variable(np.empty((5, 8), np.float32)))
    return graph.shared(h) if n % 2 else graph.shared(F.tanh(graph.shared(h)))


def _lstm(graph, h, n):
    h = matrix(small(h), 8)
    link = graph.link(lambda: L.StatelessLSTM(h.shape[1], 4))
    cell, out = link(None, None, h)
    return link(cell, out, h) if n % 2 else (cell, out)


def _sequences(graph, h, n):
    h = matrix(F.flatten(h)[:24], 4)
    cut = 1 + n % max(1, h.shape[0] - 1)
    parts = [each for each in F.split_axis(h, [cut], axis=0) if each.shape[0]] if h.shape[0] > 1 else [h]
    link = graph.link(lambda: L.NStepGRU(1, h.shape[1], 4, 0.2))
    states, outs = link(None, sorted(parts, key=len, reverse=True))
    return F.concat([states[0], *outs], axis=0)  # Chainer's backward wants a gradient for each output


def _normalisation(graph, h, n):
    h = image(h) if len(image(h)) > 1 else like(h, chainer.Variable(np.empty((3, 2, 3, 4), np.float32)))
    if n % 4 == 0:
        return graph.link(lambda: L.BatchNormalization(h.shape[1]))(h)
    if n % 4 == 1:
        graph.differentiable_twice = False
        return graph.link(lambda: L.BatchRenormalization(h.shape[1], rmax=2.0, dmax=1.0))(h)
    if n % 4 == 2:
        graph.differentiable_twice = False
        return graph.link(lambda: L.GroupNormalization(1, h.shape[1]))(h)
    flat = matrix(h)
    return graph.link(lambda: L.LayerNormalization(flat.shape[1]))(flat)


def _embedding(graph, h, n):
    words = np.random.randint(0, 7, 1 + n % 9).astype(np.int32)
    return F.matmul(graph.link(lambda: L.EmbedID(7, 5))(words), like(h, chainer.Variable(np.empty((5, 6), np.float32))))


def _user_nodes(graph, h, n):
    if n % 4 == 0:
        return Hiding().apply((h,))[0]
    if n % 4 == 1:
        graph.differentiable_twice = False
        return OldStyleOutputs()(h)
    if n % 4 == 2:
        graph.differentiable_twice = False
        return OldStyle()(h, like(graph.other(n), h))
    return SumAndProduct().apply((h, like(graph.other(n), h)))


def _forget(graph, h, n):
    def inside(*given):
        return F.tanh(given[0]) * F.sigmoid(given[-1])
    graph.differentiable_twice = False
    return F.forget(inside, h) if n % 2 else F.forget(inside, h, like(graph.other(n), h))


def _evaluate(graph, h, n):
    """Functions whose graph nobody runs backward, in the middle of one."""
    with chainer.no_backprop_mode(), chainer.using_config('train', bool(n % 2)):
        graph.note('evaluated', F.softmax(matrix(F.dropout(F.tanh(h), 0.3))).array)
    return h


def _unchain(graph, h, n):
    h = F.tanh(h)
    if n % 2:
        h.unchain()
    else:
        h.unchain_backward()
    return h


def _pooling_with_indexes(graph, h, n):
    h = image(h)
    pooled, indexes = F.max_pooling_2d(h, _window(h, n), return_indices=True)
    return F.upsampling_2d(pooled, indexes, _window(h, n), outsize=h.shape[2:])


def _local_response(graph, h, n):
    graph.differentiable_twice = False
    return F.local_response_normalization(image(h), 3 + 2 * (n % 2))


def _spread(graph, h, n):
    h = small(h)
    axis = n % (h.ndim + 1)
    return F.broadcast_to(F.expand_dims(h, axis), (*h.shape[:axis], 2, *h.shape[axis:]))


def _split(graph, h, n):
    axis = max(range(h.ndim), key=lambda each: h.shape[each])
    if h.shape[axis] < 3:
        return list(F.separate(h, axis))
    if h.shape[axis] % 2 == 0 and n % 2:
        return list(F.split_axis(h, 2, axis))
    return list(F.split_axis(h, [1, h.shape[axis] - 1], axis))


def _slice(graph, h, n):
    h = matrix(h)
    return h[(slice(None, None, -1), slice(None, None, 2), [0, -1, 0], (slice(None), slice(-1, None, -2)))[n % 4]]


def _join(graph, h, n):
    other = like(graph.other(n), h)
    if h.size > LARGE:
        return h + other
    return (lambda: F.concat([h, other, h], axis=0), lambda: F.stack([h, other]), lambda: F.vstack([
        matrix(h), matrix(other)]))[n % 3]()


def _combine(graph, h, n):
    other = like(graph.other(n), h)
    return (lambda: h + other, lambda: F.tanh(h) * F.sigmoid(other), lambda: F.maximum(h, other),
            lambda: h - other * 0.5, lambda: F.where(np.arange(h.size).reshape(h.shape) % 3 == 0, h, other),
            lambda: h / (2 + F.sin(other)), lambda: sum([h, other, h, other, h]) / 5,
            lambda: F.minimum(h, other))[n % 8]()


def _multiply(graph, h, n):
    h = matrix(small(h))
    return F.matmul(F.tanh(h), F.transpose(F.tanh(h))) / h.shape[1] if n % 2 else F.einsum('ij,ik->jk', h, h) / len(h)


def _cast(graph, h, n):
    if n % 2:
        return F.cast(F.cast(F.tanh(h), np.float16) * np.float16(1.5), np.float32)
    return F.cast(F.sin(F.cast(h, np.float64)), np.float32)


ACTIVATIONS = (
    F.relu, F.tanh, F.sigmoid, F.leaky_relu, F.softplus, F.elu, F.sin, F.identity, F.hard_sigmoid, F.clipped_relu,
    lambda h: F.exp(F.clip(h, -2.0, 1.0)), lambda h: F.softmax(matrix(h)), lambda h: F.log_softmax(matrix(h)) * 0.1,
    F.selu, lambda h: F.maxout(matrix(h), 1), lambda h: F.normalize(matrix(h)), lambda h: F.crelu(small(h), 0),
    lambda h: F.cumsum(F.tanh(matrix(h)), 1) * 0.2, F.absolute,
    F.rrelu, lambda h: F.gaussian(h, h * 0.1 - 2), lambda h: F.dropout(h, 0.4), lambda h: F.zoneout(
        h, F.tanh(h), 0.3))

VIEWS = (
    lambda h: F.reshape(h, (-1,)), lambda h: F.transpose(h), lambda h: matrix(h), lambda h: image(h), lambda h: F.flip(
        h, 0), lambda h: F.expand_dims(h, 0) if h.ndim < 5 else h[0], lambda h: F.squeeze(F.expand_dims(h, -1), -1),
    lambda h: F.swapaxes(h, 0, -1), lambda h: F.moveaxis(h, 0, -1), lambda h: F.rollaxis(h, h.ndim - 1),
    lambda h: F.transpose(matrix(h))[1:] if matrix(h).shape[1] > 1 else h, lambda h: h[..., None], lambda h: F.identity(
        h[::2]), lambda h: F.diagonal(matrix(h)), lambda h: F.flatten(F.transpose(h)))

REUSES = (
    lambda h: h * h * 0.5, lambda h: h + h, lambda h: F.tanh(h) + F.sigmoid(h) * h, lambda h: F.concat(
        [small(h)] * 3, 0), lambda h: F.maximum(h, F.flip(h, 0)), lambda h: h - F.broadcast_to(F.mean(h), h.shape),
    lambda h: h * F.broadcast_to(F.max(F.tanh(h)), h.shape))

POOLINGS = (
    lambda h, k: F.max_pooling_2d(h, k), lambda h, k: F.max_pooling_2d(h, k, stride=1, pad=1) if k > 1 else h,
    lambda h, k: F.average_pooling_2d(h, k),
    lambda h, k: F.unpooling_2d(h, 2, cover_all=False)[:, :, :6, :6], lambda h, k: F.resize_images(h, (4, 5)),
    lambda h, k: F.spatial_pyramid_pooling_2d(h, 1, 'max'), lambda h, k: F.im2col(h, k))


OPERATIONS = {
    'activation': lambda graph, h, n: ACTIVATIONS[n % len(ACTIVATIONS)](h),
    'view': lambda graph, h, n: VIEWS[n % len(VIEWS)](h),
    'reuse': lambda graph, h, n: REUSES[n % len(REUSES)](h),
    'pooling': lambda graph, h, n: POOLINGS[n % len(POOLINGS)](image(small(h)), _window(image(small(h)), n // 8)),
    'pooling with indexes': _pooling_with_indexes,
    'convolution': _convolution,
    'linear': _linear,
    'local response': _local_response,
    'shared linear': _same_linear,
    'lstm': _lstm,
    'sequences': _sequences,
    'normalisation': _normalisation,
    'embedding': _embedding,
    'stateful link': lambda graph, h, n: graph.link(Stateful)(h),
    'user node': _user_nodes,
    'forget': _forget,
    'evaluate': _evaluate,
    'unchain': _unchain,
    'broadcast': _spread,
    'split': _split,
    'slice': _slice,
    'join': _join,
    'combine': _combine,
    'multiply': _multiply,
    'cast': _cast,
}

LOSSES = (
    lambda graph, h: F.mean(F.tanh(h)),
    lambda graph, h: F.mean(h * h),
    lambda graph, h: F.softmax_cross_entropy(matrix(h), graph.labels(*matrix(h).shape),
                                             enable_double_backprop=True),
    lambda graph, h: F.mean_squared_error(h, np.zeros(h.shape, np.float32)),
    lambda graph, h: F.sum(F.huber_loss(matrix(h), np.ones_like(matrix(h).array), 0.5)) * 0.1,
    lambda graph, h: F.sigmoid_cross_entropy(matrix(h), np.ones(matrix(h).shape, np.int32)),
)
