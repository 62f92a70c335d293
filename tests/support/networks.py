"""Small networks that tests of several folders train."""
import itertools

import chainer
import chainer.functions as F
import chainer.links as L


class Perceptron(chainer.Chain):
    """Linear links `l1`, `l2` and so on, with an activation after each but the last.

    Args:
        widths: numbers of units, the batch's first.
        activations: one less than there are links.
    """

    def __init__(self, *widths, activations=(F.relu, F.relu)):
        super().__init__()
        with self.init_scope():
            for number, (inputs, outputs) in enumerate(itertools.pairwise(widths), 1):
                setattr(self, f'l{number}', L.Linear(inputs, outputs))
        self.activations = activations

    def forward(self, x):
        h = self.l1(x)
        for number, activation in enumerate(self.activations, 2):
            h = self[f'l{number}'](activation(h))
        return h

    @property
    def nbytes(self):
        """Bytes of the parameters."""
        return sum(each.array.nbytes for each in self.params())
