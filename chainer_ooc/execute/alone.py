"""Calls that belong to no graph which a backward pass will run: they run as they are.

What the program may write to by them is noticed all the same (P1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from chainer_ooc.backends.arrays import is_array
from chainer_ooc.execute.functions.prototype import may_change_maps, may_write_inputs
from chainer_ooc.execute.memory.residency import Residency
from chainer_ooc.execute.on_file import ParametersOnFile
from chainer_ooc.execute.recording.parameters import Parameters
from chainer_ooc.execute.storage.account import find
from chainer_ooc.execute.storage.computing import forget_computations, run_as
from chainer_ooc.execute.storage.reentry import LOCK
from chainer_ooc.execute.storage.slots import array_in_slot
from chainer_ooc.execute.storage.storage import Storage


class Evaluations:
    """Runs a session's forward calls that are within no other, such as in a validation.

    They allocate without `make_room`. `around` goes around each computation.
    """

    def __init__(self, memory: Residency, parameters: Parameters, on_file: ParametersOnFile | None,
                 around: AbstractContextManager[None]):
        self._memory, self._parameters, self._on_file, self._around = memory, parameters, on_file, around

    def run(self, function: Any, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Runs one of them."""
        with LOCK:
            self._memory.leave_room()
            self._parameters.expected.see(inputs)
            if self._on_file is not None:
                self._on_file.before_call(inputs)
        try:
            with self._around:
                outputs = run_alone(function, inputs, may_write_inputs(function) or may_change_maps(function))
            if self._on_file is not None:
                with LOCK:
                    self._on_file.after_call(inputs)
        except BaseException:
            forget_computations()
            raise
        open_all(outputs)  # they may lie on what was given
        return outputs


def run_alone(function: Any, inputs: Sequence[Any], may_write: bool) -> tuple[Any, ...]:
    """Runs a forward call as it is, such as one that a backward applies; it may write to what it is given."""
    if may_write:
        open_all(inputs)
    outputs: tuple[Any, ...] = run_as(may_write, function._apply, inputs)
    if function.inputs is not None:
        for storage in _storages(inputs):
            storage.watch()  # nodes may have got arrays
    return outputs


def open_all(given: Sequence[Any]) -> None:
    """Notes that the program may write to what these Variables or arrays lie on."""
    for storage in _storages(given):
        storage.memory.open(storage)


def _storages(given: Sequence[Any]) -> Iterator[Storage]:
    """The storages under those of these Variables or arrays that are in near memory."""
    for each in given:
        array = array_in_slot(each)
        storage = find(array) if is_array(array) else None
        if storage is not None:
            yield storage
