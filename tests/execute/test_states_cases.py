"""Short ways to faults that the state machine of `test_states.py` found."""
import contextlib
import copy
import os
import weakref

import chainer
import numpy as np
import pytest
from chainer import _ooc
from chainer.functions.activation.tanh import Tanh
from chainer.functions.array.reshape import Reshape
from chainer.functions.math.basic_math import Mul

from chainer_ooc.backends import arrays
from chainer_ooc.errors import LostMapError, SpillError
from chainer_ooc.execute.functions import recipe as recipes
from chainer_ooc.execute.functions.prototype import prepare
from chainer_ooc.execute.functions.recipe import write_recipe
from chainer_ooc.execute.memory.mapped import MAPPED
from chainer_ooc.execute.memory.residency import Residency
from chainer_ooc.execute.memory.transit import Context
from chainer_ooc.execute.recording.registration import retained
from chainer_ooc.execute.storage.account import Account
from chainer_ooc.execute.storage.computing import computing
from chainer_ooc.execute.storage.slots import OutputSlot
from chainer_ooc.execute.storage.states import State
from chainer_ooc.execute.storage.storage import Storage
from chainer_ooc.execute.tally import Tally
from support.chaos import ChaosBackend
from support.states.states_functions import Pair
from support.states.states_world import World, interrupted


@pytest.fixture
def memories():
    """Two sessions'."""
    made = [Residency(ChaosBackend(seed)) for seed in range(2)]
    for memory in made:
        memory.enter(Context(Tally(memory.backend)))
    yield made
    for memory in made:
        memory.backend.close()
        Account.close(memory)  # what the account of blocks has is asked by other tests


def values(shape=(6, 8)):
    return np.random.RandomState(0).uniform(-1, 1, shape).astype('f4')


def stored(memory, variable, from_outside=False):
    storage = memory.register(variable.array, arrays.root_of(variable.array), None, 0, from_outside)
    storage.add_node(variable.node)
    return storage


def away(storage):
    assert storage.memory.swap_out(storage)
    storage.memory.settle()
    assert storage.state is State.AWAY


def applied(memory, make, *inputs):
    """Runs a function and writes its recipe: its outputs, then their storages."""
    function = make()
    with computing():
        prototype = prepare(function)
        outputs = function.apply(inputs)
        for each in inputs:
            stored(memory, each, True)
        storages = [stored(memory, each) for each in outputs]
        for each in retained(function):
            each.retain()
        recipe = write_recipe(prototype, function, inputs, outputs, 0, lambda each: each.can_return())
        for each in storages:
            each.remember(recipe)
            each.watch()
    return (*outputs, *storages)


def test_a_map_that_only_a_variable_shows_is_there_for_a_function_that_may_write_to_it(memories):
    variable = chainer.Variable(values())
    storage = stored(memories[0], variable)
    away(storage)
    memories[0].open(storage)
    assert (storage.state, storage.root() is not None) == (State.RESIDENT, True)
    assert np.array_equal(variable.array, values())


def test_what_another_session_needs_made_again_counts_where_it_is(memories):
    batch = chainer.Variable(values())
    first, lower = applied(memories[0], Tanh, batch)
    second, upper = applied(memories[1], Tanh, first)
    assert all(each.discard() for each in (lower, upper))
    nbytes = lower.nbytes
    assert [each.bytes_of('maps') for each in memories] == [nbytes, 0]
    with computing():
        assert np.array_equal(second.node.data, np.tanh(np.tanh(values())))
    assert lower.state is State.RESIDENT
    assert [each.bytes_of('maps') for each in memories] == [2 * nbytes, nbytes]


def test_a_batch_that_only_a_recipe_held_is_no_trouble_when_its_session_ends(memories, monkeypatch):
    monkeypatch.setattr(recipes, 'COPIED_BYTES', 0)
    memory = memories[0]
    batch = chainer.Variable(values())
    output, storage = applied(memory, Tanh, batch)
    memory._refs = [weakref.ref(storage), *memory._refs]  # in this order the recipe dies before its batch is looked at
    del batch
    memory.close()
    assert np.array_equal(output.array, np.tanh(values()))


def test_maps_of_another_session_are_made_again_before_what_they_are_made_from_goes(memories):
    output, _ = applied(memories[0], Tanh, chainer.Variable(values()))
    behind, lost = applied(memories[1], Tanh, output)
    assert lost.discard()
    assert lost.state is State.LOST
    memories[0].close()
    memories[1].make_room(0)
    assert np.array_equal(behind.array, np.tanh(np.tanh(values())))


def test_what_is_written_through_a_copy_of_a_variable_reaches_no_map_that_is_made_again(memories):
    shown = chainer.Variable(values())
    stored(memories[0], shown)
    shown.retain_data()
    duplicate = copy.copy(shown)
    output, lost = applied(memories[0], Tanh, shown)
    duplicate.array[...] = 0
    assert lost.discard()
    assert lost.state is State.LOST
    assert np.array_equal(output.array, np.tanh(values()))


def test_what_is_written_through_a_copy_of_a_variable_while_it_leaves_is_not_lost(memories):
    shown = chainer.Variable(values())
    storage = stored(memories[0], shown)
    duplicate = copy.copy(shown)
    if memories[0].swap_out(storage):
        storage.transfer.wait()
    duplicate.array[...] = 0
    del duplicate
    memories[0].settle()
    assert not shown.array.any()


def test_a_new_array_reaches_the_copies_of_a_variable_that_was_away(memories):
    shown = chainer.Variable(values())
    storage = stored(memories[0], shown)
    away(storage)
    duplicate = copy.copy(shown)
    assert np.array_equal(duplicate.array, values())
    shown.array = values() * 2
    assert np.array_equal(duplicate.array, values() * 2)


def test_what_is_written_through_a_view_that_came_later_reaches_no_map_that_is_made_again(memories):
    shown = chainer.Variable(values())
    stored(memories[0], shown)
    shown.retain_data()
    output, lost = applied(memories[0], Tanh, shown)
    with computing():
        view, = Reshape((48,)).apply((shown,))
        stored(memories[0], view)
    view.array[...] = 0
    assert not lost.discard()
    away(lost)
    assert np.array_equal(output.array, np.tanh(values()))


def test_what_is_written_through_a_view_of_a_map_that_was_away_is_not_lost(memories):
    shown = chainer.Variable(values())
    storage = stored(memories[0], shown)
    shown.retain_data()
    away(storage)
    with computing():
        view, = Reshape((48,)).apply((shown,))
        stored(memories[0], view)
    view.array[...] = 0
    away(storage)
    assert not shown.array.any()


def test_a_variable_and_its_copy_do_not_hide_who_else_holds_the_array(memories):
    shown = chainer.Variable(values())
    storage = stored(memories[0], shown)
    away(storage)
    duplicate = copy.copy(shown)
    storage.add_node(duplicate.node)
    held = shown.array
    assert storage.is_held_elsewhere()
    held[...] = 0
    del held
    assert not storage.is_held_elsewhere()
    away(storage)
    assert not duplicate.array.any()


def test_what_a_session_needs_of_another_is_not_evicted_there(memories):
    one, other = (chainer.Variable(values()) for _ in range(2))
    for each in (one, other):
        each.retain_data()
    needed = [stored(memories[0], each) for each in (one, other)]
    for each in needed:
        away(each)
    memories[0].enter(Context(Tally(memories[0].backend), budget_bytes=needed[0].nbytes))
    memories[1].pin(needed)
    with computing():
        for each in needed:
            each.fetch()
    assert [each.node._data is not None for each in (one, other)] == [True, True]


def test_a_map_whose_session_has_ended_does_not_leave(memories):
    shown = chainer.Variable(values())
    storage = stored(memories[0], shown)
    memories[0].close()
    assert not storage.memory.swap_out(storage)
    assert np.array_equal(shown.array, values())


def test_a_map_that_only_a_variable_shows_survives_a_failed_swap_out(memories):
    shown = chainer.Variable(values())
    storage = stored(memories[0], shown)
    memories[0].backend.fail_next('swap_out')
    memories[0].swap_out(storage)
    with pytest.raises(SpillError, match='failed'):
        memories[0].settle()
    assert storage.root() is not None
    assert np.array_equal(shown.array, values())


def away_with_its_array_alive(memory):
    """A map that was let go while somebody holds it: its Variable, what is made from it and is lost, and the array."""
    shown = chainer.Variable(values())
    storage = stored(memory, shown)
    shown.retain_data()
    output, lost = applied(memory, Tanh, shown)
    away(storage)
    with computing():
        held = shown.node.data
    away(storage)
    assert lost.discard()
    return shown, output, held


@pytest.mark.parametrize('is_interrupted', [False, True])
@pytest.mark.parametrize('is_read', [True, False])
def test_what_is_taken_up_is_read_by_no_recipe_that_would_not_see_that_it_has_changed(
        memories, is_read, is_interrupted, monkeypatch):
    if is_interrupted:
        monkeypatch.setattr(Storage, '_note_holder', lambda self: None)
    shown, output, held = away_with_its_array_alive(memories[0])
    held[...] = 0
    if is_read:
        assert not shown.array.any()
    with pytest.raises(LostMapError, match='cannot be made again' if is_interrupted else 'has changed since'):
        _ = output.array


def test_what_is_taken_up_and_has_not_changed_is_read_by_recipes(memories):
    _, output, held = away_with_its_array_alive(memories[0])
    assert np.array_equal(output.array, np.tanh(held))


@pytest.mark.parametrize('moments', range(90))
def test_a_swap_in_that_is_interrupted_at_any_moment_can_be_tried_again(memories, moments):
    shown = chainer.Variable(values())
    storage = stored(memories[0], shown)
    away(storage)
    interrupted(lambda: shown.array, moments)
    memories[0].recount()
    assert np.array_equal(shown.array, values())


@pytest.mark.parametrize('moments', range(60))
def test_a_swap_out_that_is_interrupted_at_any_moment_ends(memories, moments):
    shown = chainer.Variable(values())
    storage = stored(memories[0], shown)
    interrupted(lambda: memories[0].swap_out(storage), moments)
    memories[0].finish_swap_outs()
    assert storage.state in (State.RESIDENT, State.AWAY)
    assert np.array_equal(shown.array, values())


def test_what_another_session_makes_from_a_map_is_made_before_the_map_goes_or_changes(memories):
    batch = chainer.Variable(values())
    batch.retain_data()
    stored(memories[0], batch)
    between, _ = applied(memories[1], Tanh, batch)
    output, lost = applied(memories[1], Tanh, between)
    assert lost.discard()
    assert np.array_equal(between.array, np.tanh(values()))  # from now on the program may write to it
    memories[0].close()
    assert np.array_equal(output.array, np.tanh(np.tanh(values())))


def test_a_map_that_was_written_to_and_lost_does_not_come_back_with_its_sibling(memories):
    first, second, written, given_up = applied(memories[0], Pair, chainer.Variable(values()))
    first.array[...] = 0
    node = first.node
    del first
    memories[0].drop(written, may_lose=True)
    memories[0].spare_at_most(0)
    assert given_up.discard()
    assert np.array_equal(second.array, np.cos(values()))
    with pytest.raises(LostMapError, match='cannot be made again'):
        _ = node.data


def test_a_batch_whose_copy_is_outdated_is_copied_for_a_recipe(memories):
    batch = chainer.Variable(values())
    away(stored(memories[0], batch))
    assert np.array_equal(batch.array, values())  # from now on the program may write to it
    output, lost = applied(memories[0], Tanh, batch)
    del batch
    assert lost.discard()
    assert np.array_equal(output.array, np.tanh(values()))


@pytest.mark.parametrize('moments', range(60))
def test_a_failed_swap_out_that_is_interrupted_at_any_moment_loses_nothing(memories, moments):
    shown = chainer.Variable(values())
    storage = stored(memories[0], shown)
    memories[0].backend.fail_next('swap_out')
    memories[0].swap_out(storage)
    with contextlib.suppress(SpillError):
        interrupted(memories[0].settle, moments)
    memories[0].finish_swap_outs()
    memories[0].swap_out(storage)
    memories[0].finish_swap_outs()
    assert np.array_equal(shown.array, values())


def test_a_block_whose_places_have_another_is_held_by_whoever_is_left(memories):
    array = values()
    shown = chainer.Variable(array)
    storage = stored(memories[0], shown)
    shown.array = values() * 2
    assert storage.is_held_elsewhere()
    assert not memories[0].swap_out(storage)
    array[...] = 0
    assert np.array_equal(shown.array, values() * 2)


def test_the_next_array_of_a_variable_stays_watched_whatever_becomes_of_the_one_before(memories):
    shown = chainer.Variable(values())
    before = stored(memories[0], shown)
    away(before)
    held = shown.array  # from now on the program may write to it
    shown.array = values() * 2
    shown.retain_data()
    output, lost = applied(memories[0], Tanh, shown)
    assert memories[0].prefetch(before)
    shown.array[...] = 0
    assert not lost.discard()
    away(lost)
    assert np.array_equal(output.array, np.tanh(values() * 2))
    assert np.array_equal(held, values())


def test_a_new_array_reaches_the_copies_of_a_variable_of_a_mapped_map_that_was_let_go(memories):
    shown = chainer.Variable(values())
    storage = stored(memories[0], shown)
    away(storage)
    memories[0].enter(Context(Tally(memories[0].backend), far=MAPPED))
    memories[0].open(storage)  # on the mapping, for a function that may write to it
    duplicate = copy.copy(shown)
    assert memories[0].swap_out(storage)
    shown.array = values() * 2
    assert np.array_equal(duplicate.array, values() * 2)


@pytest.mark.parametrize('moments', range(100))
def test_maps_are_made_from_what_a_session_had_that_ended_after_any_interrupt_of_a_write(memories, moments):
    shown = chainer.Variable(values())
    storage = stored(memories[0], shown)
    shown.retain_data()
    first, one = applied(memories[1], Tanh, shown)
    second, other = applied(memories[1], Tanh, shown)
    assert one.discard()
    assert other.discard()
    away(storage)
    with computing():
        shown.node.data  # noqa: B018  # with its copy
    interrupted(lambda: shown.array, moments)
    memories[0].recount()
    memories[0].close()
    assert [np.array_equal(each.array, np.tanh(values())) for each in (first, second)] == [True, True]
    assert np.array_equal(shown.array, values())


@pytest.mark.parametrize('moments', range(80))
def test_what_is_made_from_a_map_that_the_program_reads_is_right_after_any_interrupt_of_that(memories, moments):
    batch = chainer.Variable(values())
    batch.retain_data()
    stored(memories[0], batch)
    shown, storage = applied(memories[0], Tanh, batch)
    output, lost = applied(memories[0], Tanh, shown)
    assert lost.discard()
    interrupted(lambda: shown.array, moments)
    memories[0].recount()
    storage.discard()
    assert np.array_equal(shown.array, np.tanh(values()))
    assert np.array_equal(output.array, np.tanh(np.tanh(values())))


def short_of_memory(memory, *storages):
    """All storages are away, and there is room for none."""
    memory.enter(Context(Tally(memory.backend), budget_bytes=0))
    for each in storages:
        if each.state is State.RESIDENT:
            away(each)


@pytest.mark.parametrize('is_function', [False, True])
def test_a_map_that_the_program_reads_stays_while_what_is_made_from_it_is_made(memories, is_function):
    batch, shown = chainer.Variable(values()), chainer.Variable(values() * 2)
    for each in (batch, shown):
        each.retain_data()
        storage = stored(memories[0], each)
    first, one = applied(memories[0], Tanh, batch)
    between, _ = applied(memories[0], Mul, first, shown)
    output, lost = applied(memories[0], Tanh, between)
    del between
    assert one.discard()
    assert lost.discard()
    short_of_memory(memories[0], storage)
    if is_function:  # of the program's, which may write to it
        memories[0].open(storage)
    shown.array[...] = 0
    assert np.array_equal(output.array, np.tanh(np.tanh(values()) * (values() * 2)))


def test_what_died_before_it_was_dropped_is_not_spare_and_held_by_nobody(memories):
    shown = chainer.Variable(values())
    storage = stored(memories[0], shown)
    del shown
    memories[0].drop(storage, may_lose=True)
    assert (storage.state, storage.is_held_on()) == (State.RESIDENT, False)


def test_a_function_that_retains_two_outputs_has_both_where_there_is_room_for_none(memories):
    first, second, one, other = applied(memories[0], Pair, chainer.Variable(values()))
    function, expected = first.creator_node, (np.sin(values()), np.cos(values()))
    with computing():
        short_of_memory(memories[0], one, other)
        assert [np.array_equal(*each) for each in zip(function.output_data, expected, strict=True)] == [True, True]
        del first, second
        short_of_memory(memories[0], one, other)
        found = [each.array for each in function.get_retained_outputs()]
        assert [np.array_equal(*each) for each in zip(found, expected, strict=True)] == [True, True]


def test_a_hook_is_shown_all_inputs_where_there_is_room_for_none(memories):
    shown = [chainer.Variable(values()) for _ in range(2)]
    for each in shown:
        each.retain_data()
    short_of_memory(memories[0], *(stored(memories[0], each) for each in shown))
    found = _ooc.in_data([each.node for each in shown], ['a hook'])
    assert [np.array_equal(each, values()) for each in found] == [True, True]


#: How the program reaches a map through the graph, beside its Variable.
PATHS = {
    'the node of a Variable': lambda function: function.outputs[0]().data,
    'an input of a function': lambda function: function.inputs[0].data,
    'the Variable of an input': lambda function: function.inputs[0].get_variable().array,
    'what a function retains': lambda function: function.output_data[0],
    'the Variable of an output': lambda function: function.get_retained_outputs()[0].array}


@pytest.fixture(params=PATHS)
def reached(request, memories):
    """A map of the first session: its storage, how it is reached, and a list of what is kept, its Variable first."""
    _ = _ooc.manager
    shown, = Tanh().apply((chainer.Variable(values()),))
    shown.retain_data()
    behind, = Tanh().apply((shown,))
    function = (behind if 'input' in request.param else shown).creator_node
    storage = stored(memories[0], shown)
    storage.add_slots(OutputSlot(shown.creator_node, 0))
    return storage, lambda: PATHS[request.param](function), [shown, shown.node, behind]


def test_what_is_written_through_the_graph_is_not_lost(reached):
    storage, get, kept = reached
    away(storage)
    del kept[0]
    with computing():
        assert np.array_equal(get(), np.tanh(values()))
    get()[...] = 0
    away(storage)
    with computing():
        assert not get().any()


def test_what_is_written_through_the_graph_reaches_no_map_that_is_made_again(memories, reached):
    storage, get, kept = reached
    output, lost = applied(memories[0], Tanh, kept.pop(0))
    assert [each.trusts(storage) for each in storage.readers()] == [True]
    get()[...] = 0
    assert not lost.discard()
    away(lost)
    assert np.array_equal(output.array, np.tanh(np.tanh(values())))


def test_what_chainer_reads_through_the_graph_leaves_again_without_a_copy(reached):
    storage, get, kept = reached
    away(storage)
    del kept[0]
    with computing():
        get()
    assert storage.has_true_copy()


@pytest.mark.parametrize('moments', range(100))
def test_what_is_written_after_a_failed_swap_out_was_interrupted_reaches_no_map_that_is_made_again(memories, moments):
    shown = chainer.Variable(values())
    shown.retain_data()
    output, lost = applied(memories[1], Tanh, shown)
    assert lost.discard()
    storage, = (each for each in memories[1].known() if each is not lost)
    memories[1].backend.fail_next('swap_out')
    assert memories[1].swap_out(storage)
    with contextlib.suppress(SpillError):
        interrupted(memories[1].settle, moments)
    memories[1].finish_swap_outs()
    shown.array[...] = 0
    assert np.array_equal(output.array, np.tanh(values()))


@pytest.mark.parametrize('moments', range(100))
def test_a_map_that_only_a_variable_shows_is_there_after_a_failed_swap_out_was_interrupted(memories, moments):
    shown = chainer.Variable(values())
    shown.retain_data()
    storage = stored(memories[0], shown)
    memories[0].backend.fail_next('swap_out')
    assert memories[0].swap_out(storage)
    with contextlib.suppress(SpillError):
        interrupted(memories[0].settle, moments)
    memories[0].finish_swap_outs()
    with computing():
        storage.fetch()
    shown.node.data = None  # as Chainer does when it unchains
    assert np.array_equal(shown.array, values())


@pytest.mark.parametrize('moments', range(100))
def test_a_failed_swap_in_that_is_interrupted_at_any_moment_can_be_tried_again(memories, moments):
    shown = chainer.Variable(values())
    storage = stored(memories[0], shown)
    away(storage)
    memories[0].backend.fail_next('swap_in')
    with contextlib.suppress(SpillError):
        interrupted(lambda: shown.array, moments)
    with contextlib.suppress(SpillError):  # it may come to that only now
        _ = shown.array
    assert np.array_equal(shown.array, values())


@pytest.mark.parametrize('moments', range(100))
def test_a_mapped_map_can_be_read_by_recipes_after_it_was_let_go_and_that_was_interrupted(memories, moments):
    shown = chainer.Variable(values())
    shown.retain_data()
    storage = stored(memories[0], shown)
    away(storage)
    memories[0].enter(Context(Tally(memories[0].backend), far=MAPPED))
    assert np.array_equal(shown.array, values())
    interrupted(lambda: memories[0].swap_out(storage), moments)
    output, lost = applied(memories[0], Tanh, shown)
    assert lost.discard()
    with computing():
        storage.fetch()
    assert np.array_equal(output.array, np.tanh(values()))


def test_what_only_a_copy_of_a_variable_shows_is_there_for_a_function_that_may_write_to_it():
    world = World(30)
    world.batch(0, 1)
    world.apply(0, 0)
    world.write(1, 0)
    world.send_away(0, 0)
    world.duplicate(0, 0)
    world.send_away(0, 0)
    world.hide(0, 0)  # what is left is the copy
    world.apply(1, -1)
    world.end()


@pytest.mark.parametrize('moments', range(100))
def test_a_mapped_map_whose_read_was_interrupted_leaves_and_comes_back_for_recipes(memories, moments):
    shown = chainer.Variable(values())
    shown.retain_data()
    output, lost = applied(memories[1], Tanh, shown)
    assert lost.discard()
    storage, = (each for each in memories[1].known() if each is not lost)
    away(storage)
    memories[1].enter(Context(Tally(memories[1].backend), far=MAPPED))
    interrupted(lambda: shown.array, moments)
    memories[1].swap_out(storage)
    with computing():
        storage.fetch()
    assert np.array_equal(output.array, np.tanh(values()))


def test_a_mapped_map_of_a_session_that_has_ended_is_not_dropped(memories):
    shown = chainer.Variable(values())
    storage = stored(memories[0], shown)
    away(storage)
    memories[0].enter(Context(Tally(memories[0].backend), far=MAPPED))
    assert np.array_equal(shown.array, values())
    memories[0].close()
    memories[0].drop(storage, may_lose=False)
    assert np.array_equal(shown.array, values())


def test_what_has_left_is_in_no_slot_meanwhile_and_in_no_memory_afterwards(memories):
    shown = chainer.Variable(values())
    shown.retain_data()
    storage = stored(memories[0], shown)
    assert memories[0].swap_out(storage)
    filled = []
    refill, Storage.refill = Storage.refill, lambda *arguments: filled.append(arguments)
    try:
        memories[0].settle()
    finally:
        Storage.refill = refill
    assert not filled
    assert storage.block is storage.root() is None
    assert (storage.state, memories[0].near_bytes()) == (State.AWAY, 0)
    assert np.array_equal(shown.array, values())


def test_what_was_read_while_it_left_and_is_dropped_goes_all_the_same(memories):
    shown = chainer.Variable(values())
    shown.retain_data()
    storage = stored(memories[0], shown)
    assert memories[0].swap_out(storage)
    with computing():
        assert np.array_equal(shown.node.data, values())
    memories[0].drop(storage, may_lose=False)
    memories[0].settle()
    assert (storage.state, memories[0].near_bytes()) == (State.AWAY, 0)
    assert np.array_equal(shown.array, values())


def test_a_copy_of_a_variable_outlives_its_graph_while_the_map_leaves():
    world = World()
    try:
        world.batch(0, 1)
        world.apply(0, 0)
        world.swap_out(1, 0)
        world.duplicate(1, 0)
        world.prefetch(1, 0)
        world.read(2, 0)
        world.drop(1, 1)
        world.hide(1, 0)
        world.forget(0, 0)
        for each in range(2):
            world.abandon_dead(each, 0)
            world.settle(each, 0)
        world.read(1, 0)
        world.check()
    finally:
        world.abandon()


def test_a_mapped_map_that_was_let_go_while_the_program_holds_it_can_be_given_on(memories):
    shown = chainer.Variable(values())
    shown.retain_data()
    storage = stored(memories[0], shown)
    away(storage)
    memories[0].enter(Context(Tally(memories[0].backend), far=MAPPED))
    given = chainer.Variable(shown.array)
    memories[0].swap_out(storage)
    assert storage.state is State.AWAY
    output, lost = applied(memories[0], Tanh, given)
    assert lost.discard()
    with computing():
        storage.fetch()
    assert np.array_equal(output.array, np.tanh(values()))


def test_a_forked_child_reads_what_is_there_though_it_cannot_make_what_is_made_from_it(memories):
    near, far = chainer.Variable(values()), chainer.Variable(values())
    far.retain_data()
    leaving = stored(memories[0], far, True)
    product, lost = applied(memories[0], Mul, near, far)
    applied(memories[0], Mul, product, product)
    assert lost.pending_uses > 0
    assert lost.discard()
    away(leaving)
    child = os.fork()
    if not child:
        status = 1
        try:
            memories[0].leave_to_parent()
            status = 0 if np.array_equal(near.array, values()) else 2
            with pytest.raises(SpillError):
                far.array  # noqa: B018
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    near.array[...] = 0
    assert np.array_equal(product.array, values() * values())


def test_what_a_call_has_retained_before_it_was_interrupted_is_watched_again(memories):
    shown = chainer.Variable(values())
    shown.retain_data()
    output, lost = applied(memories[0], Tanh, shown)
    applied(memories[0], Mul, output, output)
    assert lost.discard()
    with computing():
        shown.node.retain_data()  # as Chainer does for one more function; of that nobody is told
    memories[0].mend()
    shown.node.data[...] = 0  # through the graph
    assert np.array_equal(output.array, np.tanh(values()))


def test_a_step_of_a_function_that_had_not_retained_it_is_no_debt_of_later_ones(memories):
    """An array that the program puts in the place of what a function has retained, again and again."""
    storage = stored(memories[0], chainer.Variable(values()))
    assert storage.note_backward()
    storage.retain()
    storage.retain()
    assert not storage.note_backward()
    assert storage.note_backward()
