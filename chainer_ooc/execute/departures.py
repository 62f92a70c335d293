"""The maps of one iteration on their way out: swapped out now or when that is possible, or given up to be made again.

A map that will be given up is *held* from its birth on (see `execute.revival`); the watch over it ends when it goes,
when backward begins, or with the iteration.
"""

from __future__ import annotations

import weakref

from chainer_ooc.execute.recipe import Recipe
from chainer_ooc.execute.residency import Residency
from chainer_ooc.execute.revival import forget, hold, release
from chainer_ooc.execute.storage import State, Storage

_Ref = weakref.ref[Storage]


class Departures:
    """Lets go of maps in forward."""

    def __init__(self, residency: Residency):
        self._residency = residency
        self._hesitant: list[_Ref] = []
        self._forgettable: list[_Ref] = []
        self._held: list[_Ref] = []
        self._forgotten: list[_Ref] = []

    def swap_out(self, storage: Storage | None) -> None:
        """Swaps a map out, at once or as soon as nobody else holds it."""
        if storage is not None and not self._residency.swap_out(storage):
            self.swap_out_later(storage)

    def swap_out_later(self, storage: Storage | None) -> None:
        """Swaps a map out when the next call begins."""
        if storage is not None:
            self._hesitant.append(weakref.ref(storage))

    def hold(self, storage: Storage, recipe: Recipe) -> None:
        """Watches over a map that will be given up, until it is."""
        hold(storage, recipe)
        self._held.append(weakref.ref(storage))

    def forget(self, storage: Storage | None) -> None:
        """Gives up a map that can be made again; what cannot is swapped out.

        Raises:
            SpillError: what cannot be made again could not be copied either.
        """
        if storage is None:
            return
        retained = storage.is_retained()
        if forget(self._residency, storage):
            self._forgotten += [weakref.ref(storage)] if retained else []
        elif retained:
            self.swap_out(storage)

    def forget_later(self, storage: Storage | None) -> None:
        """Gives a map up when the next call begins."""
        if storage is not None:
            self._forgettable.append(weakref.ref(storage))

    def go_on(self) -> None:
        """Tries once more what could not leave, and gives up what was put off."""
        self._forget_due()
        hesitant, self._hesitant = self._hesitant, []
        for ref in hesitant:
            storage = ref()
            if storage is None or storage.state is not State.RESIDENT:
                continue
            if not storage.recalled or self._residency.maps_far_memory:  # then its memory is not planned for
                self.swap_out(storage)

    def stop_watching(self) -> None:
        """Backward begins: no map is held any more, and none is lost that a Variable of the user's shows.

        He may read it after the parameters have changed, from which it could not be made again.
        """
        self._forget_due()
        for storage in self._taken_from_watch():
            if storage.is_retained():
                _let_be(storage)
            else:
                forget(self._residency, storage)
        forgotten, self._forgotten = self._forgotten, []
        for ref in forgotten:
            shown = ref()
            if shown is not None and shown.is_shown() and self._residency.is_lost(shown):
                self._residency.fetch(shown, exposed=False)
                self._residency.swap_out(shown)

    def abandon(self) -> None:
        """The iteration ends, whatever its state: nothing is held for its sake any more."""
        for storage in self._taken_from_watch():
            _let_be(storage)

    def _forget_due(self) -> None:
        due, self._forgettable = self._forgettable, []
        for ref in due:
            self.forget(ref())

    def _taken_from_watch(self) -> list[Storage]:
        held, self._held = self._held, []
        return [storage for ref in held if (storage := ref()) is not None and storage.hold is not None]


def _let_be(storage: Storage) -> None:
    release(storage)
    storage.recipe = None
