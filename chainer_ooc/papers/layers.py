"""A network as SuperNeurons sees it: layers, the tensors that they own, and which backward step needs which.

SuperNeurons' memory figures follow from the layers alone, without times, so that they can be had exactly::

    forward    conv1 ---> relu1 ---> lrn1 ---> pool1 ---> conv2      each layer owns its output
                 |          |          |         |
    backward   d conv1 <------------------ d lrn1 <-- d pool1        lrn1 and relu1 write over the gradient
                                                                     that they read, so they own none

Which backward step needs what is as cuDNN asks for it. Counted are outputs and their gradients for a whole batch;
parameters, the images, the masks of dropout and the convolutions' workspaces are not, as in the paper.

The text says of a tensor only which layers exist. What it leaves open is taken from its authors' public release, and
confirmed by the figures: activations and local response normalisation write their gradient in place, softmax's output
is its own gradient, the first convolution does compute a gradient for the images, a fork copies its input for each
reader, and a join hands its gradient on to one of its inputs.

Source: SuperNeurons, sections 3.1, 3.2 and 4.1.1; the layers of its public release.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

#: SuperNeurons' MB in its memory figures.
MEGABYTE = 2 ** 20
#: All figures are for single precision.
NUMBER_BYTES = 4

#: Layers whose outputs are never computed again (3.4, and the public release for the structural ones).
CHECKPOINTS = frozenset({'conv', 'fc', 'softmax', 'fork', 'join', 'concat'})
#: Layers that move tensors and compute nothing of their own.
STRUCTURE = frozenset({'fork', 'join', 'concat'})
#: Layers whose gradient takes the place of the one that they read.
_IN_PLACE = frozenset({'act', 'lrn'})
_READS_INPUT = frozenset({'conv', 'fc', 'act', 'lrn', 'pool', 'bn', 'softmax'})
_READS_OUTPUT = frozenset({'act', 'lrn', 'pool', 'softmax'})

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Layer:
    """One layer.

    Attributes:
        name: such as 'conv1'.
        kind: 'data', 'conv', 'fc', 'act', 'lrn', 'pool', 'bn', 'dropout', 'softmax', 'fork', 'join' or 'concat'.
        shape: of its output for one image: channels, height, width.
        inputs: positions of the layers that it reads.
        weights: how many numbers it learns.
    """

    name: str
    kind: str
    shape: Shape
    inputs: tuple[int, ...]
    weights: int = 0

    @property
    def numbers(self) -> int:
        """How many numbers its output has for one image."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Tensor:
    """An output or a gradient.

    Attributes:
        layer: position of the layer that makes it, in forward for an output and in backward for a gradient.
        reader: position of the layer between which and `layer` it lies; -1 for an output that all readers share.
        is_gradient: whether it is made in backward.
        numbers: how many it has for one image.
    """

    layer: int
    reader: int
    is_gradient: bool
    numbers: int


@dataclass(frozen=True)
class Network:
    """Layers in the order in which they run.

    Attributes:
        name: such as 'AlexNet'.
        layers: the first is the data layer.
    """

    name: str
    layers: tuple[Layer, ...]

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For each layer, the positions of those that read it."""
        found: list[list[int]] = [[] for _ in self.layers]
        for position, layer in enumerate(self.layers):
            for each in layer.inputs:
                found[each].append(position)
        return tuple(map(tuple, found))

    @cached_property
    def weights(self) -> int:
        """How many numbers the network learns."""
        return sum(each.weights for each in self.layers)

    def output(self, position: int, reader: int) -> Tensor:
        """What a layer hands to a reader: a fork has a copy for each."""
        layer = self.layers[position]
        return Tensor(position, reader if layer.kind == 'fork' else -1, False, layer.numbers)

    def outputs(self, position: int) -> tuple[Tensor, ...]:
        """All that a layer makes in forward; what the images are kept in is not counted."""
        if self.layers[position].kind == 'data':
            return ()
        return tuple(dict.fromkeys(self.output(position, each) for each in self.readers[position] or (-1,)))

    def read(self, position: int) -> tuple[Tensor, ...]:
        """What a layer reads in forward."""
        return tuple(self.output(each, position) for each in self.layers[position].inputs
                     if self.layers[each].kind != 'data')

    @cached_property
    def gradients(self) -> dict[tuple[int, int], Tensor]:
        """The gradient between a layer and each of its readers, by the two positions, in backward order."""
        found: dict[tuple[int, int], Tensor] = {}
        for position in reversed(range(len(self.layers))):
            for at, each in enumerate(self.layers[position].inputs):
                found[each, position] = self._gradient(position, at, found)
        return found

    def _gradient(self, position: int, at: int, later: dict[tuple[int, int], Tensor]) -> Tensor:
        """What a layer writes for its input number `at`, given the gradients between all layers after it."""
        layer = self.layers[position]
        if layer.kind == 'softmax':
            return self.output(position, -1)
        if layer.kind in _IN_PLACE or layer.kind == 'fork' or (layer.kind == 'join' and not at):
            return later[position, self.readers[position][0]]
        before = layer.inputs[at]
        return Tensor(position, before, True, self.layers[before].numbers)

    def needed(self, position: int) -> tuple[Tensor, ...]:
        """What a layer's backward step has to have near: what it reads and what it writes."""
        layer = self.layers[position]
        found: list[Tensor] = []
        if layer.kind in _READS_INPUT:
            found += self.read(position)
        if layer.kind in _READS_OUTPUT:
            found += self.outputs(position)
        found += (self.gradients[position, each] for each in self.readers[position])
        found += (self.gradients[each, position] for each in layer.inputs)
        return tuple(dict.fromkeys(found))

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors: the outputs in forward order, then the gradients in backward order."""
        every = range(len(self.layers))
        return tuple(dict.fromkeys([*(each for at in every for each in self.outputs(at)), *self.gradients.values()]))

    def layer_numbers(self, position: int) -> int:
        """The largest that a layer itself may need: what it reads and makes, and the gradients of these (l of 3.4).

        Gradients that are written in place count as if they were not, which is what makes the largest layer of AlexNet
        the 886 MB that the paper says. Structural layers compute nothing and have no such bound.
        """
        layer = self.layers[position]
        if layer.kind == 'data' or layer.kind in STRUCTURE:
            return 0
        return 2 * (layer.numbers + sum(self.layers[each].numbers for each in layer.inputs))

    @cached_property
    def largest_layer(self) -> int:
        """Position of the largest layer, the last in forward of several."""
        return max(range(len(self.layers)), key=lambda at: (self.layer_numbers(at), at))

    def checkpoint_before(self, position: int) -> int:
        """Position of the checkpoint with which the segment of a cheap layer begins."""
        at = self.layers[position].inputs[0]
        while self.layers[at].kind not in CHECKPOINTS and self.layers[at].kind != 'data':
            at = self.layers[at].inputs[0]
        return at

    @cached_property
    def segments(self) -> dict[int, tuple[int, ...]]:
        """The cheap layers of each segment in forward order, by the position of the last one."""
        found: dict[int, tuple[int, ...]] = {}
        for position, layer in enumerate(self.layers):
            if layer.kind not in CHECKPOINTS and layer.kind != 'data':
                found[position] = (*found.pop(layer.inputs[0], ()), position)
        return found


def nbytes(tensors: Iterable[Tensor], batch: int) -> int:
    """Bytes of tensors for a batch."""
    return sum(each.numbers for each in tensors) * batch * NUMBER_BYTES
