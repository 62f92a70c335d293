"""Where the bytes of a storage are, and what may happen to it when.

    event        from                 to          when
    -----------  -------------------  ----------  -------------------------------------------------------------
    leave        RESIDENT             LEAVING     a swap-out starts: the slots are empty, the block is held here
    go           LEAVING              AWAY        its copy is whole, and nothing has asked for it meanwhile
    stay         LEAVING              RESIDENT    it is wanted, or its copy failed: the slots have the block again
    free         RESIDENT             AWAY        the far copy is what the block is: nothing is lost
    lose         RESIDENT             LOST        no copy: to be made again where there is a recipe. Both also when the
                                                  last array has died by itself
    spare        RESIDENT             SPARE       no known use is left: the slots are empty, the block is held here
    use again    SPARE                RESIDENT    it is read all the same
    yield        SPARE                LOST        its room is needed
    come         AWAY                 ARRIVING    a swap-in starts: the target is held here
    arrive       ARRIVING             RESIDENT    the bytes are there
    turn back    ARRIVING             AWAY        the swap-in failed, or is not needed: the far copy is whole
    show         AWAY                 RESIDENT    the far copy itself is mapped, see `mapped`
    make         LOST                 RESIDENT    the recipe has run
    take up      AWAY, LOST           RESIDENT    the program held the array all the time: Chainer has the same again
    -----------  -------------------  ----------  -------------------------------------------------------------
"""

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


TRANSITIONS = {
    ('leave', State.RESIDENT): State.LEAVING,
    ('go', State.LEAVING): State.AWAY,
    ('stay', State.LEAVING): State.RESIDENT,
    ('free', State.RESIDENT): State.AWAY,
    ('lose', State.RESIDENT): State.LOST,
    ('spare', State.RESIDENT): State.SPARE,
    ('use again', State.SPARE): State.RESIDENT,
    ('yield', State.SPARE): State.LOST,
    ('come', State.AWAY): State.ARRIVING,
    ('arrive', State.ARRIVING): State.RESIDENT,
    ('turn back', State.ARRIVING): State.AWAY,
    ('show', State.AWAY): State.RESIDENT,
    ('make', State.LOST): State.RESIDENT,
    ('take up', State.AWAY): State.RESIDENT,
    ('take up', State.LOST): State.RESIDENT,
}
