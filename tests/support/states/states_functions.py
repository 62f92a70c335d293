"""Functions for the state machine's graphs: every way in which Chainer holds on to arrays, few bytes each."""
import chainer
import numpy as np
from chainer.functions.activation.sigmoid import Sigmoid
from chainer.functions.activation.tanh import Tanh
from chainer.functions.array.reshape import Reshape
from chainer.functions.array.transpose import Transpose
from chainer.functions.math.basic_math import Mul


class Gate(chainer.FunctionNode):
    """Retains its input and its output, and hides an array on itself."""

    ooc_recompute = True

    def forward(self, inputs):
        self.retain_inputs((0,))
        self.retain_outputs((0,))
        self.mask = np.where(inputs[0] > 0, np.float32(0.75), np.float32(-0.5))
        return inputs[0] * self.mask,


class Halves(chainer.FunctionNode):
    """Gives two views of one block."""

    ooc_recompute = True

    def forward(self, inputs):
        self.retain_outputs((0, 1))
        whole = np.cos(inputs[0])
        return whole[:len(whole) // 2], whole[len(whole) // 2:]


class Pair(chainer.FunctionNode):
    """Gives two blocks."""

    ooc_recompute = True

    def forward(self, inputs):
        self.retain_inputs((0,))
        self.retain_outputs((0, 1))
        return np.sin(inputs[0]), np.cos(inputs[0])


class Overwrite(chainer.FunctionNode):
    """Writes to its input, which is its output as well; it has not said that it is pure."""

    def forward(self, inputs):
        self.retain_inputs((0,))
        np.subtract(np.float32(0.25), inputs[0], out=inputs[0])
        return inputs[0],


class Unknown(chainer.FunctionNode):
    """Has not said that it may run twice."""

    def forward(self, inputs):
        self.retain_inputs((0,))
        self.retain_outputs((0,))
        return -inputs[0],


#: How each is made, and how many inputs it takes.
FUNCTIONS = [(Tanh, 1), (Sigmoid, 1), (Gate, 1), (Mul, 2), (Halves, 1), (Pair, 1), (lambda: Reshape((-1,)), 1),
             (Transpose, 1), (Overwrite, 1), (Unknown, 1)]
