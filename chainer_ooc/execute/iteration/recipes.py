"""Recipes of the calls that a plan may have run again, written around their first run.

A function is copied before it runs; while an iteration is recorded every one is, to see whether it could run again, and
no recipe is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chainer_ooc.execute.functions.prototype import Prototype, may_change_maps, prepare
from chainer_ooc.execute.functions.recipe import write_recipe
from chainer_ooc.execute.graphs.following import Following
from chainer_ooc.execute.memory.residency import Residency
from chainer_ooc.execute.recording.registration import Register
from chainer_ooc.execute.storage.account import find
from chainer_ooc.execute.storage.slots import array_of
from chainer_ooc.execute.storage.storage import Storage
from chainer_ooc.problem import COPIED_BYTES


class Recipes:
    """Writes the recipes of one iteration.

    Attributes:
        is_repeatable: the iteration is recorded, and the call in hand could run again.
    """

    def __init__(self, memory: Residency, following: Following, register: Register):
        self._memory, self._following, self._register = memory, following, register
        self._prototype: Prototype | None = None
        self.is_repeatable = False

    def prepare(self, function: Any, inputs: Sequence[Any], position: int) -> None:
        """Copies a function that is about to run, where that may be needed.

        Not while the iteration is recorded: copies that recipes keep would be measured as if the graph needed them.
        What the plan discards is swapped out then.
        """
        records = self._register.recorder.measures
        is_needed = position in self._following.orders.recipes and not (records or may_change_maps(function))
        copied = prepare(function, inputs, self._memory.backend.repeats_random) if is_needed or records else None
        self.is_repeatable = records and copied is not None
        self._prototype = copied if is_needed else None

    def forget(self) -> None:
        """Has the call in hand not run again: it has written to what it was given."""
        self.is_repeatable, self._prototype = False, None

    def write(self, function: Any, inputs: Sequence[Any], outputs: Sequence[Any], peak_bytes: int, position: int
              ) -> None:
        """Writes the recipe of the call that has just run if its function was copied, and gives it to its maps.

        None is written where the call has turned out to be another than that of the graph, or would keep a map that was
        to die, as another graph was followed when that was made.
        """
        prototype, known = self._prototype, self._following.call_at(position)
        self.forget()
        if prototype is None or known is None or any(map(self._would_be_held, inputs)):
            return
        recipe = write_recipe(prototype, function, inputs, outputs, max(peak_bytes, known.peak_bytes), self._will_stay)
        for product in recipe.products:
            storage = product.storage()
            # It may have written to a map of another iteration: running statistics that an evaluation has read.
            if (storage is not None and storage.token is self._register.token and storage.recipe is None
                    and self._following.is_discardable(storage.map)
                    and self._register.recorder.maps[storage.map].producer == position):
                storage.remember(recipe)
                storage.watch()

    def _will_stay(self, storage: Storage) -> bool:
        """Whether a map can be had in backward: it is retained, now or by a later call, or can be made again."""
        graph = self._following.graph
        if graph is not None and storage.token is self._register.token and graph.trace.maps[storage.map].retained:
            return True
        return storage.can_return()

    def _would_be_held(self, variable: Any) -> bool:
        """Whether a recipe would have to hold this map of the iteration, which can be had in no other way."""
        storage = find(array_of(variable))
        return (storage is not None and storage.token is self._register.token and not storage.from_outside
                and storage.nbytes > COPIED_BYTES and not self._will_stay(storage))
