"""Small networks that tests of several folders train."""
import chainer
import chainer.functions as F
import chainer.links as L


class Perceptron(chainer.Chain):
    """Three linear links with an activation between each two. No frame holds a map longer than its use.

    Args:
        units: of the batch, of the two hidden layers and of the output.
        activations: functions of a variable.
    """

    def __init__(self, *units, activations=(F.relu, F.relu)):
        super().__init__()
        inputs, first, second, outputs = units
        with self.init_scope():
            self.l1, self.l2, self.l3 = L.Linear(inputs, first), L.Linear(first, second), L.Linear(second, outputs)
        self.activations = activations

    def forward(self, x):
        inner, outer = self.activations
        return self.l3(outer(self.l2(inner(self.l1(x)))))

    @property
    def nbytes(self):
        """Bytes of the parameters."""
        return sum(each.array.nbytes for each in self.params())
