"""Recipes of the calls that a plan may have run again, written around their first run.

A function is copied before it runs; while an iteration is recorded every one is, to see whether it could run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chainer_ooc.execute.functions.prototype import Prototype, may_change_maps, prepare
from chainer_ooc.execute.functions.recipe import write_recipe
from chainer_ooc.execute.graphs.following import Following
from chainer_ooc.execute.iteration.departures import Departures
from chainer_ooc.execute.memory.residency import Residency


class Recipes:
    """Writes the recipes of one iteration.

    Attributes:
        is_repeatable: the iteration is recorded, and the call in hand could run again.
    """

    def __init__(self, memory: Residency, following: Following, departures: Departures):
        self._memory, self._following, self._departures = memory, following, departures
        self._prototype: Prototype | None = None
        self.is_repeatable = False

    def prepare(self, function: Any, position: int, recorded: bool) -> None:
        """Copies a function that is about to run, where that may be needed."""
        is_needed = position in self._following.orders.recipes and not may_change_maps(function)
        copied = prepare(function, self._memory.backend.repeats_random) if is_needed or recorded else None
        self.is_repeatable = recorded and copied is not None
        self._prototype = copied if is_needed else None

    def forget(self) -> None:
        """Has the call in hand not run again: it has written to what it was given."""
        self.is_repeatable, self._prototype = False, None

    def write(self, function: Any, inputs: Sequence[Any], outputs: Sequence[Any], peak_bytes: int, position: int
              ) -> None:
        """Writes the recipe of the call that has just run if its function was copied, and gives it to its maps.

        None is written where the call has turned out to be another than that of the graph.
        """
        prototype, known = self._prototype, self._following.call_at(position)
        self.forget()
        if prototype is not None and known is not None:
            recipe = write_recipe(prototype, function, inputs, outputs, max(peak_bytes, known.peak_bytes),
                                  self._departures.will_stay)
            self._departures.hold(recipe, position)
