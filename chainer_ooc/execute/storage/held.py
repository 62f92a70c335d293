"""A block of near memory, and all slots of Chainer's that may hold an array on it.

    slots[node] --> array --.
    slots[variable] --> array --+--> root, the owner of the block
    slots[function, name] --> array --'

The slots get stand-ins for their arrays all together, and the arrays again. Whether anything else has the block, such
as the program, is found by counting references: those of the slots, and of what lies between their arrays and the root,
are known.

Left out: what the bytes are while the slots are empty (`storage`).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np

from chainer_ooc.backends import arrays
from chainer_ooc.backends.base import ByteArray
from chainer_ooc.backends.references import references
from chainer_ooc.execute.storage.slots import Array, Away, BlockOwner, Slot, VariableSlot

#: From so many slots on, and each time that they have doubled, the dead ones are looked for: a constant may be an
#: input of every iteration.
CROWDED = 32

#: What owns a block that is not in near memory.
NOBODY: weakref.ref[Array] = weakref.ref(np.empty(0))


class Held(BlockOwner):
    """A block that several arrays may share. All attributes are for reading.

    Attributes:
        nbytes: its size.
        root: weak reference to the array that owns the block in near memory.
        slots: everything of Chainer's that may hold an array on it, each once.
    """

    __slots__ = ('__weakref__', 'nbytes', 'root', 'slots')

    def __init__(self, root: Array):
        self.nbytes = int(root.nbytes)
        self.root = weakref.ref(root)
        self.slots: dict[tuple[int, object], Slot] = {}

    def add_slots(self, *slots: Slot) -> None:
        """Adds slots that may hold an array on the block, each once."""
        if len(self.slots) >= CROWDED and not len(self.slots) & (len(self.slots) - 1):
            self.slots = {key: each for key, each in self.slots.items() if each.is_alive()}
        for slot in slots:
            known = self.slots.get(slot.key)
            if known is None or known.owner() is None:
                self.slots[slot.key] = slot
                if known is not None and known.is_alive():  # a copy has the list of a Variable whose node is gone
                    self.slots[id(known), known.name] = known

    def bytes_here(self) -> ByteArray | None:
        """The block, if anything has it in near memory."""
        root = self.root()
        return None if root is None else arrays.flat_bytes(root)

    # --- what holds it ---------------------------------------------------------------------------------------------

    def is_retained(self) -> bool:
        """Whether Chainer itself holds it for backward, and not only a Variable of the program's."""
        return any(type(slot) is not VariableSlot for slot, _ in self._held())

    def is_wanted(self) -> bool:
        """Whether anything is left that could read it."""
        return any(slot.is_alive() for slot in self.slots.values())

    def is_shown(self) -> bool:
        """Whether there is a Variable for it, with its array or without."""
        return any(type(slot) is VariableSlot and slot.is_shown() for slot in self.slots.values())

    def is_cut_off(self) -> bool:
        """Whether the program has a Variable for it that is part of no graph (any more)."""
        return any(type(slot) is VariableSlot and slot.is_shown() and (node := slot.owner()) is not None
                   and node.creator_node is None for slot in self.slots.values())

    def is_in_slots(self) -> bool:
        """Whether any slot has it, or a stand-in for it."""
        return any(slot.get() is not None for slot in self.slots.values())

    def is_in_variables(self) -> bool:
        """Whether a Variable that the program can reach holds an array on it."""
        return any(type(slot) is VariableSlot for slot, _ in self._held())

    def is_held_elsewhere(self) -> bool:
        """Whether anything but the slots refers to the block: then it cannot be freed, and bytes may change."""
        root = self.root()
        if root is None:
            return True
        held: dict[int, list[Any]] = {}
        identities: set[object] = set()
        array = None
        found = self._held()
        while found:
            slot, array = found.pop()
            if type(slot) is VariableSlot:
                if slot.is_copied():
                    return True
                if slot.identity() in identities:
                    continue
                identities.add(slot.identity())
            _add_chain(held, array, root)
        del root, array
        return not held or any(references(entry) != entry[1] for entry in held.values())

    def _held(self, slots: Iterable[Slot] | None = None) -> list[tuple[Slot, Array]]:
        """The slots that hold arrays on the block, each with its array; of all that are known, or of these."""
        root, found = self.root(), []
        for slot in () if root is None else list(self.slots.values() if slots is None else slots):
            array: Any = slot.get()
            if (array is not None and type(array) is not Away
                    and (array is root or getattr(array, 'base', None) is root or arrays.root_of(array) is root)):
                found.append((slot, array))
        return found

    # --- what they hold --------------------------------------------------------------------------------------------

    def _watch(self, slots: Iterable[Slot]) -> bool:
        """Has the program's next read in these slots noticed; False if some cannot be watched."""
        is_noticed = True
        for slot, array in self._held([each for each in slots if not each.is_watched(self)]):
            if type(slot) is VariableSlot and slot.is_copied():
                is_noticed = False
            slot.watch(Away(self, arrays.layout_of(array, self.root())))
        return is_noticed

    def _empty(self) -> None:
        """Puts stand-ins into the slots in place of their arrays; the caller holds the bytes until this returns."""
        root = self.root()
        stand_ins: dict[int, Away] = {}
        for slot, array in self._held():
            if id(array) not in stand_ins:
                stand_ins[id(array)] = Away(self, arrays.layout_of(array, root))
            slot.put(stand_ins[id(array)])

    def _fill(self, block: ByteArray, in_variables: bool, is_watched: bool) -> None:
        """Puts arrays on the block into slots that have stand-ins of it; into Variables only if `in_variables`.

        If `is_watched`, the program's next read is still to be noticed.
        """
        views: dict[int, Array] = {}  # by the layout's identity: slots that had one array share a stand-in
        for slot in self.slots.values():
            if type(slot) is VariableSlot and not in_variables:
                continue
            away = slot.get()
            if type(away) is Away and away.storage is self:
                layout = away.layout
                if id(layout) not in views:
                    views[id(layout)] = arrays.view(block, layout)
                slot.put(views[id(layout)])
            if not is_watched:
                slot.unwatch(self)


def _add_chain(held: dict[int, list[Any]], array: Any, root: Any) -> None:
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
