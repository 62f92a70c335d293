"""One map that is read where it is, step by step: what each change of its residency must not forget."""
import gc

import numpy as np
import pytest

from chainer_ooc.backends import arrays
from chainer_ooc.execute.memory.mapped import MAPPED
from chainer_ooc.execute.memory.residency import Residency
from chainer_ooc.execute.memory.transit import COPY_IN, Context
from chainer_ooc.execute.storage.slots import AttributeSlot
from chainer_ooc.execute.storage.states import State
from chainer_ooc.execute.tally import Tally

NBYTES = 4096


class Holder:
    """Has an array as an attribute, as a function that hides it."""

    _ooc = None


def goes_on(residency, budget_bytes=None, far=MAPPED):
    residency.enter(Context(Tally(residency.backend), budget_bytes, far=far))


@pytest.fixture
def residency(backend_class, tmp_path):
    backend = backend_class(str(tmp_path)) if backend_class.name == 'host' else backend_class(1)
    made = Residency(backend)
    goes_on(made)
    yield made
    backend.close()


@pytest.fixture
def hidden(residency):
    """A storage with a slot; its array lives in that slot alone."""
    holder = Holder()
    holder.array = np.full(NBYTES, 3, np.uint8)
    storage = residency.register(holder.array, arrays.root_of(holder.array), None, 0, from_outside=False)
    storage.add_slots(AttributeSlot(holder, 'array'))
    storage.retain()
    return holder, storage


def away(residency, storage):
    assert residency.swap_out(storage)
    residency.settle()
    assert storage.state is State.AWAY


def mapped(residency, storage):
    away(residency, storage)
    assert residency.prefetch(storage)
    assert (storage.state, storage.mapped, residency.near_bytes()) == (State.RESIDENT, True, 0)


def test_a_mapped_map_is_not_evicted_as_that_would_free_nothing(residency, hidden):
    storage = hidden[1]
    mapped(residency, storage)
    goes_on(residency, NBYTES)
    assert not residency.make_room(2 * NBYTES)
    assert (storage.state, residency.tally.evictions) == (State.RESIDENT, 0)


def test_a_map_comes_whatever_the_budget_says(residency, hidden):
    storage = hidden[1]
    away(residency, storage)
    goes_on(residency, 0)
    assert residency.can_come(storage, 10 * NBYTES)
    goes_on(residency, 0, COPY_IN)
    assert not residency.can_come(storage, 10 * NBYTES)


def test_what_a_user_holds_as_it_comes_back_is_not_exchanged_for_its_older_copy(residency, hidden):
    holder, storage = hidden
    assert residency.swap_out(storage)
    held = storage.block
    storage.recall()
    residency.settle()
    assert (storage.state, storage.mapped) == (State.AWAY, False)
    held[5] = 9
    assert residency.fetch(storage, exposed=False)[5] == 9
    assert holder.array[5] == 9


def test_what_a_user_has_read_stays_his_when_its_copy_is_whole(residency, hidden):
    holder, storage = hidden
    assert residency.swap_out(storage)
    storage.recall()
    storage.expose()
    residency.settle()
    assert (storage.state, storage.mapped, residency.near_bytes()) == (State.RESIDENT, False, NBYTES)
    assert arrays.root_of(holder.array) is storage.root()


def test_a_map_that_is_seen_off_because_it_is_wanted_is_there_on_its_mapping(residency, hidden):
    storage = hidden[1]
    assert residency.swap_out(storage)
    storage.recall()
    residency.finish_swap_out(storage)
    residency.leaving.clear()
    assert (storage.state, storage.mapped) == (State.RESIDENT, True)


def test_a_map_that_was_mapped_counts_again_when_it_is_swapped_in(residency, hidden):
    storage = hidden[1]
    mapped(residency, storage)
    residency.drop(storage, may_lose=False)
    gc.collect()
    goes_on(residency, far=COPY_IN)
    residency.fetch(storage, exposed=False)
    assert (storage.state, storage.mapped, residency.near_bytes()) == (State.RESIDENT, False, NBYTES)


def test_a_map_that_a_user_has_read_is_nobodys_once_it_has_gone(residency, hidden):
    holder, storage = hidden
    mapped(residency, storage)
    residency.fetch(storage, exposed=True)
    assert storage.exposed
    residency.drop(storage, may_lose=False)
    assert (storage.state, storage.exposed, 'array' in vars(holder)) == (State.AWAY, False, False)
