"""Who holds a block of storage, and what its slots give up and take back.

Whether anybody but the slots refers to the block is told by reference counts, which differ between releases of Python:
every situation is tried with both answers.
"""
import chainer_ooc  # noqa: F401  before chainer

# isort: split
import copy
import warnings

import chainer
import chainer.functions as F
import numpy as np
import pytest

from chainer_ooc.backends import arrays
from chainer_ooc.backends.host import HostBackend
from chainer_ooc.errors import LostMapError
from chainer_ooc.execute.memory import late_recipes
from chainer_ooc.execute.memory.residency import Residency
from chainer_ooc.execute.storage.slots import (
    AttributeSlot,
    Away,
    NodeSlot,
    OutputSlot,
    VariableSlot,
    Watched,
    hidden_slots,
)
from chainer_ooc.execute.storage.states import State


@pytest.fixture
def residency(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # the folder for temporary files may be a RAM disk
        backend = HostBackend(str(tmp_path))
    residency = Residency(backend)
    yield residency
    residency.close()


def made(shape=(6, 4)):
    return np.arange(np.prod(shape), dtype='f4').reshape(shape).copy()


def retained(array):
    """A Variable whose node keeps its array for backward."""
    variable = chainer.Variable(array)
    variable.retain_data()
    return variable


def stored(residency, array, *slots):
    storage = residency.register(array, arrays.root_of(array), None, 0, from_outside=False)
    for slot in slots:
        if isinstance(slot, NodeSlot):
            storage.add_node(slot.owner())
        else:
            storage.add_slots(slot)
    return storage


def sent_away(residency, storage):
    assert residency.swap_out(storage)
    residency.settle()
    assert storage.state is State.AWAY
    return storage


class Keeper(chainer.FunctionNode):
    """Retains all its outputs, and may hide arrays on itself."""

    def __init__(self, count=1, views=False):
        self.count, self.views = count, views

    def forward(self, inputs):
        self.retain_outputs(range(self.count))
        first = inputs[0] + 1
        return (first, *(first[index:] if self.views else inputs[0] + index for index in range(1, self.count)))


# --- held_elsewhere: False -------------------------------------------------------------------------------------------


def test_a_variable_and_its_node_alone_hold_their_array(residency):
    variable = retained(made())
    storage = stored(residency, variable.array, NodeSlot(variable.node))
    assert not storage.is_held_elsewhere()


def test_a_variable_alone_holds_its_array(residency):
    variable = chainer.Variable(made())
    storage = stored(residency, variable.array, NodeSlot(variable.node))
    assert not storage.is_held_elsewhere()
    assert storage.is_in_variables()
    assert not storage.is_retained()


def test_a_node_alone_holds_its_array(residency):
    variable = retained(made())
    node = variable.node
    del variable
    storage = stored(residency, node._data, NodeSlot(node))
    assert not storage.is_held_elsewhere()
    assert not storage.is_in_variables()
    assert storage.is_retained()


def test_two_nodes_hold_the_same_array(residency):
    array = made()
    one, other = retained(array), retained(array)
    storage = stored(residency, array, NodeSlot(one.node), NodeSlot(other.node))
    del array
    assert not storage.is_held_elsewhere()


def test_nodes_hold_views_of_views(residency):
    array = made()
    whole, part = retained(array), retained(array[1:][::-1])
    turned = retained(part.array.T)
    storage = stored(residency, array, *(NodeSlot(each.node) for each in (whole, part, turned)))
    del array
    assert not storage.is_held_elsewhere()


def test_only_views_hold_the_block(residency):
    part = retained(made()[2:])
    storage = stored(residency, part.array, NodeSlot(part.node))
    assert not storage.is_held_elsewhere()


def test_a_function_and_its_output_node_hold_a_retained_output(residency):
    output, = Keeper().apply((retained(made()),))
    function = output.creator_node
    assert function._retained_output_data[0] is output.array
    storage = stored(residency, output.array, NodeSlot(output.node), OutputSlot(function, 0))
    assert not storage.is_held_elsewhere()


def test_a_function_hides_its_array(residency):
    function = Keeper()
    function.mask = made()
    storage = stored(residency, function.mask, *hidden_slots(function))
    assert not storage.is_held_elsewhere()


def test_a_place_named_twice_counts_once(residency):
    variable = retained(made())
    storage = stored(residency, variable.array, NodeSlot(variable.node), NodeSlot(variable.node))
    assert len(storage.slots) == 2  # the node's and its Variable's
    assert not storage.is_held_elsewhere()


def test_a_block_that_came_back_is_held_by_its_places_alone(residency):
    array = made()
    whole, part = retained(array), retained(array[1:])
    storage = stored(residency, array, NodeSlot(whole.node), NodeSlot(part.node))
    del array
    sent_away(residency, storage).fetch()
    assert not storage.is_held_elsewhere()


# --- held_elsewhere: True --------------------------------------------------------------------------------------------

HOLDS = {
    'the array': lambda array: array,
    'a view': lambda array: array[1:],
    'a view of a view': lambda array: array[1:].T[::-1],
    'a list of views': lambda array: [array[:2], array[2:]],
    'a buffer of it': memoryview,
    'a dictionary': lambda array: {'h': array},
    'a closure': lambda array: (lambda: array),
    'another Variable': lambda array: chainer.Variable(array),
    'another Variable on a view': lambda array: retained(array[1:]),
    'a broadcast': lambda array: np.broadcast_to(array, (3, *array.shape)),
    'strides': lambda array: np.lib.stride_tricks.as_strided(array, (2, 2), (4, 4)),
}


@pytest.mark.parametrize('hold', HOLDS)
def test_whoever_else_holds_the_block_is_noticed_and_it_stays(residency, hold):
    variable = retained(made())
    storage = stored(residency, variable.array, NodeSlot(variable.node))
    held = HOLDS[hold](variable.array)
    assert storage.is_held_elsewhere()
    assert not residency.swap_out(storage)
    assert storage.state is State.RESIDENT
    del held
    assert not storage.is_held_elsewhere()
    assert residency.swap_out(storage)


@pytest.mark.parametrize('hold', HOLDS)
def test_whoever_takes_hold_while_the_block_is_leaving_is_noticed(residency, hold):
    variable = retained(made())
    storage = stored(residency, variable.array, NodeSlot(variable.node))
    assert residency.swap_out(storage)
    held = HOLDS[hold](variable.array)
    residency.settle()
    assert storage.state is State.RESIDENT
    assert np.array_equal(variable.array, made())
    del held
    sent_away(residency, storage)


def test_a_place_that_is_not_known_counts_as_somebody_else(residency):
    output, = Keeper().apply((retained(made()),))
    storage = stored(residency, output.array, NodeSlot(output.node))
    assert storage.is_held_elsewhere()


def test_an_unknown_view_of_the_same_block_counts_too(residency):
    whole, part = Keeper(2, views=True).apply((retained(made()),))
    function = whole.creator_node
    slots = [NodeSlot(whole.node), NodeSlot(part.node), OutputSlot(function, 0)]
    storage = stored(residency, whole.array, *slots)
    assert storage.is_held_elsewhere()
    storage.add_slots(OutputSlot(function, 1))
    assert not storage.is_held_elsewhere()


# --- what slots give up and take back -------------------------------------------------------------------------------


def test_a_node_and_its_variable_give_up_and_take_back_one_array(residency):
    variable = retained(made())
    node = variable.node
    storage = sent_away(residency, stored(residency, variable.array, NodeSlot(node)))
    assert node._data is None
    assert type(node._ooc) is Away
    assert type(variable._data) is Watched
    assert np.array_equal(node.data, made())
    assert storage.state is State.RESIDENT
    assert node._ooc is None
    assert variable._data.away is None
    assert variable._data[0] is node._data


@pytest.mark.parametrize('read', [
    lambda variable: variable.array, lambda variable: variable.data, lambda variable: variable.node.data,
    lambda variable: variable[...].array, lambda variable: copy.deepcopy(variable).array,
    lambda variable: np.array(variable.array.tolist(), 'f4'), lambda variable: F.identity(variable).array],
    ids=['array', 'data', 'node', 'slice', 'deep copy', 'list', 'function'])
def test_however_it_is_read_the_array_comes_back(residency, read):
    variable = retained(made())
    storage = sent_away(residency, stored(residency, variable.array, NodeSlot(variable.node)))
    assert np.array_equal(read(variable), made())
    assert storage.state is State.RESIDENT


@pytest.mark.parametrize(('ask', 'answer'), [
    (lambda variable: variable.shape, (6, 4)), (lambda variable: variable.ndim, 2),
    (lambda variable: variable.size, 24),
    (lambda variable: variable.dtype, np.dtype('f4')), (len, 6)], ids=['shape', 'ndim', 'size', 'dtype', 'len'])
def test_questions_about_its_form_are_answered(residency, ask, answer):
    variable = retained(made())
    sent_away(residency, stored(residency, variable.array, NodeSlot(variable.node)))
    assert ask(variable) == answer


def test_a_node_whose_variable_died_while_it_was_away_takes_its_array_back(residency):
    variable = retained(made())
    node = variable.node
    sent_away(residency, stored(residency, variable.array, NodeSlot(node)))
    del variable
    assert np.array_equal(node.get_variable().array, made())


def test_a_new_array_replaces_one_that_is_away(residency):
    variable = retained(made())
    storage = sent_away(residency, stored(residency, variable.array, NodeSlot(variable.node)))
    variable.array = made() * 2
    assert storage.state is State.AWAY, 'the old array was fetched for nothing'
    storage.fetch()
    assert np.array_equal(variable.array, made() * 2)


def test_new_data_of_a_node_replaces_that_which_is_away(residency):
    variable = retained(made())
    node = variable.node
    storage = sent_away(residency, stored(residency, variable.array, NodeSlot(node)))
    node.data = made() * 3
    storage.fetch()
    assert np.array_equal(node.data, made() * 3)
    assert np.array_equal(variable.array, made())


def test_a_retained_output_is_given_up_with_its_node_and_comes_back_as_the_same_array(residency):
    output, = Keeper().apply((retained(made()),))
    function, node = output.creator_node, output.node
    slots = NodeSlot(node), OutputSlot(function, 0)
    sent_away(residency, stored(residency, output.array, *slots))
    assert function._retained_output_data == (None,)
    data, = function.output_data
    assert np.array_equal(data, made() + 1)
    assert data is node._data
    assert not function._ooc


def test_one_of_two_retained_outputs_can_be_away(residency):
    one, other = Keeper(2).apply((retained(made()),))
    function = one.creator_node
    sent_away(residency, stored(residency, one.array, NodeSlot(one.node), OutputSlot(function, 0)))
    assert function._retained_output_data[0] is None
    assert function._retained_output_data[1] is other.array
    assert [np.array_equal(data, want) for data, want in zip(
        function.output_data, (made() + 1, made() + 1), strict=True)] == [True, True]


def test_an_attribute_is_absent_while_it_is_away_and_comes_back_when_it_is_read(residency):
    function = Keeper()
    function.mask = made()
    storage = sent_away(residency, stored(residency, function.mask, AttributeSlot(function, 'mask')))
    assert 'mask' not in function.__dict__
    assert np.array_equal(function.mask, made())
    assert storage.state is State.RESIDENT
    with pytest.raises(AttributeError, match='no attribute'):
        _ = function.never_there


def test_an_attribute_that_is_set_anew_stays_what_it_was_set_to(residency):
    function = Keeper()
    function.mask = made()
    storage = sent_away(residency, stored(residency, function.mask, AttributeSlot(function, 'mask')))
    function.mask = None
    storage.fetch()
    assert function.mask is None


class OldStyle(chainer.Function):
    shared = np.zeros(3)

    def forward(self, inputs):
        self.indexes, self.shared = made(), made()
        return inputs


def test_hidden_slots_are_arrays_of_the_instance_alone():
    function = Keeper()
    function.mask, function.size, function.subclass = made(), 3, np.ma.zeros(3)
    assert [slot.key for slot in hidden_slots(function)] == [(id(function), 'mask')]
    adapter = OldStyle()(retained(made())).creator_node
    assert [slot.key for slot in hidden_slots(adapter)] == [(id(adapter.function), 'indexes')]


# --- Watched ----------------------------------------------------------------------------------------------------------


class Absent:
    """A stand-in that fills a list when it is fetched, and counts."""

    def __init__(self, array):
        self.array, self.fetched, self.vacant = array, 0, None

    def fetch(self):
        self.fetched += 1
        return self.array


@pytest.fixture
def vacant():
    absent = Absent('array')
    absent.vacant = Watched(absent, None)
    return absent.vacant


@pytest.mark.parametrize('index', [0, -1])
def test_reading_the_element_fetches_it_once(vacant, index):
    absent = vacant.away
    assert [vacant[index], vacant[index]] == ['array', 'array']
    assert absent.fetched == 1
    assert vacant.away is None


def test_a_slice_fetches_too(vacant):
    assert vacant[:] == ['array']


def test_setting_the_element_forgets_the_one_that_is_away(vacant):
    absent = vacant.away
    vacant[0] = 'new'
    assert (vacant[0], absent.fetched) == ('new', 0)


def test_a_vacant_list_is_a_list_of_one(vacant):
    assert isinstance(vacant, list)
    assert len(vacant) == 1
    assert vacant.away.fetched == 0


def test_a_read_out_of_range_is_an_index_error(vacant):
    with pytest.raises(IndexError):
        _ = vacant[1]


def test_a_failed_fetch_leaves_the_list_as_it_was(vacant, monkeypatch):
    absent = vacant.away
    monkeypatch.setattr(absent, 'array', property(), raising=True)
    monkeypatch.setattr(Absent, 'fetch', lambda self: (_ for _ in ()).throw(OSError('disk')))
    with pytest.raises(OSError, match='disk'):
        _ = vacant[0]
    assert vacant.away is absent


def test_a_copy_of_a_variable_shares_what_is_away(residency):
    variable = retained(made())
    sent_away(residency, stored(residency, variable.array, NodeSlot(variable.node)))
    other = copy.copy(variable)
    assert np.array_equal(other.array, made())
    assert np.array_equal(variable.array, made())


def test_a_copy_that_is_left_of_a_variable_is_a_slot_too(residency):
    variable = retained(made())
    storage = stored(residency, variable.array, NodeSlot(variable.node))
    storage.notice_reads()
    other = copy.copy(variable)
    _, slot = storage.slots.values()
    del variable
    assert slot.owner() is None
    next_one = VariableSlot(chainer.Variable(made()).node)
    next_one.key = slot.key  # its node has come to lie where the first one lay
    storage.add_slots(next_one)
    sent_away(residency, storage)
    assert isinstance(slot.get(), Away)
    with pytest.raises(LostMapError):  # no function is left that it could be made again from
        late_recipes._producer(storage, np.inf)
    assert np.array_equal(other.array, made())
    assert storage.is_wanted()
    del other
    assert not storage.is_wanted()
