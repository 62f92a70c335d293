"""A network that shows its maps to the program, and its training."""
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np


class Kept(chainer.Chain):
    """Keeps its intermediate Variables, as a program does that shows or reuses them."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.fc0 = L.Linear(30, 40)
            self.fc1 = L.Linear(40, 50)
            self.fc2 = L.Linear(50, 5)

    def __call__(self, x, t, after=lambda name, variable: None):
        self.h = {}
        for name, compute in (
                ('a', lambda: F.tanh(self.fc0(x))), ('b', lambda: F.sigmoid(self.fc1(self.h['a']))),
                ('c', lambda: F.dropout(self.h['b'], 0.3)), ('d', lambda: F.reshape(self.h['c'], (-1, 5, 10))),
                ('e', lambda: F.swapaxes(self.h['d'], 1, 2)), ('f', lambda: F.exp(self.h['e']) * self.h['e'])):
            self.h[name] = compute()
            after(name, self.h[name])
        return F.softmax_cross_entropy(self.fc2(F.reshape(self.h['f'], (len(x), -1))), t)


def batch(number=0):
    random = np.random.RandomState(number)
    return random.uniform(-1, 1, (8, 30)).astype(np.float32), random.randint(0, 5, 8).astype(np.int32)


def make():
    np.random.seed(3)
    return Kept()


def steps(model, count, after=lambda name, variable: None):
    """Plain gradient descent; gives the losses."""
    losses = []
    for number in range(count):
        loss = model(*batch(number), after)
        model.cleargrads()
        loss.backward()
        for parameter in model.params():
            parameter.array -= 0.1 * parameter.grad
        losses.append(loss.array.copy())
    return losses
