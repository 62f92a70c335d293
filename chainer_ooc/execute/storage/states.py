"""Where the bytes of a storage are, and what may happen to it when."""

from __future__ import annotations

import enum


class State(enum.Enum):
    """Where the bytes are."""

    RESIDENT = 'in near memory, held by its slots'
    SPARE = 'in near memory as long as nothing else needs the room'
    LEAVING = 'in near memory, being copied out'
    AWAY = 'in far memory'
    ARRIVING = 'in far memory, being copied in'
    LOST = 'in no memory: to be made again where there is a recipe'

    __hash__ = object.__hash__  # an enumeration's own is a function of Python, and each change looks up the table


#: By what happens, and where the bytes are then: where they are afterwards.
TRANSITIONS = {
    ('leave', State.RESIDENT): State.LEAVING,     # a swap-out starts: the slots are empty, the storage has the block
    ('go', State.LEAVING): State.AWAY,            # its copy is whole, and nothing has asked for it meanwhile
    ('stay', State.LEAVING): State.RESIDENT,      # it is wanted, or its copy failed: the slots have the block again
    # the next two also when the last array has died by itself
    ('free', State.RESIDENT): State.AWAY,         # the far copy is what the block is: nothing is lost
    ('lose', State.RESIDENT): State.LOST,         # no copy: to be made again where there is a recipe
    ('spare', State.RESIDENT): State.SPARE,       # no known use is left: the slots are empty, the storage has the block
    ('use again', State.SPARE): State.RESIDENT,   # it is read all the same
    ('yield', State.SPARE): State.LOST,           # its room is needed
    ('come', State.AWAY): State.ARRIVING,         # a swap-in starts: the storage has its target
    ('arrive', State.ARRIVING): State.RESIDENT,   # the bytes are there
    ('turn back', State.ARRIVING): State.AWAY,    # the swap-in failed, or is not needed: the far copy is whole
    ('show', State.AWAY): State.RESIDENT,         # the far copy itself is mapped, see `mapped`
    ('make', State.LOST): State.RESIDENT,         # the recipe has run
    ('take up', State.AWAY): State.RESIDENT,      # the program held the array all the time: Chainer has the same again
    ('take up', State.LOST): State.RESIDENT,      # the same
}
