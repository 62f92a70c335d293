"""The table of programs, and what many of them are made of."""
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from support import networks

PROGRAMS = {}


def program(function):
    """Enters a function of a `Run` into the table; its module's last word is its group."""
    group = function.__module__.rpartition('.')[2].removeprefix('programs_')
    PROGRAMS[f'{group}-{function.__name__}'] = function
    return function


class Perceptron(networks.Perceptron):
    """Three layers, whose maps (batch of 512: 131 to 197 kB) are larger than its parameters (46 kB)."""

    def __init__(self, units=96, outputs=10, inputs=32):
        super().__init__(inputs, units, units // 2, outputs)


class Convolutions(chainer.Chain):
    """Two convolutions with batch normalization and pooling; maps of a batch of 16 of 3 x 16 x 16: 49 to 131 kB."""

    def __init__(self, outputs=10):
        super().__init__()
        with self.init_scope():
            self.c1 = L.Convolution2D(3, 8, 3, pad=1, nobias=True)
            self.n1 = L.BatchNormalization(8)
            self.c2 = L.Convolution2D(8, 16, 3, pad=1)
            self.n2 = L.BatchNormalization(16)
            self.fc = L.Linear(16 * 4 * 4, outputs)

    def forward(self, x):
        h = F.max_pooling_2d(F.relu(self.n1(self.c1(x))), 2)
        h = F.average_pooling_2d(F.leaky_relu(self.n2(self.c2(h))), 2)
        return self.fc(h)


def vectors(number, batch=512, size=32, classes=10):
    """The batch of that number: float32 vectors and their labels."""
    stream = np.random.RandomState(1000 + number)
    return (stream.uniform(-1, 1, (batch, size)).astype(np.float32),
            stream.randint(0, classes, batch).astype(np.int32))


def images(number, batch=16, size=16, classes=10):
    """The batch of that number: float32 images and their labels."""
    stream = np.random.RandomState(2000 + number)
    return (stream.uniform(-1, 1, (batch, 3, size, size)).astype(np.float32),
            stream.randint(0, classes, batch).astype(np.int32))


def setup(model, optimizer=None, *hooks):
    """An optimizer for a model; momentum unless told otherwise."""
    optimizer = optimizer or chainer.optimizers.MomentumSGD(lr=0.05)
    optimizer.setup(model)
    for hook in hooks:
        optimizer.add_hook(hook)
    return optimizer


def learn(run, model, optimizer, loss, note=True):
    """Backward, update, and what came of it."""
    model.cleargrads()
    loss.backward()
    optimizer.update()
    run.note('loss', loss)
    if note:
        run.note_link(model)
    run.ended()


def train_on(run, model, optimizer, x, t):
    """One plain iteration."""
    learn(run, model, optimizer, F.softmax_cross_entropy(model(x), t))


def train(run, model, optimizer, count, batch=vectors, first=0):
    """Some plain iterations."""
    for number in range(first, first + count):
        train_on(run, model, optimizer, *batch(number))
    return model
