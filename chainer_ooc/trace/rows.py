"""The rows of a trace: feature maps, forward calls, and steps of backward.

Values alone. What a position is, and what holds between rows, stands in `model` and in `invariants`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class FeatureMap:
    """One block of storage that a call reads, makes or hides.

    Attributes:
        id: position in `Trace.maps`.
        nbytes: size of the block.
        producer: index of the call that made it, or None if it came from outside (the batch).
        hidden: a function keeps it as an attribute of its own, out of Chainer's sight.
        retained: some function keeps it for backward.
        foreign: at its last forward use the program still held the array itself, so that no swap-out frees it.
        last_forward_use: index of the last call that makes or reads it.
        backward_uses: positions of the steps that read it, ascending.
        shape, dtype: of the array through which it was first seen.
        last_alive: the last position at which a map that no function retains was in near memory: a model's local
            variables may hold it longer than its uses last. -1 if that is not known.
        shown: a Variable of the program still shows it when backward begins, and may be read when parameters have
            changed.
        written: its producer may not give it again: a function that may write to its inputs has read it, or the program
            has in forward, or has what it was made from.
        reused: it was read after the uses that are known here: by a backward pass of a later iteration, or from the
            graph by the program.
        held: something else held the array after its last use in backward, such as a function of second order, so that
            it stays in near memory.
        last_held: the last position in forward at which something else, such as a local variable, held the array after
            its last use there, so that it could not leave. -1 if there was none.
    """

    id: int
    nbytes: int
    producer: int | None
    hidden: bool
    retained: bool
    foreign: bool
    last_forward_use: int
    backward_uses: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    last_alive: int = -1
    shown: bool = False
    written: bool = False
    reused: bool = False
    held: bool = False
    last_held: int = -1

    @property
    def leaves_at(self) -> int:
        """The position in forward after which it can leave."""
        return max(self.last_forward_use, self.last_held)


class ArrayForm(NamedTuple):
    """What an array is, its bytes aside. A tuple, since each call of each iteration has some, which are compared.

    Attributes:
        dtype: as NumPy writes it, byte order first: ``'<f4'``.
        shape: its extents.
    """

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all its elements."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def place(path: str | None, line: str | None) -> str:
    """A place in a model, in words: ``' at /stage2/0 in resnet.py:57'``, or as much of it as is known.

    The model's own code, outside of the links in it, has the path ``/``, which says nothing.
    """
    return (f' at {path}' if path and path != '/' else '') + (f' in {line}' if line else '')


@dataclass(frozen=True)
class Call:
    """One forward call of the model.

    Attributes:
        index: its position.
        label: the name of the function's class.
        inputs, outputs, hidden: ids of feature maps, -1 for what has no movable storage (parameters, scalars of
            Python). An id may appear twice, or among inputs and outputs, where views share storage.
        seconds: duration of the forward computation.
        peak_bytes: what the call allocates at its highest, its outputs included, above what was there before.
        arguments, results: forms of the inputs and of the outputs, in order.
        repeatable: it can run again, with the same result and without a side effect (P7).
        other_bytes: what else lives when it starts and was not there before the iteration, beside feature maps: what
            the program, or a function out of Chainer's sight, has allocated in forward.
        path: of the link within which it is made, as ``namedlinks`` has it: ``'/predictor/res2/a/conv1'``; '' if it is
            made outside of links, or that is not known. For people to read, as `line` is: equal graphs may differ in
            both.
        line: of the model's code that makes it: ``'model.py:31'``; '' if that is not known.
    """

    index: int
    label: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    hidden: tuple[int, ...]
    seconds: float
    peak_bytes: int
    arguments: tuple[ArrayForm, ...] = ()
    results: tuple[ArrayForm, ...] = ()
    repeatable: bool = False
    other_bytes: int = 0
    path: str = ''
    line: str = ''

    @property
    def place(self) -> str:
        """Where in the model it is made, to go behind its name: ``', at /predictor/conv1 in model.py:31'``, or ''."""
        found = place(self.path, self.line)
        return f',{found}' if found else ''

    @property
    def signature(self) -> tuple[object, ...]:
        """What tells this call from another; where it is made does not."""
        return self.label, self.inputs, self.outputs, self.hidden, self.arguments, self.results


@dataclass(frozen=True)
class Step:
    """The backward computation of one call.

    Attributes:
        position: F + its number.
        call: index of the call, or -1 for a function that the forward pass did not see.
        maps: ids of the feature maps that it reads.
        seconds: duration.
        peak_bytes: what it allocates at its highest, above what was there before.
        other_bytes: what else lives when it starts, beside feature maps, parameters and optimizer state: the gradients
            so far, those from before the iteration among them where they still stand. Gradients of parameters that
            the graph does not use stand all the time, and are not among them.
        label: class of a function that the forward pass did not see; '' for that of a call, and where it is not known.
    """

    position: int
    call: int
    maps: tuple[int, ...]
    seconds: float
    peak_bytes: int
    other_bytes: int
    label: str = ''

    @property
    def signature(self) -> tuple[int, str]:
        """What tells this step from another."""
        return self.call, self.label
