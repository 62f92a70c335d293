"""Calls that belong to no graph which a backward pass will run: they run as they are.

What the program may write to by them is noticed all the same (P1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from chainer_ooc.backends.arrays import is_array
from chainer_ooc.execute.storage.account import find
from chainer_ooc.execute.storage.computing import run_as
from chainer_ooc.execute.storage.slots import array_in_slot
from chainer_ooc.execute.storage.storage import Storage


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
