"""One block of near memory and its copy in far memory.

    RESIDENT --swap_out--> LEAVING --reap--> AWAY --prefetch--> ARRIVING --fetch--> RESIDENT
        |                     '--- recalled: stays RESIDENT
        '---- drop, forget: to AWAY where a far copy is, else to LOST --revive--> RESIDENT

A storage never owns its block while that is RESIDENT: the places do, and a weak reference tells when it is really
gone. It may be alive although every place gave it up, when the user holds the array; then it is taken up again, unread
from anywhere, so that the user's array and Chainer's stay one (P4) and nothing written to it is lost.

A far copy that is read where it is goes from AWAY to RESIDENT at once: its block is a mapping (see `through`).

The places are empty from the moment that a swap-out starts, and Variables stay empty when only Chainer itself reads. So
every read by the user is noticed, and after one the far copy is not trusted: he may have written to what he got.

Left out: when to do what (`residency`), and which memory that frees.
"""

from __future__ import annotations

import enum
import sys
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from chainer_ooc.backends import arrays
from chainer_ooc.backends.base import ByteArray, FarCopy, Transfer
from chainer_ooc.execute.places import Array, Away, Place

if TYPE_CHECKING:
    from chainer_ooc.execute.recipe import Recipe
    from chainer_ooc.execute.residency import Residency


#: From so many places on the dead ones are looked for: a user's constant may be an input of every iteration.
CROWDED = 32


class State(enum.Enum):
    """Where the bytes are."""

    RESIDENT = 'in near memory, held by its places'
    LEAVING = 'in near memory, being copied out'
    AWAY = 'in far memory'
    ARRIVING = 'in far memory, being copied in'
    LOST = 'in no memory: to be made again where there is a recipe'


class Storage:
    """A block that several arrays may share.

    Attributes:
        nbytes: its size.
        counted_bytes: what of it counts as near memory; less than all where it came from outside.
        token: the iteration that gave it its map id.
        state: where its bytes are.
        root: weak reference to the array that owns the block in near memory.
        block: the bytes while a transfer moves them, else None.
        copy: the far copy, or None; when the state is RESIDENT it equals the block unless `exposed`.
        transfer: the one in flight, or None.
        recipe: how the bytes are made again, or None.
        hold: the bytes of a new map whose Variables are vacant so that the user's reads are noticed, else None.
        places: everything of Chainer's that may hold an array on it, each once.
        map: id of its feature map in the iteration, or -1.
        mapped: the block, in near memory last or still, shows the far copy itself: the two cannot differ.
        recalled: it is to stay although it is LEAVING.
        exposed: the user may have got an array on it, so that the far copy may be outdated.
        pending_uses: functions that retained it and have not run backward yet.
        touched: the position that used it last.
    """

    __slots__ = (
        '__weakref__', 'block', 'copy', 'counted_bytes', 'exposed', 'hold', 'map', 'mapped', 'nbytes', 'pending_uses',
        'places', 'recalled', 'recipe', 'residency', 'root', 'state', 'token', 'touched', 'transfer')

    def __init__(self, residency: Residency, root: Array):
        self.residency = residency
        self.nbytes = int(root.nbytes)
        self.counted_bytes = self.nbytes
        self.token: object = None
        self.state = State.RESIDENT
        self.root: weakref.ref[Array] = weakref.ref(root)
        self.block: ByteArray | None = None
        self.copy: FarCopy | None = None
        self.transfer: Transfer | None = None
        self.recipe: Recipe | None = None
        self.hold: ByteArray | None = None
        self.places: dict[tuple[int, object], Place] = {}
        self.map = -1
        self.mapped = False
        self.exposed = False
        self.recalled = False
        self.pending_uses = 0
        self.touched = -1

    def add_place(self, place: Place) -> None:
        """Learns of somewhere that may hold an array on the block; one known already counts once."""
        if len(self.places) >= CROWDED:
            self.places = {key: each for key, each in self.places.items() if each.is_alive()}
        known = self.places.get(place.key)
        if known is None or not known.is_alive():
            self.places[place.key] = place

    def fetch(self) -> ByteArray:
        """What a read of an absent array reaches (P1); whoever is not Chainer may write to what he gets."""
        return self.residency.fetch(self, exposed=not self.residency.inside)

    def __del__(self) -> None:
        if self.copy is not None:
            self.residency.backend.release(self.copy)

    def is_retained(self) -> bool:
        """Whether Chainer itself holds it for backward, and not only a Variable of the user's."""
        root = self.root()
        return root is not None and any(
            arrays.root_of(array) is root for place in self.places.values() for array in place.retained())

    def has_true_copy(self) -> bool:
        """Whether the far copy is what the block is."""
        return self.copy is not None and (self.mapped or not self.exposed)

    def can_return(self) -> bool:
        """Whether its bytes can be had whenever they are asked for, as long as its graph lives."""
        return self.copy is not None or self.recipe is not None or self.is_retained()

    def is_shown(self) -> bool:
        """Whether there is a Variable for it, with its array or vacant."""
        return any(place.is_shown() for place in self.places.values())

    def in_variables(self) -> bool:
        """Whether a Variable that the user can reach holds an array on it."""
        root = self.root()
        return any(arrays.root_of(array) is root
                   for place in self.places.values() for array in place.variables())

    def held_elsewhere(self) -> bool:
        """Whether anything but the places refers to the block: then letting go frees nothing, and bytes may change."""
        root = self.root()
        if root is None:
            return True
        held: dict[int, list[Any]] = {}
        array = None
        for place in self.places.values():
            for array in place.arrays():
                _add_chain(held, array, root)
        del root, array
        return not held or any(_references(entry) != entry[1] for entry in held.values())

    def empty_places(self, variables_only: bool = False) -> None:
        """Lets every place give its array up for a stand-in; the caller keeps the bytes in reach until it returns."""
        root = self.root()
        stand_ins: dict[int, Away] = {}

        def away_for(array: Array) -> Away | None:
            if root is None or arrays.root_of(array) is not root:
                return None
            if id(array) not in stand_ins:
                stand_ins[id(array)] = Away(self, arrays.layout_of(array, root))
            return stand_ins[id(array)]

        for place in self.places.values():
            place.empty_variable(away_for)
            if not variables_only:
                place.empty(away_for)

    def fill_places(self, block: ByteArray, variables: bool) -> None:
        """Gives places that have one of our stand-ins their arrays, laid over `block`.

        Args:
            block: the bytes.
            variables: those that a user may see, too. While they are not filled, a user's read is noticed.
        """
        views: dict[arrays.Layout, Array] = {}

        def array_for(away: Away) -> Array | None:
            if away.storage is not self:
                return None
            if away.layout not in views:
                views[away.layout] = arrays.view(block, away.layout)
            return views[away.layout]

        for place in self.places.values():
            place.fill(array_for)
            if variables:
                place.fill_variable(array_for)


def _add_chain(held: dict[int, list[Any]], array: Array, root: Any) -> None:
    """Counts a holder of `array`, and the hold of each thing between it and the root on the next, once."""
    waiting: list[Any] = [array]
    while waiting:
        holder_of = waiting.pop()
        entry = held.get(id(holder_of))
        if entry is not None:
            entry[1] += 1
            continue
        held[id(holder_of)] = [holder_of, 1]
        if holder_of is not root:
            waiting += arrays.links(holder_of)


def _references(entry: list[Any]) -> int:
    """References to the array in an entry, beside the entry's own and those of this call."""
    return sys.getrefcount(entry[0]) - _OVERHEAD


def _calibrate() -> int:
    entry = [np.empty(1), 0]
    return sys.getrefcount(entry[0])


_OVERHEAD = _calibrate()
