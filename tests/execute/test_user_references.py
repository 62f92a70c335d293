"""P1: whoever reads a map gets its content, whenever, wherever it is; what he writes, Chainer computes with."""
import copy
import functools
import pickle
import re
import threading
import weakref

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.errors import InfeasibleBudgetError
from support.trainings.ooc_training import POLICIES, SWAPPING, ooc
from support.trainings.shown_maps import batch, make, steps


@pytest.fixture(params=[*POLICIES, 'map-all'])
def policy(request, verdict_mixes):
    return request.param


@functools.cache
def expected(count):
    """What the kept Variables show after so many iterations of plain Chainer: name -> array."""
    drawn_so_far = np.random.get_state()
    with chainer.using_config('ooc', None):
        model = make()
        steps(model, count)
    np.random.set_state(drawn_so_far)
    return {name: variable.array.copy() for name, variable in model.h.items()}


def assert_shows(variables, arrays):
    assert {name for name, array in arrays.items() if not np.array_equal(variables[name].array, array)} == set()


@pytest.mark.parametrize('count', [1, 2, 3])
def test_kept_variables_are_right_after_backward(policy, count):
    model = make()
    with ooc(policy):
        steps(model, count)
        assert_shows(model.h, expected(count))
        assert_shows(model.h, expected(count))


@pytest.mark.parametrize('count', [1, 2, 3])
def test_kept_variables_are_right_between_forward_and_backward(policy, count):
    model = make()
    with ooc(policy):
        steps(model, count - 1)
        loss = model(*batch(count - 1))
        assert_shows(model.h, expected(count))
        model.cleargrads()
        loss.backward()
        assert_shows(model.h, expected(count))


@pytest.mark.parametrize('count', [1, 2, 3])
def test_variables_read_within_forward_are_right(policy, count):
    def look_at_all(model):
        return lambda name, variable: seen.append({key: each.array.copy() for key, each in model.h.items()})

    seen, model = [], make()
    with ooc(policy):
        losses = steps(model, count, look_at_all(model))
    out_of_core, seen, model = seen, [], make()
    assert losses == steps(model, count, look_at_all(model))
    for ours, theirs in zip(out_of_core, seen, strict=True):
        assert list(ours) == list(theirs)
        assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


class Reader(chainer.FunctionHook):
    """Reads all kept Variables before and after each function's backward."""

    name = 'Reader'

    def __init__(self, model):
        self.model = model
        self.seen = []

    def backward_preprocess(self, function, in_data, out_grad):
        self.seen.append({name: each.array.copy() for name, each in self.model.h.items()})

    backward_postprocess = backward_preprocess


def test_variables_read_by_a_hook_in_backward_are_right(policy):
    model = make()
    with ooc(policy), Reader(model) as reader:
        losses = steps(model, 3)
    plain = make()
    with Reader(plain) as plain_reader:
        assert losses == steps(plain, 3)
    assert len(reader.seen) == len(plain_reader.seen) > 0
    for ours, theirs in zip(reader.seen, plain_reader.seen, strict=True):
        assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


def test_variables_of_an_earlier_iteration_stay_right(policy):
    model, history = make(), []
    with ooc(policy):
        for number in range(4):
            loss = model(*batch(number))
            model.cleargrads()
            loss.backward()
            history.append(model.h)
    for number in (2, 0, 3, 1):
        plain = make()
        for each in range(number + 1):
            plain(*batch(each)).backward()
        assert_shows(history[number], {name: each.array for name, each in plain.h.items()})


@pytest.mark.parametrize('count', [1, 3])
@pytest.mark.parametrize('moment', ['before backward', 'after backward'])
def test_variables_survive_reset(policy, count, moment):
    model = make()
    with ooc(policy):
        steps(model, count - 1)
        loss = model(*batch(count - 1))
        model.cleargrads()
        if moment == 'before backward':
            chainer_ooc.reset()
        loss.backward()
        chainer_ooc.reset()
        assert_shows(model.h, expected(count))
        losses = steps(model, 2)
    plain = make()
    steps(plain, count - 1)
    plain(*batch(count - 1))
    assert losses == steps(plain, 2)


@pytest.mark.parametrize('count', [1, 3])
def test_variables_are_right_when_ooc_is_switched_off(policy, count):
    model = make()
    with ooc(policy):
        steps(model, count - 1)
        loss = model(*batch(count - 1))
    assert_shows(model.h, expected(count))
    model.cleargrads()
    loss.backward()
    assert_shows(model.h, expected(count))
    plain = make()
    steps(plain, count - 1)
    plain_loss = plain(*batch(count - 1))
    plain.cleargrads()
    plain_loss.backward()
    for ours, theirs in zip(model.params(), plain.params(), strict=True):
        assert np.array_equal(ours.grad, theirs.grad)


def test_backward_of_a_plain_graph_works_when_ooc_is_switched_on(policy):
    model = make()
    loss = model(*batch())
    model.cleargrads()
    with ooc(policy):
        loss.backward()
        assert_shows(model.h, expected(1))
        assert np.isfinite(steps(model, 2)).all()


def test_raw_arrays_that_the_user_holds_keep_their_content(policy):
    held = {}
    model = make()
    with ooc(policy):
        steps(model, 3, lambda name, variable: held.update({name: variable.array}))
    for name, array in expected(3).items():
        assert np.array_equal(held[name], array), name
        assert np.shares_memory(held[name], model.h[name].array), name


def gradients_with(write, count, policy=None):
    """Gradients when `write(model, held)` runs between forward and backward."""
    model = make()
    for number in range(count):
        held = {}

        def hold(name, variable, held=held):
            held[name] = variable.array

        loss = model(*batch(number), hold)
        write(model, held)
        del held, hold
        model.cleargrads()
        loss.backward()
    return [parameter.grad for parameter in model.params()]


def write_into_held(model, held):
    for array in held.values():
        array[...] *= 1.5


@pytest.mark.parametrize('count', [1, 2, 3])
def test_writing_into_a_held_array_counts_in_backward(policy, count):
    plain = gradients_with(write_into_held, count)
    with ooc(policy):
        ours = gradients_with(write_into_held, count)
    assert all(np.array_equal(one, other) for one, other in zip(ours, plain, strict=True))
    assert not all(np.array_equal(one, other) for one, other in
                   zip(gradients_with(lambda model, held: None, count), plain, strict=True))


def write_through_the_variable(model, held):
    held.clear()
    for variable in model.h.values():
        variable.array[...] *= 1.5


def test_writing_through_the_variable_after_forward_counts_in_backward(policy):
    plain = gradients_with(write_through_the_variable, 3)
    with ooc(policy):
        ours = gradients_with(write_through_the_variable, 3)
    assert all(np.array_equal(one, other) for one, other in zip(ours, plain, strict=True))


def gradients_when_written_within_forward(count):
    """Writes through the Variables that were made before, between any two calls, and holds on to nothing."""
    model = make()

    def write(name, variable):
        for each in model.h.values():
            each.array[...] *= 1.25

    for number in range(count):
        loss = model(*batch(number), write)
        model.cleargrads()
        loss.backward()
    return [parameter.grad for parameter in model.params()]


@pytest.mark.parametrize('count', [1, 2, 3])
def test_writing_through_the_variable_within_forward_counts(policy, count):
    plain = gradients_when_written_within_forward(count)
    with ooc(policy):
        ours = gradients_when_written_within_forward(count)
    assert all(np.array_equal(one, other) for one, other in zip(ours, plain, strict=True))


@pytest.mark.host
@pytest.mark.parametrize('count', [1, 2, 3])
@pytest.mark.parametrize('policy', SWAPPING)
def test_writing_while_the_copy_is_under_way_counts(policy, count, monkeypatch):
    """A swap-out that has copied the old bytes must not win over what is written meanwhile."""
    plain = gradients_with_late_write(count)
    copied, go_on = threading.Event(), threading.Event()
    from chainer_ooc.backends.host.backend import HostBackend
    make_copy = HostBackend._write

    def copy_and_linger(self, *args):
        result = make_copy(self, *args)
        copied.set()
        go_on.wait(0.1)
        return result

    monkeypatch.setattr(HostBackend, '_write', copy_and_linger)
    with ooc(policy):
        ours = gradients_with_late_write(count, copied, go_on)
    assert all(np.array_equal(one, other) for one, other in zip(ours, plain, strict=True))


def gradients_with_late_write(count, copied=None, go_on=None):
    """Writes through the Variables between forward and backward, while the first one's copy is just written."""
    model = make()
    for number in range(count):
        if go_on is not None:
            copied.clear()
            go_on.clear()
        loss = model(*batch(number))
        if copied is not None:
            copied.wait(0.2)
        for variable in model.h.values():
            variable.array[...] *= 1.5
        if go_on is not None:
            go_on.set()
        model.cleargrads()
        loss.backward()
    return [parameter.grad for parameter in model.params()]


@pytest.mark.parametrize('moment', ['before backward', 'after backward'])
@pytest.mark.parametrize('duplicate', [
    copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each)), lambda each: each + 0,
    lambda each: chainer.Variable(each.array), lambda each: chainer.as_variable(each)])
def test_copies_of_a_variable_show_its_content(policy, duplicate, moment):
    model = make()
    with ooc(policy):
        steps(model, 2)
        loss = model(*batch(2))
        model.cleargrads()
        if moment == 'after backward':
            loss.backward()
        copies = {name: duplicate(each) for name, each in model.h.items()}
        if moment == 'before backward':
            loss.backward()
        assert_shows(copies, expected(3))
        assert_shows(model.h, expected(3))
        steps(model, 2)
        assert_shows(copies, expected(3))


def test_copy_outlives_the_variable_and_the_graph(policy):
    model = make()
    with ooc(policy):
        steps(model, 2)
        loss = model(*batch(2))
        copies = {name: copy.copy(each) for name, each in model.h.items()}
        model.cleargrads()
        loss.backward()
        model.h = None
        del loss
        assert_shows(copies, expected(3))
        steps(model, 1)
        assert_shows(copies, expected(3))


def without_address(text):
    return re.sub('0x[0-9a-f]+', '', text)


READS = [
    lambda each: each.shape, lambda each: each.dtype, lambda each: each.ndim, lambda each: each.size, len,
    lambda each: each.data.tobytes(), lambda each: each.array.tobytes(), lambda each: each.node.shape,
    lambda each: each.node.dtype, lambda each: each.xp, lambda each: each.device, lambda each: each.label,
    lambda each: without_address(repr(each)), lambda each: without_address(str(each)),
    lambda each: each.array.flags.c_contiguous, lambda each: each.array.strides,
    lambda each: each.array.flags.writeable,
    lambda each: each[0].array.tobytes(), lambda each: without_address(each.summary()),
    lambda each: without_address(each.debug_print()),
    lambda each: each.T.array.tobytes(), lambda each: (each.to_cpu(), each.array.tobytes())[1]]


def test_each_way_of_reading_a_variable_gives_what_plain_chainer_gives(policy):
    plain = make()
    steps(plain, 3)
    for read in READS:
        model = make()
        with ooc(policy):
            steps(model, 3)
            assert {name: read(each) for name, each in model.h.items()} == {
                name: read(each) for name, each in plain.h.items()}


def graph_nodes(variable):
    """The variable nodes and functions behind a Variable, in one order."""
    nodes, functions, todo = [], [], [variable.creator_node]
    while todo:
        function = todo.pop()
        if function is None or any(function is each for each in functions):
            continue
        functions.append(function)
        nodes.extend(function.inputs)
        todo.extend(each.creator_node for each in function.inputs)
    return nodes, functions


@pytest.mark.parametrize('policy', SWAPPING)
@pytest.mark.parametrize('moment', ['before backward', 'after backward'])
@pytest.mark.parametrize('count', [1, 2, 3])
def test_nodes_and_functions_show_what_they_show_in_plain_chainer(policy, moment, count):
    def look(model):
        steps(model, count - 1)
        loss = model(*batch(count - 1))
        model.cleargrads()
        if moment == 'after backward':
            loss.backward()
        model.h = {}
        nodes, functions = graph_nodes(loss)
        shown = [None if each.data is None else each.data.copy() for each in nodes]
        for function in functions:
            try:
                shown.append([None if each is None else each.copy() for each in function.output_data])
            except RuntimeError:  # Chainer's own: the function retains no output, or its output nodes are gone
                shown.append('gone')
            shown += [getattr(function, name).copy() for name in ('mask', 'y', '_out') if isinstance(
                getattr(function, name, None), np.ndarray)]
        return shown

    plain = look(make())
    with ooc(policy):
        ours = look(make())
    assert len(ours) == len(plain)
    np.testing.assert_equal(ours, plain)
    assert sum(each is not None for each in plain) > 10


@pytest.mark.parametrize('moment', ['before backward', 'after backward'])
def test_mask_of_dropout_can_be_read_from_the_creator(policy, moment):
    model = make()
    with ooc(policy):
        steps(model, 2)
        loss = model(*batch(2))
        model.cleargrads()
        function = model.h['c'].creator
        b = model.h['b'].array.copy()
        if moment == 'after backward':
            if policy == 'keep':
                pytest.skip('keep drops what only a function shows (see LostMapError)')
            loss.backward()
        assert hasattr(function, 'mask') and 'mask' in dir(function)
        assert np.array_equal(function.mask * b, model.h['c'].array)


def backward_twice(model):
    gradients = []
    for number in range(3):
        loss = model(*batch(number))
        model.cleargrads()
        loss.backward()
        loss.backward()
        gradients += [parameter.grad.copy() for parameter in model.params()]
    return gradients


@pytest.mark.parametrize('policy', SWAPPING)
def test_backward_twice_on_one_graph_gives_the_bits_of_plain_chainer(policy):
    plain = backward_twice(make())
    with ooc(policy):
        ours = backward_twice(make())
    assert all(np.array_equal(one, other) for one, other in zip(ours, plain, strict=True))


def twice_after_once(model):
    """Two iterations with one backward pass, then three with two."""
    steps(model, 2)
    return backward_twice(model)


@pytest.mark.parametrize('policy', SWAPPING)
def test_backward_twice_on_a_graph_that_is_planned_for_once(policy):
    plain = twice_after_once(make())
    with ooc(policy):
        ours = twice_after_once(make())
    assert all(np.array_equal(one, other) for one, other in zip(ours, plain, strict=True))


def test_keep_learns_that_a_graph_is_run_backward_twice():
    from chainer_ooc.errors import LostMapError
    model, refused = make(), []
    with ooc('keep'):
        steps(model, 2)
        np.random.seed(5)
        for _ in range(2):
            state = np.random.get_state()
            loss = model(*batch())
            model.cleargrads()
            loss.backward()
            try:
                loss.backward()
            except LostMapError as error:
                refused.append(str(error))
                np.random.set_state(state)
                continue
            break
        assert len(refused) <= 1
        assert all('cannot be made again' in each and "'swap-all'" in each for each in refused)
    plain = make()
    steps(plain, 2)
    np.random.seed(5)
    loss = plain(*batch())
    plain.cleargrads()
    loss.backward()
    loss.backward()
    for ours, theirs in zip(model.params(), plain.params(), strict=True):
        assert np.array_equal(ours.grad, theirs.grad)


def test_keep_runs_backward_twice_from_the_first_iteration_on():
    plain = backward_twice(make())
    with ooc('keep'):
        ours = backward_twice(make())
    assert all(np.array_equal(one, other) for one, other in zip(ours, plain, strict=True))


def test_array_put_into_a_variable_that_is_away_replaces_it(policy):
    def run(model):
        for number in range(3):
            loss = model(*batch(number))
            model.h['b'].array = np.full_like(model.h['b'].array, 0.25)
            model.h['e'].array = model.h['e'].array + 1
            model.cleargrads()
            loss.backward()
        return [parameter.grad for parameter in model.params()], model.h['b'].array, model.h['e'].array

    plain = run(make())
    with ooc(policy):
        ours = run(make())
    np.testing.assert_equal(ours, plain)


@pytest.mark.parametrize('policy', ['auto', 'capacity', 'pooch', 'tensor-cache'])
def test_what_replaces_an_output_stays_until_its_function_has_read_it(policy):
    """Backward of a function reads what its output's node has; it was dropped with the last call that was given it."""
    def run(budget):
        np.random.seed(0)
        model, found = chainer.ChainList(*[L.Linear(64, 64) for _ in range(4)]), []
        with ooc(policy, budget=budget, min_bytes=0) if budget else chainer.using_config('ooc', None):
            for number in range(8):
                h = F.sigmoid(F.relu(model[1](F.relu(model[0](np.random.randn(256, 64).astype(np.float32))))))
                g = F.tanh(h) * F.exp(-h)
                if number % 2:
                    h.array = h.array * np.float32(0.5)
                loss = F.mean(F.square(F.sigmoid(F.tanh(model[3](F.relu(model[2](F.softplus(h) + g)))))))
                del h, g
                model.cleargrads()
                loss.backward()
                found.append([parameter.grad for parameter in model.params()])
        return found

    with pytest.raises(InfeasibleBudgetError) as refused:
        run(1)
    chainer_ooc.reset()
    np.testing.assert_equal(run(int(1.2 * refused.value.floor_bytes)), run(None))


def test_batch_in_a_variable_is_readable_as_long_as_the_user_has_it(policy):
    model = make()
    with ooc(policy):
        for number in range(3):
            x, t = batch(number)
            given = chainer.Variable(x.copy()), chainer.Variable(t.copy())
            loss = model(*given)
            assert np.array_equal(given[0].array, x)
            loss.backward()
            assert np.array_equal(given[0].array, x)
            assert np.array_equal(given[1].array, t)


def test_slices_of_a_data_set_stay_views_of_it(policy):
    data = np.random.RandomState(0).uniform(-1, 1, (32, 30)).astype(np.float32)
    before = data.copy()
    model = make()
    with ooc(policy):
        for start in (0, 8, 16):
            x = chainer.Variable(data[start:start + 8])
            loss = model(x, batch()[1])
            loss.backward()
            assert np.shares_memory(x.array, data)
    assert np.array_equal(data, before)


def test_nothing_keeps_a_dropped_graph_alive(policy):
    model = make()
    with ooc(policy):
        for number in range(3):
            loss = model(*batch(number))
            node = weakref.ref(loss.creator_node)
            variable = weakref.ref(model.h['a'])
            loss.backward()
            model.h = None
            del loss
            assert node() is None and variable() is None


@pytest.mark.parametrize('argument', [(np.zeros(3, np.float32),) * 2, 3.5, 'text', None])
def test_what_is_no_array_gets_the_error_of_plain_chainer(argument):
    def message():
        try:
            F.tile(argument, 2)
        except Exception as error:
            return type(error), str(error)
    plain = message()
    assert plain is not None
    with ooc():
        assert message() == plain


def test_variables_of_another_memory_layout_pass_through():
    def program():
        with chainer.using_config('compute_mode', 'cudnn_fast'):
            link = L.BatchNormalization((4,), axis=(0, 2, 3))
        x = np.random.RandomState(0).randn(2, 5, 6, 4).astype(np.float32)
        x = chainer.Variable(x, layout=chainer.memory_layouts.CUDNN_CHANNEL_LAST_X)
        y = link(x)
        return y.shape, y.layout, y.raw_array.tobytes()
    plain = program()
    with ooc():
        assert program() == plain
