"""A floor that was named without doubt works at once, whatever budget it was recorded under."""
import copy
import os
import time

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.execute.memory.transit import Transit
from chainer_ooc.execute.storage.storage import Storage
from support.combinations import spread
from support.interrupting import interrupted_at
from support.trainings import several_graphs
from support.trainings.ooc_training import ooc

#: What users are told to add.
MARGIN = 1.02


def floors_of(make, policy):
    """What is named for one program after the other with the budget that was named before, until it goes through."""
    floors, budget = [], 1
    while len(floors) < 8:
        chainer_ooc.reset()
        np.random.seed(0)
        iterate = make()
        try:
            with ooc(policy, budget=budget, min_bytes=2000):
                for number in range(4):
                    iterate(number)
            return floors
        except InfeasibleBudgetError as error:
            floors.append((error.floor_bytes, error.where, error.doubt))
            budget = int(MARGIN * error.floor_bytes)
        finally:
            del iterate
    return floors


def blocks_repeated():
    """The caller's frame holds the batch throughout forward; under a short budget it was evicted right after that."""
    block = chainer.Sequential(L.Linear(128, 128), F.relu, lambda h: F.dropout(h, 0.2), L.BatchNormalization(128))
    model = chainer.Sequential(L.Linear(128, 128), block.repeat(4), L.Linear(128, 5))
    optimizer = chainer.optimizers.MomentumSGD().setup(model)

    def iterate(number):
        loss = F.softmax_cross_entropy(
            model(np.full((256, 128), number, np.float32)), np.full(256, number, np.int32))
        model.cleargrads()
        loss.backward()
        optimizer.update()
    return iterate


def images(number):
    """A batch of 16 of 3 x 16 x 16, and labels."""
    draw = np.random.RandomState(number)
    return draw.uniform(-1, 1, (16, 3, 16, 16)).astype(np.float32), draw.randint(0, 10, 16).astype(np.int32)


class Reads(chainer.FunctionHook):
    """Reads what it is shown, and may write to it as far as anybody knows."""

    def backward_preprocess(self, function, in_data, out_grad):
        self.total = sum(float(each.sum()) for each in in_data if each is not None)


class Convolutions(chainer.Chain):
    """Two convolutions with batch normalization."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.c1 = L.Convolution2D(3, 8, 3, pad=1, nobias=True)
            self.n1 = L.BatchNormalization(8)
            self.c2 = L.Convolution2D(8, 16, 3, pad=1)
            self.fc = L.Linear(16 * 8 * 8, 10)

    def forward(self, x, hook=None):
        h = self.n1(self.c1(x))
        if hook is not None:
            h.creator.add_hook(hook)
        return self.fc(F.relu(self.c2(F.max_pooling_2d(F.relu(h), 2))))


def hook_on_everything():
    """What a hook was shown of one step was held during the next one, which showed nothing that was away."""
    model = Convolutions()

    def iterate(number):
        x, t = images(number)
        with Reads():
            loss = F.softmax_cross_entropy(model(x), t)
            model.cleargrads()
            loss.backward()
    return iterate


def hook_on_one_function():
    """The same, where the next step has no hook at all."""
    model = Convolutions()

    def iterate(number):
        x, t = images(number)
        loss = F.softmax_cross_entropy(model(x, Reads()), t)
        model.cleargrads()
        loss.backward()
    return iterate


def slices_beside_their_whole():
    """Several steps have the same map as an input, and none of them reads it: Chainer's loop held it in between."""
    model = chainer.ChainList(L.Linear(32, 96), L.Linear(96, 48), L.Linear(48, 10))

    def iterate(number):
        h = F.relu(model[0](np.full((512, 32), number, np.float32)))
        first = F.tanh(h[:2])
        h = F.concat((first, h, h[:, :0].reshape(0, 96)), axis=0)
        loss = F.sum(model[2](F.relu(model[1](h)))) + F.sum(first)
        model.cleargrads()
        loss.backward()
    return iterate


def vectors(number):
    """A batch of 512 of 32, and labels."""
    draw = np.random.RandomState(number)
    return draw.uniform(-1, 1, (512, 32)).astype(np.float32), draw.randint(0, 10, 512).astype(np.int32)


def perceptron():
    return chainer.Sequential(L.Linear(32, 96), F.relu, L.Linear(96, 48), F.relu, L.Linear(48, 10))


def forward_left_alone():
    """A forward pass without backward, whose loss lives until the next: that one joined it, and was another graph."""
    model = perceptron()
    optimizer, kept = chainer.optimizers.SGD().setup(model), []

    def iterate(number):
        for part in range(2 if number else 1):
            x, t = vectors(2 * number + part)
            kept[:] = [F.softmax_cross_entropy(model(x), t)]
        model.cleargrads()
        kept[0].backward()
        optimizer.update()
    return iterate


def evaluation_with_a_graph():
    """An evaluation without `no_backprop_mode`, whose last outputs live until the training goes on."""
    model = Convolutions()
    optimizer, kept = chainer.optimizers.Adam().setup(model), []

    def iterate(number):
        x, t = images(number)
        kept[:] = [F.softmax_cross_entropy(model(x), t)]
        model.cleargrads()
        kept[0].backward()
        optimizer.update()
        with chainer.using_config('train', False):
            for part in range(3):
                kept[:] = [model(images(10 + part)[0])]
    return iterate


class Looks(chainer.Chain):
    """Looks at maps after others were made from them, of which backward reads what is made from those."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.c1, self.n1, self.g = L.Convolution2D(3, 16, 1), L.BatchNormalization(16), L.GroupNormalization(2, 16)
            self.n2, self.c2, self.fc = L.BatchNormalization(16), L.Convolution2D(16, 4, 1), L.Linear(4 * 64 * 64, 10)

    def forward(self, x):
        g = self.g(self.n1(self.c1(x)))
        h = self.n2(g)
        y = self.c2(h)
        self.seen = float(g.array[0, 0, 0, 0]), float(h.array[0, 0, 0, 0])
        del g, h
        return self.fc(y)


def maps_read_in_forward():
    """What is read may be written to, so that nothing was made again from it, as plans had it."""
    model = Looks()
    optimizer = chainer.optimizers.SGD().setup(model)

    def iterate(number):
        draw = np.random.RandomState(number)
        x, t = draw.uniform(-1, 1, (4, 3, 64, 64)).astype(np.float32), draw.randint(0, 10, 4).astype(np.int32)
        model.cleargrads()
        F.softmax_cross_entropy(model(x), t).backward()
        optimizer.update()
    return iterate


def maps_read_as_soon_as_they_are_made():
    """Nothing relies on what is read when it is recorded; under a plan its recipe does."""
    model = chainer.ChainList(*(L.Convolution2D(None, 8, 3, pad=1) for _ in range(5)), L.Linear(None, 5))
    optimizer = chainer.optimizers.SGD(0.05).setup(model)

    def forward(h):
        for number, layer in enumerate(model[:5]):
            h = layer(h)
            h = (F.dropout(F.tanh(h), 0.3) if number % 2
                 else h - F.broadcast_to(F.max(h, axis=1, keepdims=True), h.shape))
            if number < 2:
                h.array.sum()
        return model[5](h)

    def iterate(number):
        x, t = images(number)
        loss = F.softmax_cross_entropy(forward(x), t % 5)
        model.cleargrads()
        loss.backward()
        optimizer.update()
    return iterate


def variables_read_after_backward_and_held():
    """What a Variable alone has, once the graph of the last loss is gone, can leave as well."""
    model = chainer.ChainList(*(L.Convolution2D(None, 8, 3, pad=1) for _ in range(4)), L.Linear(None, 10))
    optimizer, held = chainer.optimizers.Adam().setup(model), {}

    def iterate(number):
        x, t = images(number)
        h, maps = x, []
        for layer in model[:4]:
            h = F.max_pooling_2d(layer(F.concat([h, F.tanh(h)])), 3, 1, 1)  # which does not retain what it gives
            maps.append(h)
        held['loss'] = F.softmax_cross_entropy(model[4](h), t)
        del h
        model.cleargrads()
        held['loss'].backward()
        optimizer.update()
        for held['last'] in maps:
            held['last'].array.sum()
    return iterate


def copy_of_a_variable_held(beside_it):
    """It shares the list of the Variable, which it may outlive, and which takes a stand-in if it was watched before."""
    model = chainer.ChainList(L.Linear(30, 300), L.Linear(300, 300), L.Linear(300, 5))
    optimizer, held = chainer.optimizers.MomentumSGD().setup(model), {}

    def iterate(number):
        first = F.relu(model[0](np.full((50, 30), number, np.float32)))
        h = F.sigmoid(model[1](first))
        y = model[2](h)
        held['copy'] = copy.copy(h)
        if beside_it:
            held['Variable'] = h
        loss = F.sum(y * y)
        model.cleargrads()
        loss.backward()
        optimizer.update()
    return iterate


def second_backward_pass_from_a_map_of_the_first():
    """No function of the second graph retains the map, which the program holds; a short budget has it evicted."""
    trunk = chainer.Sequential(L.Linear(40, 64), F.relu, L.Linear(64, 64), F.relu)
    head, held = L.Linear(64, 64), {}
    optimizer = chainer.optimizers.SGD().setup(chainer.ChainList(trunk, head))

    def iterate(number):
        held['map'] = trunk(np.full((64, 40), number, np.float32))
        loss = F.sum(F.relu(head(held['map'])))
        optimizer.target.cleargrads()
        loss.backward()
        held['loss'] = F.sum(F.tanh(held['map']))
        held['loss'].backward(retain_grad=True)
        optimizer.update()
    return iterate


def copy_of_a_variable_held_beside_it():
    return copy_of_a_variable_held(True)


def copy_of_a_variable_held_alone():
    return copy_of_a_variable_held(False)


def batch_held_from_some_iteration_on():
    """The program looks at the batch after backward, from the third iteration on."""
    model = perceptron()
    optimizer = chainer.optimizers.SGD().setup(model)

    def iterate(number):
        x, t = vectors(number)
        held = x if number > 1 else None
        h = F.softmax_cross_entropy(model(x), t)
        del x
        model.cleargrads()
        h.backward()
        optimizer.update()
        return held
    return iterate


@pytest.mark.parametrize(('make', 'policy'), spread([
    blocks_repeated, hook_on_everything, hook_on_one_function, slices_beside_their_whole, forward_left_alone,
    evaluation_with_a_graph, batch_held_from_some_iteration_on],
    ['swap-all', 'pooch', 'window', 'tensor-cache', 'unified', 'keep'], every=2))
def test_a_named_floor_works_at_once(make, policy):
    floors = floors_of(make, policy)
    assert len(floors) == 1
    assert floors[0][-1] == ''


@pytest.mark.parametrize(('make', 'policy'), [
    (maps_read_in_forward, 'sublinear'), (maps_read_as_soon_as_they_are_made, 'sublinear'),
    (second_backward_pass_from_a_map_of_the_first, 'keep'), (second_backward_pass_from_a_map_of_the_first, 'sublinear'),
    (variables_read_after_backward_and_held, 'unified'), (copy_of_a_variable_held_beside_it, 'pooch'),
    (copy_of_a_variable_held_alone, 'pooch'), (copy_of_a_variable_held_alone, 'swap-all')])
def test_a_named_floor_works_where_the_program_reads_maps(make, policy):
    floors = floors_of(make, policy)
    assert len(floors) == 1
    assert floors[0][-1] == ''


class Empty(chainer.FunctionHook):
    """Does nothing with what it is shown, but it could."""

    name = 'Empty'


@pytest.mark.parametrize('policy', ['swap-all', 'keep', 'pooch', 'superneurons', 'vdnn-all', 'unified'])
@pytest.mark.parametrize('hook', [Empty, chainer.function_hooks.TimerHook])
def test_what_hooks_are_shown_is_part_of_the_floor(hook, policy):
    """The input of a function that retains its output alone comes back for the hook, one step earlier."""
    x, t = np.random.RandomState(0).randn(100, 200).astype(np.float32), np.zeros(100, np.int32)

    def forward():
        h = chainer.Variable(x)
        for function in (F.tanh, F.sigmoid) * 2:
            h = function(h)
        return F.softmax_cross_entropy(h, t)

    def make():
        return lambda number: forward().backward()
    alone = floors_of(make, policy)
    with hook():
        beside = floors_of(make, policy)
    assert [len(alone), len(beside)] == [1, 1], beside


class Stops(chainer.FunctionHook):
    """Ends an iteration with an exception, at its second call or step."""

    def __init__(self, way):
        super().__init__()
        self.way, self.left = way, 2

    def forward_preprocess(self, function, in_data):
        self._count('forward')

    def backward_preprocess(self, function, in_data, out_grad):
        self._count('backward')

    def _count(self, way):
        self.left -= way == self.way
        if not self.left:
            raise KeyError(way)


@pytest.mark.parametrize('way', ['forward', 'backward'])
def test_batches_of_iterations_that_an_exception_ended_are_no_part_of_the_floor(way):
    """They stayed in it for as long as the program had them, one more with each such iteration."""
    batches = [np.full((100, 1000), number, np.float32) for number in range(6)]
    model = chainer.Sequential(L.Linear(1000, 50), F.relu, L.Linear(50, 50), F.relu, L.Linear(50, 1))

    def floor():
        with ooc('swap-all', budget=1, min_bytes=2000), pytest.raises(InfeasibleBudgetError) as caught:
            F.sum(model(batches[0]))
        return caught.value.floor_bytes

    def iterate(x):
        loss = F.sum(model(x))
        model.cleargrads()
        loss.backward()

    with ooc('swap-all', budget='1GB', min_bytes=2000):
        for _ in range(2):
            iterate(batches[0])
    before = floor()
    with ooc('swap-all', budget='1GB', min_bytes=2000):
        for each in batches[1:]:
            with pytest.raises(KeyError), Stops(way):
                iterate(each)
        iterate(batches[0])
    assert floor() <= before


#: Where an interrupt left something counted as a map for ever: code, and before which of its lines.
LEFT_COUNTED = {
    'the iteration before ends': (Transit.abandon_dead.__code__, 1),
    'its copies are waited for': (Transit.finish_swap_outs.__code__, 1),
    'a map counts, and is not noted yet': (Transit._count.__code__, 2),
    'a map that has been copied out has its arrays again': (Storage.refill.__code__, 1)}


@pytest.mark.parametrize('where', LEFT_COUNTED)
def test_what_interrupted_iterations_have_left_is_no_part_of_the_floor(where):
    """Batches that the program has kept counted in every later iteration, one more for each interrupt."""
    code, number_of_line = LEFT_COUNTED[where]
    batches, hits = [vectors(number) for number in range(20)], []

    def make():
        model = perceptron()
        optimizer = chainer.optimizers.SGD().setup(model)

        def train(number):
            loss = F.softmax_cross_entropy(model(batches[number][0]), batches[number][1])
            model.cleargrads()
            loss.backward()
            optimizer.update()

        def iterate(number):
            train(0)
            for each in range(10 if number == 2 else 0):
                hits.append(interrupted_at(
                    number_of_line, lambda each=each: train(each), 'line', lambda found: found is code))
            train(number)
        return iterate
    assert [doubt for _, _, doubt in floors_of(make, 'swap-all')] == ['']
    assert sum(hits) > 5


@pytest.mark.parametrize('policy', ['sublinear', 'swap-all', 'pooch'])
def test_running_statistics_that_an_earlier_iteration_was_given_are_no_maps(policy):
    """Evaluated, a layer is given its statistics; trained after that, it seemed to hide them, as another graph."""
    def make():
        model = chainer.Sequential(L.BatchNormalization(1024))  # statistics of 4096 bytes
        optimizer = chainer.optimizers.SGD().setup(model)

        def iterate(number):
            h = model(chainer.Variable(np.random.RandomState(number).rand(16, 1024).astype(np.float32)) * 2)
            with chainer.using_config('train', False):
                h = model(h)
            loss = F.mean(h ** 2 * h)
            model.cleargrads()
            loss.backward()
            optimizer.update()
            del loss, h
            phases.append(chainer_ooc.stats().phase)
        return iterate
    phases = []
    assert len(floors_of(make, policy)) == 1
    assert phases[-4:] == ['profile', 'run', 'run', 'run']


@pytest.mark.parametrize('optimizer', [chainer.optimizers.Adam, chainer.optimizers.MomentumSGD])
def test_what_an_optimizer_begins_to_keep_between_two_backward_passes_counts_once(optimizer):
    """It lives from the first update of the recorded iteration on, and in all later iterations beside the maps."""
    floors = []
    for updates in (0, 2):
        updater = several_graphs.updater_of(several_graphs.Shared, optimizer)
        for _ in range(updates):
            updater.update()
        with ooc('swap-all', budget=1):
            updater.update()  # recorded
            with pytest.raises(InfeasibleBudgetError) as caught:
                updater.update()
        floors.append(caught.value.floor_bytes)
        chainer_ooc.reset()
    assert floors[0] <= 1.005 * floors[1]


class Unrolled(chainer.Chain):
    """Steps of a solver, as many as it is told, through one small network."""

    def __init__(self):
        super().__init__()
        np.random.seed(0)
        with self.init_scope():
            self.inside, self.outside = L.Linear(30, 60), L.Linear(60, 30)

    def __call__(self, h, steps):
        for _ in range(steps):
            slope = self.outside(F.tanh(self.inside(h)))
            h = h + (slope + 2 * self.outside(F.tanh(self.inside(h + slope * 0.05)))) * 0.1
        return F.mean(h ** 2)


def unrolled_floor(policy, lengths, budget=1000):
    """The budget that is named when this one is refused; itself where it is enough."""
    try:
        with ooc(policy, budget=budget, min_bytes=4096):
            model = Unrolled()
            optimizer = chainer.optimizers.Adam().setup(model)
            for steps in lengths:
                loss = model(np.ones((60, 30), np.float32), steps)
                model.cleargrads()
                loss.backward()
                optimizer.update()
                del loss
    except InfeasibleBudgetError as error:
        return error.floor_bytes
    finally:
        chainer_ooc.reset()
    return budget


@pytest.mark.parametrize('policy', ['sublinear', 'superneurons', 'tensor-cache', 'pooch'])
def test_a_graph_that_is_recorded_while_another_one_is_followed_has_the_floor_that_it_has_alone(policy):
    """The copies that recipes of the plan in force keep were measured as what the new graph needs."""
    alone, first = (unrolled_floor(policy, [steps] * 3) for steps in (9, 8))
    assert unrolled_floor(policy, [8, 9] * 6, int(1.02 * first)) < 1.05 * alone


@pytest.mark.host
def test_what_the_program_reads_and_holds_while_it_leaves_is_in_the_floor(monkeypatch):
    write = os.pwritev
    monkeypatch.setattr(os, 'pwritev', lambda *arguments: [time.sleep(0.02), write(*arguments)][1])
    links = chainer.ChainList(*(L.Linear(32, 32) for _ in range(5)))

    def iterate():
        h = chainer.Variable(np.ones((128, 32), 'f4'))
        for number, link in enumerate(links):
            h = F.tanh(link(h))
            if number == 1:
                kept = h
        held = kept.array
        links.cleargrads()
        F.sum(h).backward()
        return held

    with ooc('swap-all', min_bytes=1000):
        iterate()
        trace = chainer_ooc.trace()
    assert sum(each.foreign for each in trace.maps) == 1
