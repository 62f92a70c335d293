"""Which tensors are near at each step of an iteration, layer by layer, and what runs again.

The four ways of section 4.1.1, each on top of the one before::

    one allocation each    every tensor has its own memory; no walk is needed
    liveness analysis      a tensor goes after the last step that needs it
    offloading             the outputs of convolutions go once forward has read them, and come back
    recomputation          those of cheap layers go too and are made again; those of all checkpoints leave

An output that has left comes back for the backward of the layer that ends its segment, which is when SuperNeurons
prefetches, or when a step needs it. A chain of recomputations runs before its step's gradient is allocated: only so do
AlexNet's recomputations stay within the largest layer. A chain is run once for its segment, and what it makes stays
(speed-centric), or for each step again, when only what the last step needed is still there (memory-centric)::

    conv1 -> relu1 -> lrn1 -> pool1 -> conv2        backward of   conv2             pool1       lrn1    relu1
                                    speed-centric: 3 again        relu lrn pool     -           -       -
                                    memory-centric: 6 again       relu lrn pool     relu lrn    relu    -

Left out: that transfers take time, the LRU cache, and the workspaces of convolutions.

Source: SuperNeurons, sections 3.2 to 3.4 and 4.1.1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chainer_ooc.papers.layers import CHECKPOINTS, Network, Tensor


@dataclass(frozen=True)
class Moment:
    """What is near at a moment of a step.

    Attributes:
        name: of the step, such as 'backward of pool5', also while a chain of recomputations runs for it.
        tensors: how many.
        numbers: how many these hold for one image.
    """

    name: str
    tensors: int
    numbers: int


@dataclass(frozen=True)
class MemoryHistory:
    """An iteration.

    Attributes:
        moments: in the order in which they come.
        recomputations: how many layers ran forward once more.
    """

    moments: tuple[Moment, ...]
    recomputations: int

    @property
    def peak(self) -> Moment:
        """The moment at which most is near, the first of several."""
        return max(self.moments, key=lambda each: each.numbers)


def liveness(network: Network) -> MemoryHistory:
    """Frees what no later step needs (3.2)."""
    return _Walk(network, frozenset()).course()


def offloading(network: Network) -> MemoryHistory:
    """Lets the outputs of convolutions leave besides (3.3.1)."""
    return _Walk(network, frozenset({'conv'})).course()


def speed_centric(network: Network) -> MemoryHistory:
    """Makes the outputs of cheap layers again, once each (3.4)."""
    return _Walk(network, CHECKPOINTS, network.segments).course()


def memory_centric(network: Network) -> MemoryHistory:
    """Makes them again for each step that needs them (3.4)."""
    return _Walk(network, CHECKPOINTS, ()).course()


def cost_aware(network: Network) -> MemoryHistory:
    """Is speed-centric in the segments that need no more than the largest layer, memory-centric in the others (3.4)."""
    bound = network.layer_numbers(network.largest_layer)
    kept = [end for end in network.segments if segment_numbers(network, end) <= bound]
    return _Walk(network, CHECKPOINTS, kept).course()


def segment_numbers(network: Network, end: int) -> int:
    """What a segment needs for one image if all of it stays: its checkpoint, its outputs and the last gradients.

    `end` is the position of its last layer.
    """
    outputs = sum(network.layers[each].numbers for each in network.segments[end])
    gradients = sum(each.numbers for each in network.needed(end) if each.is_gradient)
    return network.layers[network.checkpoint_before(end)].numbers + outputs + gradients


class _Walk:
    """One iteration, step by step.

    The outputs of layers of the kinds `leaving` leave for far memory. `kept` are the last layers of the segments in
    which recomputed outputs stay; None if nothing is recomputed.
    """

    def __init__(self, network: Network, leaving: frozenset[str], kept: Iterable[int] | None = None) -> None:
        self._network = network
        self._leaving = leaving
        self._is_recomputing = kept is not None
        self._kept = frozenset(each for end in kept or () for each in network.segments[end])
        self._near: set[Tensor] = set()
        self._moments: list[Moment] = []
        self._recomputations = 0
        self._last_read, self._last_use = _last_steps(network)

    def course(self) -> MemoryHistory:
        """Runs all steps."""
        for position in range(1, len(self._network.layers)):
            self._forward(position)
        for position in range(len(self._network.layers) - 1, 0, -1):
            self._backward(position)
        return MemoryHistory(tuple(self._moments), self._recomputations)

    def _forward(self, position: int) -> None:
        self._near.update(self._network.outputs(position))
        self._note('forward', position)
        self._near = {each for each in self._near if self._last_use[each] > position
                      and not (self._is_given_up(each) and self._last_read.get(each, len(self._last_use)) <= position)}

    def _backward(self, position: int) -> None:
        needed = self._network.needed(position)
        self._near.update(self._arriving(position, needed))
        if self._is_recomputing:
            for each in sorted(needed, key=lambda each: -each.layer):  # on the way to the deepest the others are made
                if each not in self._near and self._is_cheap(each):
                    self._make_again(each.layer, position, needed)
        self._near.update(needed)
        self._note('backward', position)
        step = 2 * len(self._network.layers) - 1 - position
        self._near = {each for each in self._near
                      if self._last_use[each] > step and not (self._is_passing(each) and each not in needed)}

    def _arriving(self, position: int, needed: tuple[Tensor, ...]) -> set[Tensor]:
        """What comes back for a backward step: what it needs, and the checkpoint from which the next segment begins."""
        network = self._network
        found = {each for each in needed if not each.is_gradient and network.layers[each.layer].kind in self._leaving}
        before = max(network.layers[position].inputs)  # of a join's branches, the last comes first in backward
        if before in network.segments:
            start = network.checkpoint_before(before)
            if network.layers[start].kind in self._leaving:
                found.add(network.output(start, network.segments[before][0]))
        return found

    def _make_again(self, position: int, asking: int, needed: tuple[Tensor, ...]) -> None:
        """Runs the chain that ends with a layer for the backward of another, as far as its outputs are not near."""
        chain = [position]
        while self._network.layers[chain[0]].inputs[0] != self._network.checkpoint_before(position):
            chain.insert(0, self._network.layers[chain[0]].inputs[0])
        for each in chain:
            if self._near.issuperset(self._network.outputs(each)):
                continue
            self._recomputations += 1
            self._near.update(self._network.outputs(each))
            self._note('backward', asking)
            self._near.difference_update(
                before for before in self._network.read(each) if self._is_passing(before) and before not in needed)

    def _is_cheap(self, tensor: Tensor) -> bool:
        return not tensor.is_gradient and self._network.layers[tensor.layer].kind not in CHECKPOINTS

    def _is_given_up(self, tensor: Tensor) -> bool:
        """Whether an output leaves or is freed after its last use in forward."""
        return self._network.layers[tensor.layer].kind in self._leaving or (
            self._is_recomputing and self._is_cheap(tensor))

    def _is_passing(self, tensor: Tensor) -> bool:
        """Whether a recomputed output stays for no step but the one that asked for it."""
        return self._is_recomputing and self._is_cheap(tensor) and tensor.layer not in self._kept

    def _note(self, direction: str, position: int) -> None:
        self._moments.append(Moment(f'{direction} of {self._network.layers[position].name}', len(self._near),
                                    sum(each.numbers for each in self._near)))


def _last_steps(network: Network) -> tuple[dict[Tensor, int], dict[Tensor, int]]:
    """The last forward step that reads each output, and the last step of all that needs each tensor."""
    reads: dict[Tensor, int] = {}
    uses: dict[Tensor, int] = {}
    for position in range(len(network.layers)):
        uses.update(dict.fromkeys(network.outputs(position), position))
        reads.update(dict.fromkeys(network.read(position), position))
    uses.update(reads)
    for position in range(len(network.layers) - 1, 0, -1):
        uses.update(dict.fromkeys(network.needed(position), 2 * len(network.layers) - 1 - position))
    return reads, uses
