"""What iterations leave in near memory: what of it can be moved out of the way, and what is the program's own.

    in hand               over                                      another one is over
    ----------------------|-----------------------------------------|-------------------------
    batch: a map          the program's own, if it still has it
    maps                  those of the last loss, until it is gone  the program's own, likewise

Found among all that counts, whoever has noted it: an interrupt may have come before any note, also of an iteration that
had ended (`Token.has_ended`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chainer_ooc.execute.memory.residency import Residency
from chainer_ooc.execute.storage.states import State
from chainer_ooc.execute.storage.storage import Storage, Token


def can_leave(storage: Storage, min_bytes: int) -> bool:
    """Whether what an iteration has left can be moved out of the way."""
    return (storage.state is not State.RESIDENT or storage.root() is None
            or (storage.nbytes >= max(min_bytes, 1) and not storage.is_held_elsewhere()))


def left_bytes(memory: Residency, min_bytes: int, token: Token) -> int:
    """What others than this iteration have left in near memory and cannot be moved, such as the maps of the last loss.

    What the program has of its maps otherwise than by its graph is among it.
    """
    nbytes = sum(each.counted_bytes for each in memory.storages()
                 if each.token is not token and not can_leave(each, min_bytes))
    return nbytes + memory.bytes_alone() + (memory.bytes_of('program') if memory.backend.counts_all else 0)


def hand_over(memory: Residency, latest: Token | None, min_bytes: int) -> None:
    """Books what iterations have left and cannot be moved as the program's own.

    What came from outside at once, see `hand_over_batches`. Maps when another iteration is over: those of the `latest`
    are those of the last loss, which most programs still have.
    """
    memory.book_alone(lambda token: token is not latest and token.has_ended)
    _book(memory, min_bytes, lambda storage: storage.from_outside or storage.token is not latest)


def hand_over_batches(memory: Residency, min_bytes: int) -> None:
    """The same of what came from outside: the program had it before, such as a list of batches."""
    _book(memory, min_bytes, lambda storage: storage.from_outside)


def _book(memory: Residency, min_bytes: int, is_programs: Callable[[Storage], bool]) -> None:
    for storage in memory.storages():
        token = storage.token
        if token is not None and token.has_ended and is_programs(storage) and not can_leave(storage, min_bytes):
            memory.book(storage, 'program')


def earlier_bytes(others: Sequence[Storage]) -> int:
    """Bytes of earlier iterations' maps, as in double backprop: no plan counts them, and a step needs them."""
    return sum(each.counted_bytes for each in others if not each.mapped) if others else 0
