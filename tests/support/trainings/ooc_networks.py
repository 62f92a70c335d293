"""Small networks, each for something that a memory manager can get wrong.

`NETWORKS` maps a name to a function without arguments; it returns a model, which maps a batch to a loss, and a function
that makes the batch from a random state. Batches of other sizes come from its keyword `size`.
"""
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np


def _images(random, size=4, channels=3, side=12, classes=5):
    return (random.uniform(-1, 1, (size, channels, side, side)).astype(np.float32),
            random.randint(0, classes, size).astype(np.int32))


class Residual(chainer.Chain):
    """Batch normalisation and shortcuts: maps that several functions retain."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv0 = L.Convolution2D(3, 6, 3, pad=1, nobias=True)
            self.bn0 = L.BatchNormalization(6)
            self.conv1 = L.Convolution2D(6, 6, 3, pad=1, nobias=True)
            self.bn1 = L.BatchNormalization(6)
            self.conv2 = L.Convolution2D(6, 6, 3, pad=1, nobias=True)
            self.bn2 = L.BatchNormalization(6)
            self.fc = L.Linear(6, 5)

    def __call__(self, x, t):
        h = F.relu(self.bn0(self.conv0(x)))
        h = F.relu(h + self.bn1(self.conv1(h)))
        h = F.relu(h + self.bn2(self.conv2(h)))
        h = F.average_pooling_2d(h, h.shape[2:])
        return F.softmax_cross_entropy(self.fc(h), t, enable_double_backprop=True)


class Hidden(chainer.Chain):
    """Functions that hide arrays on themselves: masks, indexes, scales."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv0 = L.Convolution2D(3, 8, 3, pad=1)
            self.conv1 = L.Convolution2D(8, 8, 3, pad=1)
            self.fc = L.Linear(None, 5)

    def __call__(self, x, t):
        h = F.local_response_normalization(F.relu(self.conv0(x)))
        h = F.max_pooling_2d(h, 2)
        h = F.dropout(F.leaky_relu(self.conv1(h)), 0.4)
        h = F.max_pooling_2d(F.dropout(h, 0.2), 3, stride=2)
        return F.softmax_cross_entropy(self.fc(h), t)


class Views(chainer.Chain):
    """Arrays that share storage in every way that Chainer has (P4)."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(3, 6, 3, pad=1)
            self.fc0 = L.Linear(None, 12)
            self.fc1 = L.Linear(None, 5)

    def __call__(self, x, t):
        h = F.sigmoid(self.conv(x))
        up, down = F.split_axis(h, 2, axis=1)
        turned = F.transpose(up, (0, 2, 3, 1))
        flat = F.reshape(turned, (turned.shape[0], -1))
        wide = F.broadcast_to(F.expand_dims(flat[:, :7], 1), (flat.shape[0], 3, 7))
        flipped = F.flip(F.swapaxes(down, 2, 3), 3)
        h = F.concat([F.flatten(F.tanh(wide)), F.flatten(F.exp(flipped) * up), F.flatten(F.identity(h)[:, ::2])], 0)
        h = F.reshape(h, (x.shape[0], -1))
        h = F.tanh(self.fc0(h))
        parts = F.split_axis(h, [3, 7], axis=1)
        h = F.concat((parts[2], parts[0] * 2, F.squeeze(F.expand_dims(parts[1], 2), 2)), axis=1)
        return F.softmax_cross_entropy(self.fc1(h), t)


class SumAndProduct(chainer.FunctionNode):
    """Two outputs, both inputs and the second output retained."""

    def forward(self, inputs):
        a, b = inputs
        self.retain_inputs((0, 1))
        self.retain_outputs((1,))
        return a + b, a * np.tanh(b)

    def backward(self, indexes, grads):
        a, b = self.get_retained_inputs()
        product, = self.get_retained_outputs()
        first, second = (0 if each is None else each for each in grads)
        tanh = F.tanh(b)
        return first + second * tanh, first + second * a * (1 - tanh * tanh) + 0 * product


class Several(chainer.Chain):
    """Functions with several outputs, some of them never used."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.fc0 = L.Linear(20, 16)
            self.lstm = L.StatelessLSTM(16, 16)
            self.fc1 = L.Linear(16, 5)

    def __call__(self, x, t):
        h = F.tanh(self.fc0(x))
        total, product = SumAndProduct().apply((h, h * 0.5))
        _, product2 = SumAndProduct().apply((product, total))
        total2, _ = SumAndProduct().apply((product2, h))
        cell, out = self.lstm(None, None, total2)
        cell, out = self.lstm(cell, out, product2)
        mean, deviation = F.split_axis(F.stack([out, cell]), 2, 0)
        return F.softmax_cross_entropy(self.fc1(F.squeeze(mean, 0) + F.squeeze(deviation, 0)), t)


class Choosy(chainer.FunctionNode):
    """Retains its input if `by_input` says so of its number of rows, else its output."""

    def __init__(self, by_input):
        self.choose = by_input

    def forward(self, inputs):
        self.by_input = self.choose(len(inputs[0]))
        if self.by_input:
            self.retain_inputs((0,))
        else:
            self.retain_inputs(())
            self.retain_outputs((0,))
        return np.exp(inputs[0]),

    def backward(self, indexes, gradients):
        y = F.exp(self.get_retained_inputs()[0]) if self.by_input else self.get_retained_outputs()[0]
        return gradients[0] * y,


class OldStyle(chainer.Function):
    """A function of Chainer's first form, which retains its inputs and hides an array."""

    def forward(self, inputs):
        x, y = inputs
        self.sign = np.where(x > 0, x.dtype.type(1), x.dtype.type(-0.5))
        return x * self.sign * y,

    def backward(self, inputs, grads):
        x, y = inputs
        return grads[0] * self.sign * y, grads[0] * self.sign * x


class OldStyleOutputs(chainer.Function):
    """A function of Chainer's first form that retains its output and no input."""

    def forward(self, inputs):
        self.retain_inputs(())
        self.retain_outputs((0,))
        return np.tanh(inputs[0]),

    def backward(self, inputs, grads):
        y, = self.output_data
        assert inputs[0] is None
        return grads[0] * (1 - y * y),


class Old(chainer.Chain):
    """chainer.Function, old style."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.fc0 = L.Linear(20, 16)
            self.fc1 = L.Linear(16, 5)

    def __call__(self, x, t):
        h = OldStyleOutputs()(self.fc0(x))
        h = OldStyle()(h, F.sigmoid(h))
        return F.softmax_cross_entropy(self.fc1(OldStyle()(h, h)), t)


class Reused(chainer.Chain):
    """One map read over and over, by links that are used twice."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.fc0 = L.Linear(20, 16)
            self.fc1 = L.Linear(16, 16)
            self.fc2 = L.Linear(16, 5)

    def __call__(self, x, t):
        first = h = F.relu(self.fc0(x))
        for _ in range(4):
            h = F.tanh(self.fc1(h)) * first + F.sigmoid(h) * F.tanh(h)
        h = F.forget(lambda y: F.sigmoid(self.fc1(y)) * y, h) + h @ F.transpose(self.fc1.W)
        return F.softmax_cross_entropy(self.fc2(F.maximum(h, first)), t) + 0.01 * F.sum(first ** 2)


class Inception(chainer.Chain):
    """Branches that are concatenated, with an auxiliary loss."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.stem = L.Convolution2D(3, 8, 3, pad=1)
            self.a = L.Convolution2D(8, 4, 1)
            self.b0 = L.Convolution2D(8, 4, 1)
            self.b1 = L.Convolution2D(4, 4, 3, pad=1)
            self.c = L.Convolution2D(8, 4, 5, pad=2)
            self.d = L.Convolution2D(8, 4, 1)
            self.aux = L.Linear(None, 5)
            self.fc = L.Linear(None, 5)

    def __call__(self, x, t):
        h = F.max_pooling_2d(F.relu(self.stem(x)), 3, stride=2, pad=1)
        h = F.local_response_normalization(h, n=5)
        h = F.relu(F.concat((
            self.a(h), self.b1(F.relu(self.b0(h))), self.c(h),
            self.d(F.max_pooling_2d(h, 3, stride=1, pad=1))), axis=1))
        auxiliary = F.softmax_cross_entropy(self.aux(F.average_pooling_2d(h, 3)), t)
        h = F.dropout(F.average_pooling_2d(h, h.shape[2:]), 0.3)
        return 0.3 * auxiliary + F.softmax_cross_entropy(self.fc(h), t)


class Mixed(chainer.Chain):
    """Half precision, integers and booleans among the maps; arrays of one element and of none."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.embed = L.EmbedID(11, 8)
            self.fc = L.Linear(8, 5)
            self.bn = L.BatchNormalization(8)

    def __call__(self, words, t):
        h = self.bn(F.sum(self.embed(words), axis=1))
        half = F.cast(F.cast(h, np.float16) * np.float16(1.5), np.float32)
        h = F.where(words[:, :1] > 5, F.broadcast_to(F.max(half), h.shape), F.clip(half, -1.0, 1.0))
        nothing = F.sum(F.relu(h[:0]))
        return F.softmax_cross_entropy(self.fc(h), t) + nothing


def _vectors(random, size=6):
    return random.uniform(-1, 1, (size, 20)).astype(np.float32), random.randint(0, 5, size).astype(np.int32)


def _words(random, size=6):
    return random.randint(0, 11, (size, 7)).astype(np.int32), random.randint(0, 5, size).astype(np.int32)


NETWORKS = {
    'residual': lambda: (Residual(), _images),
    'hidden': lambda: (Hidden(), _images),
    'views': lambda: (Views(), _images),
    'several': lambda: (Several(), _vectors),
    'old': lambda: (Old(), _vectors),
    'reused': lambda: (Reused(), _vectors),
    'inception': lambda: (Inception(), _images),
    'mixed': lambda: (Mixed(), _words),
}
