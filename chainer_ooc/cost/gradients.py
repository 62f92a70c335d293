"""What gradients take and move in backward, worked out from the graph: for an iteration that ran on no such device.

Chainer holds the gradient of an array from the first step that gives a part of it until the step of the function that
made the array. A second part is added at once, into a new array::

    forward      x ---> f ---> a ---> Add ---> b            f reads x, and so does Add
    step of Add  the gradient of a is that of b, and so is the first part of x's: nothing is allocated
    step of f    allocates the second part of x's, and the sum; then that of b goes

Other frameworks, such as Neural Network Libraries, have their kernels add a second part to the first where it lies.
Gradients of parameters are made by the steps and stay. Source: `chainer._backprop_utils`. Left out: a parameter that
two functions share gets two gradients here, of which Chainer keeps the sum.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from chainer_ooc.errors import OocError
from chainer_ooc.trace import ArrayForm, Call, Trace

#: Functions whose gradient is the one that they get, or a view of it.
PASSING = frozenset({'Add', 'MultiAdd', 'Reshape', 'Concat', 'Transpose', 'Squeeze', 'ExpandDims', 'Flatten'})


@dataclass(frozen=True)
class Gradients:
    """What each step has to do with gradients, in bytes; one entry for each step.

    Attributes:
        live_bytes: of all gradients when the step begins, those of parameters among them.
        made_bytes: what the step allocates and hands on; sums and what they are made of count both.
        moved_bytes: what of them the step reads and writes: outputs' gradients, what it makes, and additions.
    """

    live_bytes: tuple[int, ...]
    made_bytes: tuple[int, ...]
    moved_bytes: tuple[int, ...]


def arguments_of(call: Call) -> tuple[ArrayForm, ...]:
    """The arrays that a call reads, parameters among them, in order.

    Raises:
        OocError: the trace does not have them.
    """
    if len(call.arguments) != len(call.inputs):
        raise OocError(f'the trace has {len(call.arguments)} shapes for the {len(call.inputs)} arrays that call '
                       f'{call.index} ({call.label}) reads, so that nothing can be worked out; record it again')
    return call.arguments


def parameter_bytes(call: Call) -> int:
    """Of the arrays that a call reads and that are no feature maps."""
    return sum(array.nbytes for map_id, array in zip(call.inputs, arguments_of(call), strict=True) if map_id < 0)


def needs_gradient(trace: Trace, map_id: int) -> bool:
    """Whether backward works out the gradient of a map: not of the batch, nor of labels or indexes."""
    return map_id >= 0 and trace.maps[map_id].producer is not None and trace.maps[map_id].dtype.startswith('float')


def follow_gradients(trace: Trace, adds_in_place: bool = False) -> Gradients:
    """Passes over the steps of backward.

    If `adds_in_place`, a second part of a gradient is added to the first where it lies, unless other maps share that.
    """
    walk = _Walk(trace, adds_in_place)
    live, made, moved = [], [], []
    for step in trace.steps:
        live.append(walk.live_bytes)
        walk.made_bytes = walk.moved_bytes = 0
        if step.call >= 0:
            walk.through(trace.calls[step.call])
        made.append(walk.made_bytes)
        moved.append(walk.moved_bytes)
    return Gradients(tuple(live), tuple(made), tuple(moved))


class _Walk:
    """The gradients that live. One block may be the gradient, or a part of it, of several maps."""

    def __init__(self, trace: Trace, adds_in_place: bool):
        self.trace, self.adds_in_place = trace, adds_in_place
        self.blocks: dict[int, frozenset[int]] = {}  # of each map
        self.sizes: list[int] = []
        self.holders: Counter[int] = Counter()
        self.live_bytes = self.made_bytes = self.moved_bytes = 0

    def through(self, call: Call) -> None:
        """One step: takes the gradients of outputs, gives those of inputs and parameters."""
        taken = [self.blocks.pop(each) for each in dict.fromkeys(call.outputs) if each in self.blocks]
        incoming = frozenset().union(*taken)
        inputs = [each for each in dict.fromkeys(call.inputs) if needs_gradient(self.trace, each)]
        passes = call.label in PASSING
        if not passes:
            self.moved_bytes += sum(self.sizes[block] for block in incoming)
        for map_id in inputs:
            if self.adds_in_place and map_id in self.blocks and not passes:
                self._add(map_id)
            else:
                self._give(map_id, incoming if passes and incoming else self._allocate(map_id))
        gradient_bytes = parameter_bytes(call)
        self.made_bytes += gradient_bytes
        self.moved_bytes += gradient_bytes
        self.live_bytes += gradient_bytes
        for blocks in taken:
            self._free(blocks)

    def _allocate(self, map_id: int) -> frozenset[int]:
        nbytes = self.trace.maps[map_id].nbytes
        self.sizes.append(nbytes)
        self.made_bytes += nbytes
        self.moved_bytes += nbytes
        return frozenset({len(self.sizes) - 1})

    def _add(self, map_id: int) -> None:
        """A second part of a map's gradient, by a kernel that adds to the first."""
        self.moved_bytes += 2 * self.trace.maps[map_id].nbytes
        before = self.blocks[map_id]
        if any(self.holders[block] > 1 for block in before):
            self.moved_bytes -= self.trace.maps[map_id].nbytes
            del self.blocks[map_id]
            self._give(map_id, self._allocate(map_id))
            self._free(before)

    def _give(self, map_id: int, blocks: frozenset[int]) -> None:
        """A part of a map's gradient; if there is one already, their sum takes the place of both."""
        before = self.blocks.pop(map_id, None)
        if before is not None:
            self.moved_bytes += 2 * self.trace.maps[map_id].nbytes
            blocks = self._allocate(map_id)
            self._free(before)
        self.blocks[map_id] = blocks
        for block in blocks:
            self.holders[block] += 1
            if self.holders[block] == 1:
                self.live_bytes += self.sizes[block]

    def _free(self, blocks: frozenset[int]) -> None:
        for block in blocks:
            self.holders[block] -= 1
            if not self.holders[block]:
                self.live_bytes -= self.sizes[block]
