"""Calls that touch only what never moves are compared and counted, among others that go through all."""
import functools
import gc
import threading

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.backends.arrays import root_of
from chainer_ooc.classify import policies
from chainer_ooc.classify.policies import Policy
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.execute import sessions
from chainer_ooc.execute.iteration import comparison, unmoved
from chainer_ooc.execute.iteration.iteration import Iteration
from chainer_ooc.execute.iteration.writes import Writes
from chainer_ooc.execute.memory.transit import Transit
from chainer_ooc.execute.recording.registration import Register
from chainer_ooc.execute.shortage import what_holds
from chainer_ooc.execute.storage.account import Account, find
from chainer_ooc.problem import Decision, Starts, Verdict, everything
from support.interrupting import interrupted_at
from support.trainings.accounts import checked_accounts, differences
from support.trainings.ooc_training import ooc
from support.trainings.pressing import Pressing

UNITS = 32
#: Maps of so many bytes are moved: those of the wide calls, and none of the narrow ones.
MIN_BYTES = 50_000
BATCH = np.linspace(-1, 1, 16 * UNITS * UNITS, dtype=np.float32).reshape(16, UNITS * UNITS)
#: Policies that move maps whatever the budget is.
MOVING = ['swap-all', 'recompute-all', 'mix-1', 'mix-3', 'mix-4', 'mix-5', 'map-all', 'map-mix-1']
#: And those that do where it is short.
SHORT = ['pooch', 'auto', 'superneurons', 'sublinear', 'tensor-cache', 'lms', 'capacity', 'unified']

pytestmark = pytest.mark.usefixtures('verdict_mixes')


class Mixed(chainer.Chain):
    """Wide calls, narrow ones, wide ones again, of which the program can change any."""

    def __init__(self):
        super().__init__()
        np.random.seed(0)
        with self.init_scope():
            self.narrow, self.again = L.Linear(UNITS * UNITS, UNITS), L.Linear(UNITS, UNITS)
            self.norm = L.BatchNormalization(UNITS)
        self.change, self.made = {}, []

    def __call__(self, x):
        made = self.made = [chainer.Variable(x)]
        steps = [F.tanh, F.sigmoid, self.narrow,  # 1 to 3
                 F.tanh, F.sigmoid, self.again, self.norm, F.relu,  # 4 to 8, narrow
                 lambda h: h + made[5] + np.ones(h.shape, np.float32),  # and a batch
                 lambda h: F.reshape(h, (-1,)), lambda h: F.reshape(F.tanh(h), (16, UNITS)),  # 10 and 11, narrow
                 lambda h: made[2] * self.spread(F.sum(h), made[2].shape), F.sigmoid, F.tanh]  # 12 to 14, wide
        for number, step in enumerate(steps, 1):
            made.append(self.change.get(number, step)(made[-1]))
        return F.sum(made[-1])

    def spread(self, total, shape):
        """A wide map that shows one number, which the program may hold."""
        self.total = total
        return F.broadcast_to(total, shape)


def iterate(model, x=BATCH):
    """One iteration; gives the bits of its loss, gradients and running statistics."""
    loss = model(x)
    model.made = []
    model.cleargrads()
    loss.backward()
    return [loss.array.tobytes(), model.norm.avg_mean.tobytes(),
            *[each.grad.tobytes() for _, each in sorted(model.namedparams()) if each.grad is not None]]


def outcomes(changes, policy=None, **entries):
    """What iterations give, each with its changes."""
    model = Mixed()
    with ooc(policy, min_bytes=MIN_BYTES, **entries):
        found = []
        for change in changes:
            model.change = change(model) if change else {}
            found.append(iterate(model))
    return found


def counted():
    """How many calls of the iteration in hand, or the last one, were only counted."""
    found = sessions.current()._iteration._unmoved
    return 0 if found is None else len(found._counted)


@pytest.fixture
def model():
    """A model that trains with some maps moved and some calls only counted."""
    model = Mixed()
    with ooc('swap-all', min_bytes=MIN_BYTES):
        for _ in range(4):
            iterate(model)
        assert counted() > 5
        yield model


@pytest.mark.parametrize('policy', MOVING)
def test_bits_are_those_of_plain_chainer(policy):
    assert outcomes([None] * 6, policy) == outcomes([None] * 6)
    assert counted() > 4
    assert chainer_ooc.stats().swap + chainer_ooc.stats().recompute > 0


@pytest.mark.parametrize('policy', MOVING)
def test_accounts_are_what_a_count_of_the_blocks_gives(policy):
    with checked_accounts() as found:
        outcomes([None] * 6, policy)
    assert not found


@pytest.mark.parametrize('policy', ['swap-all', *SHORT])
def test_the_named_budget_holds(policy):
    with pytest.raises(InfeasibleBudgetError) as caught:
        outcomes([None] * 6, policy, budget=1)
    budget = int(1.02 * caught.value.floor_bytes)
    chainer_ooc.reset()
    with checked_accounts() as found:
        assert outcomes([None] * 6, policy, budget=budget) == outcomes([None] * 6)
    assert not found
    assert counted() > 4
    assert chainer_ooc.stats().peak_bytes <= budget


def test_what_is_moved_has_storages_and_what_is_not_has_none(model):
    loss = model(BATCH)
    assert [find(each.array) is not None for each in model.made[4:9]] == [False] * 5
    assert differences() is None
    iteration = sessions.current()._iteration
    found = [each for each in iteration._memory.known() if each.token is iteration.token]
    assert [iteration.register.storage(each.map) for each in found] == found
    assert min(each.nbytes for each in found) < MIN_BYTES  # what a call that goes through all was given
    assert all(each.node._data is None or find(each.node._data) is not None for each in model.made[12:15])
    loss.backward()


@pytest.mark.usefixtures('prompt_swap_outs')
def test_a_swap_in_starts_beside_a_step_that_is_only_compared(monkeypatch):
    step, started = 25, []

    def decide(problem):
        return Decision(everything(problem.trace, problem.min_bytes), Starts(positions={1: step}))

    def begin_arrival(self, storage, block):
        started.append((storage.map, sessions.current()._iteration.recorder.next_position))
        original(self, storage, block)

    original = Transit.begin_arrival
    monkeypatch.setitem(policies.POLICIES, 'late', Policy('late', 'for tests', decide))
    outcomes([None] * 3, 'late')
    assert step in sessions.current()._iteration.following.orders.unmoved
    monkeypatch.setattr(Transit, 'begin_arrival', begin_arrival)
    outcomes([None], 'late')
    assert (1, step) in started


@pytest.mark.usefixtures('prompt_swap_outs')
def test_what_stands_is_as_where_each_call_goes_through_all(monkeypatch):
    def stood(method):
        @functools.wraps(method)
        def run(self, *arguments):
            result = method(self, *arguments)
            found.append((self.recorder.now, self._memory.beside_bytes, self._memory.bytes_of('maps')))
            return result
        return run

    for name in ('before_call', 'before_step'):
        monkeypatch.setattr(Iteration, name, stood(getattr(Iteration, name)))
    found = []
    outcomes([None] * 6, 'swap-all')
    assert counted() > 5
    with_comparison, found = found, []
    chainer_ooc.reset()
    monkeypatch.setattr(Iteration, 'compare_unmoved', lambda self: None)
    outcomes([None] * 6, 'swap-all')
    assert (counted(), with_comparison) == (0, found)


def test_what_parameters_are_its_own_is_known(model):
    iterate(model)
    assert sessions.current()._iteration.register.own == set(range(6))


@pytest.mark.parametrize('policy', ['recompute-all', 'mix-1', 'mix-3', 'mix-4', 'swap-all'])
def test_what_is_made_again_is_made_from_what_it_was_made_from(policy):
    """The program writes to a narrow map, from which wide ones are made again."""
    def run(policy):
        model, found = Mixed(), []
        with ooc(policy, min_bytes=MIN_BYTES):
            for number in range(6):
                loss = model(BATCH)
                model.made = []  # what a Variable shows is not made again
                model.cleargrads()
                if number > 2:
                    model.total.array[...] += 1
                loss.backward()
                found += [each.grad.tobytes() for _, each in sorted(model.namedparams())]
        return found

    assert run(policy) == run(None)


def many(h):
    for _ in range(40):
        h = F.tanh(h)
    return h


class Scratchy(chainer.FunctionNode):
    """A narrow function that takes a lot of memory for a moment."""

    ooc_recompute = True

    def forward(self, inputs):
        return inputs[0] * np.float32(np.ones(1_000_000, np.float32).sum() * 2e-6),

    def backward(self, indexes, gradients):
        return gradients[0] * np.float32(np.ones(1_000_000, np.float32).sum() * 2e-6),


def test_what_is_only_counted_waits_for_room(monkeypatch, transfer_class):
    """Copies end when they are waited for, and not before."""
    def run(policy, budget=None):
        return outcomes([lambda model: {8: lambda h: Scratchy().apply((h,))[0]}] * 6, policy, budget=budget)

    waited, done, wait = set(), transfer_class.done, transfer_class.wait
    monkeypatch.setattr(transfer_class, 'done', property(lambda self: id(self) in waited and done.fget(self)))
    monkeypatch.setattr(transfer_class, 'wait', lambda self: (waited.add(id(self)), wait(self))[1])
    with pytest.raises(InfeasibleBudgetError) as caught:
        run('swap-all', 1)
    chainer_ooc.reset()
    with checked_accounts() as found:
        assert run('swap-all', int(1.02 * caught.value.floor_bytes)) == run(None)
    assert not found
    assert chainer_ooc.stats().peak_bytes <= chainer_ooc.stats().budget_bytes
    labels = [each.label for each in sessions.current()._iteration.recorder.calls]
    assert labels.index('Scratchy') in sessions.current()._iteration._unmoved._counted


HELD = {
    'an array until the update': lambda model, held: [model.made[2].array],
    'a view until the update': lambda model, held: [model.made[13].array[1:]],
    'Variables until the next loss': lambda model, held: list(model.made),
    'Variables of the last two': lambda model, held: [*model.made, *held[:len(model.made)]],
}


@pytest.mark.parametrize('held', sorted(HELD))
@pytest.mark.parametrize('policy', ['keep', 'swap-all', 'superneurons', 'sublinear'])
def test_the_named_budget_holds_for_a_program_that_holds_maps(policy, held):
    """What it holds of an iteration that is over can leave as soon as it lets go, and is in no plan."""
    def run(policy, budget=None):
        model, found, kept = Mixed(), [], []
        with ooc(policy, min_bytes=MIN_BYTES, budget=budget):
            for _ in range(8):
                loss = model(BATCH)
                kept = HELD[held](model, kept)
                model.cleargrads()
                loss.backward()
                if 'update' in held:
                    kept = []
                found.append(loss.array.tobytes())
        return found

    with pytest.raises(InfeasibleBudgetError) as caught:
        run(policy, 1)
    chainer_ooc.reset()
    with checked_accounts() as found:
        assert run(policy, int(1.02 * caught.value.floor_bytes)) == run(None)
    assert not found


@pytest.mark.parametrize('policy', ['swap-all', 'pooch', 'superneurons'])
def test_the_named_budget_holds_for_a_program_that_holds_its_last_loss(policy):
    """What was only counted of it lives while the next iteration runs."""
    model, found, before, loss = Mixed(), [], None, None
    model.change = {8: many}

    def train(budget):
        nonlocal before, loss
        with ooc(policy, min_bytes=MIN_BYTES, budget=budget):
            for _ in range(4):
                before, loss = loss, model(BATCH)
                model.made = []
                model.cleargrads()
                loss.backward()
                found.append(loss.array.tobytes())

    with ooc('swap-all', min_bytes=MIN_BYTES):
        train(None)
    with pytest.raises(InfeasibleBudgetError) as caught:
        train(1)
    with checked_accounts() as differing:
        train(int(1.02 * caught.value.floor_bytes))
    assert counted() > 20
    assert not differing
    model.norm.avg_mean[...], model.norm.avg_var[...] = 0, 1
    with chainer.using_config('ooc', None):
        assert set(found) == {model(BATCH).array.tobytes()}


class Layers(chainer.Chain):
    """Wide maps that are kept, and then spare, between narrow layers whose weights are large."""

    def __init__(self):
        super().__init__()
        np.random.seed(0)
        with self.init_scope():
            self.before = chainer.ChainList(*[L.Linear(128, 128, nobias=True) for _ in range(14)])
            self.after = chainer.ChainList(*[L.Linear(128, 128, nobias=True) for _ in range(3)])

    def __call__(self, x):
        h = F.sum(F.reshape(F.tanh(F.tanh(x)), (16, 128, 16)), axis=2)
        for layer in self.before:
            h = layer(h)
        wide = F.broadcast_to(F.reshape(h, (16, 128, 1)), (16, 128, 16))
        for _ in range(10):
            wide = F.tanh(wide)
        h = F.sum(wide, axis=2)
        for layer in self.after:
            h = layer(h)
        return F.sum(h)


def test_spare_maps_have_what_is_left_beside_what_is_only_counted(monkeypatch):
    """Room that was granted before they were spare is not there beside them."""
    def decide(problem):
        verdicts = [Verdict.KEEP] * len(problem.trace.maps)
        verdicts[1] = Verdict.SWAP
        return Decision(tuple(verdicts))

    def around(method):
        @functools.wraps(method)
        def run(self, *arguments):
            result = method(self, *arguments)
            graph, position = self.following.graph, self.recorder.now
            if graph is not None and position < graph.trace.positions:
                rows = (*graph.trace.calls, *graph.trace.steps)
                held.append((self._memory.held_bytes() + rows[position].peak_bytes, self.budget_bytes))
            return result
        return run

    monkeypatch.setitem(policies.POLICIES, 'one', Policy('one', 'for tests', decide))
    for name in ('before_call', 'before_step'):
        monkeypatch.setattr(Iteration, name, around(getattr(Iteration, name)))
    model, x, held = Layers(), np.linspace(-1, 1, 16 * 2048, dtype=np.float32).reshape(16, 2048), []
    with ooc('one', min_bytes=MIN_BYTES, budget=1):
        iterate_once(model, x)
        with pytest.raises(InfeasibleBudgetError) as caught:
            iterate_once(model, x)
    with ooc('one', min_bytes=MIN_BYTES, budget=int(1.02 * caught.value.floor_bytes)):
        for _ in range(6):
            iterate_once(model, x)
        assert sessions.current()._iteration.following.orders.plan.verdicts.count(Verdict.SWAP) == 1
        assert counted() > 10
    assert held
    assert not [each for each in held if each[0] > each[1]]


def iterate_once(model, x):
    model.cleargrads()
    model(chainer.Variable(x)).backward()


@pytest.mark.parametrize('replaced', ['array', 'layout'])
def test_a_parameter_with_another_array_is_that_parameter(replaced):
    """A view of it is no map, whatever array it has now; a copy of it is one, and another graph."""
    def run(policy):
        weight, found, left, calls = chainer.Parameter(np.eye(128, dtype=np.float32)), [], [], []
        x = np.linspace(-1, 1, 16 * 1024, dtype=np.float32).reshape(128, 128)
        with ooc(policy, min_bytes=MIN_BYTES):
            for number in range(8):
                h = F.tanh(F.tanh(chainer.Variable(x)))
                flat = F.reshape(weight, (-1,))
                if policy and not np.shares_memory(flat.array, weight.array):
                    assert sessions.current().memory.counts(root_of(flat.array))
                    copied.append(number)
                loss = F.sum(F.sigmoid(F.matmul(h, F.reshape(flat, (128, 128)))))
                weight.cleargrad()
                loss.backward()
                if policy:
                    assert differences() is None
                    left.append(sessions.current()._iteration.following.left)
                    calls.append(counted())
                found += [loss.array.tobytes(), weight.grad.tobytes()]
                if replaced == 'array':
                    weight.array = weight.array - np.float32(1e-3) * weight.grad
                elif number == 4:
                    weight.array = np.asfortranarray(weight.array)
        return found, left, calls

    copied = []
    found, left, calls = run('swap-all')
    assert copied == ([5, 6, 7] if replaced == 'layout' else [])
    assert found == run(None)[0]
    assert left[:6] == [False] * 5 + [replaced == 'layout']
    assert replaced == 'layout' or (left, calls) == ([False] * 8, [0] + [2] * 7)


def test_what_is_only_counted_is_named_where_memory_is_refused():
    model = Mixed()
    model.change = {8: many}
    with ooc('swap-all', min_bytes=MIN_BYTES):
        for _ in range(3):
            iterate(model)
        loss = model(BATCH)
        assert counted() > 40
        session = sessions.current()
        held, small_bytes = what_holds(session.memory, session._parameters, session.settings)
        assert small_bytes > 40 * model.made[8].array.nbytes
        assert 'maps smaller than chainer.config.ooc_min_bytes, which stay' in held
        loss.backward()


def turned(h):
    h.array = np.asfortranarray(h.array)
    return h


#: Calls 6 and 7, the second of which gives another block, or another shape, than it did.
OTHERS = {'a copy, no view': (lambda h: turned(F.tanh(h)), lambda h: F.reshape(h, (-1,))), 'another shape': (
    F.tanh, lambda h: F.reshape(h, (4, -1)))}


@pytest.mark.parametrize('other', sorted(OTHERS))
def test_other_outputs_are_another_graph_at_once(other):
    def changed(model, calls):
        def last(h):
            if chainer.config.ooc:
                left.append(sessions.current()._iteration.following.left)
            return model.norm(F.reshape(F.tanh(h), (16, UNITS)))
        return dict(zip((6, 7, 8), (*calls, last), strict=True))

    left = []
    changes = [lambda model: changed(model, (F.tanh, lambda h: F.reshape(h, (-1,))))] * 4 + [
        lambda model: changed(model, OTHERS[other])]
    assert outcomes(changes, 'swap-all') == outcomes(changes)
    assert left[3:] == [False, True]


def test_a_backward_pass_that_makes_a_graph_is_noticed():
    def run():
        found = []
        for number in range(6):
            x = chainer.Variable(BATCH.copy())
            y = F.tanh(F.sum(F.tanh(F.sigmoid(x))))
            gradient, = chainer.grad([y], [x], enable_double_backprop=number > 3)
            found.append(gradient.array.tobytes())
        return found

    want = run()
    with ooc('swap-all', min_bytes=MIN_BYTES):
        assert run() == want
        assert sessions.current()._iteration.makes_graphs


CHANGES = {
    'function': lambda h: F.elu(h),
    'two functions': lambda h: F.relu(F.tanh(h)),
    'none': lambda h: h,
    'batch': lambda h: h + np.float32(2) * chainer.Variable(np.ones(h.shape, np.float32)),
    'parameter': lambda h: h * chainer.Parameter(np.full(h.shape, 2, np.float32)),
    'itself': lambda h: h + h,
    'no graph': lambda h: h * F.tanh(np.full(h.shape, 0.5, np.float32)),
    'another type': lambda h: F.cast(F.cast(h, np.float64), np.float32),
    'a view': lambda h: F.reshape(h, h.shape),
    'read and written': lambda h: written(F.tanh(h)),
}


def written(h):
    h.array[...] *= 2
    return h


@pytest.mark.parametrize('change', sorted(CHANGES))
@pytest.mark.parametrize(('number', 'policy'), [
    (5, 'recompute-all'), (9, 'swap-all'),
    *(pytest.param(number, policy, marks=pytest.mark.long) for number in (1, 2, 4, 7, 10, 13)
      for policy in ('swap-all', 'recompute-all'))])
def test_another_call_anywhere_is_another_graph(policy, number, change):
    def changed(model):
        return {number: CHANGES[change]}

    changes = [None] * 3 + [changed] * 2 + [None] * 2
    with checked_accounts() as found:
        assert outcomes(changes, policy) == outcomes(changes)
    assert not [each for each in found if each[1] != 'over the budget']


def test_another_batch_size_is_another_graph():
    def run(policy):
        model, found = Mixed(), []
        model.change = {11: lambda h: F.reshape(F.tanh(h), (-1, UNITS))}
        with ooc(policy, min_bytes=MIN_BYTES):
            for x in (*[BATCH] * 4, BATCH[:8], BATCH, BATCH[:4], BATCH[:8]):
                found.append(iterate(model, x))
        return found

    assert run('swap-all') == run(None)


def test_what_the_program_holds_of_a_former_iteration_is_its_own(model):
    """It was only counted, and would count for ever."""
    near_bytes = sessions.current().memory.near_bytes
    held, levels = [], []
    for _ in range(4):
        loss = model(BATCH)
        held += [each.array for each in model.made[4:9]]
        model.made = []
        loss.backward()
        del loss
        iterate(model)
        iterate(model)
        sessions.current().traces()  # ends the iteration, and waits for what is leaving
        levels.append(near_bytes())
    assert levels[1] == levels[-1]
    assert sessions.current().memory.bytes_of('program') == BATCH.nbytes + sum(each.nbytes for each in held)
    assert differences() is None


def test_hooks_see_what_they_see_in_plain_chainer(model):
    def looked():
        seen = []

        class Look(chainer.FunctionHook):
            name = 'look'

            def backward_preprocess(self, function, in_data, out_grad):
                seen.append((function.label, [None if each is None else each.tobytes() for each in in_data]))

        with Look():
            iterate(model)
        return seen

    with chainer.using_config('ooc', None):
        want = looked()
    assert looked() == want
    assert looked() == want


def test_another_thread_that_takes_a_counted_map_ends_it(model):
    loss = model(BATCH)
    given, found = model.made[8], []

    def work():
        with ooc('swap-all', min_bytes=0):
            h = F.tanh(F.exp(given))
            found.append(h.array.tobytes())
            F.sum(h).backward()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    with chainer.using_config('ooc', None):
        assert found == [F.tanh(F.exp(given.array)).array.tobytes()]
    loss.backward()
    assert counted() == 0
    chainer_ooc.reset()


def test_nothing_is_only_counted_while_another_thread_trains(model):
    ready, over = threading.Event(), threading.Event()

    def work():
        outcomes([None], 'swap-all')
        ready.set()
        over.wait()

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait()
    try:
        iterate(model)
        assert counted() == 0
    finally:
        over.set()
        thread.join()
    iterate(model)
    assert counted() > 5
    chainer_ooc.reset()


def test_what_was_counted_gets_storages_when_another_session_is_made(model):
    loss = model(BATCH)
    thread = threading.Thread(target=lambda: outcomes([None], 'swap-all'))
    thread.start()
    thread.join()
    narrow = [each.array for each in model.made[4:9]]
    loss.backward()
    assert all(find(each) is not None for each in narrow)
    assert differences() is None
    assert pending() == {0}
    chainer_ooc.reset()


def test_what_goes_through_all_in_one_way_alone_is_waited_for_by_nobody_in_the_end():
    """Calls with parameters that are not known yet go through all, and so do their steps."""
    with ooc('swap-all', min_bytes=MIN_BYTES):
        for _ in range(3):
            model = Mixed()
            for _ in range(3):
                loss = model(BATCH)
                loss.backward()
                assert pending() == {0}
                del loss


def test_what_steps_go_through_all_for_is_waited_for_by_nobody_in_the_end(monkeypatch):
    """A narrow map that is retained by a call that was only counted, and by one that was not."""
    def widened(model):
        return {6: lambda h: F.sum(F.reshape(F.matmul(h, model.narrow.W), (16, UNITS, UNITS)), axis=2)}

    assert outcomes([widened] * 4, 'swap-all') == outcomes([widened] * 4)
    assert counted() > 5
    assert pending() == {0}
    monkeypatch.setattr(Writes, 'is_looking', lambda self: True)
    outcomes([widened] * 2, 'swap-all')
    assert counted() == 0
    assert pending() == {0}


def pending():
    """How many functions wait for maps of the iteration in hand."""
    iteration = sessions.current()._iteration
    return {each.pending_uses for each in iteration._memory.storages() if each.token is iteration.token}


def test_what_has_stepped_waits_for_nothing_when_another_session_is_made(monkeypatch):
    def pressing(model):
        return {3: lambda h: Pressing().apply((model.narrow(h),))[0]}

    def press(way):
        if way == 'backward' and counted() > 0:
            thread = threading.Thread(target=lambda: outcomes([None], 'swap-all'))
            thread.start()
            thread.join()
            pressed.append(len(sessions.current()._iteration.recorder.steps))

    pressed = []
    want = outcomes([pressing] * 5)
    assert outcomes([pressing] * 4, 'swap-all') == want[:4]
    monkeypatch.setattr(Pressing, 'act', staticmethod(press))
    model = Mixed()
    model.change = pressing(model)
    with ooc('swap-all', min_bytes=MIN_BYTES):
        loss = model(BATCH)
        loss.backward()
    assert pressed[0] > 10
    assert pending() == {0}
    chainer_ooc.reset()


@pytest.mark.parametrize('where', ['forward', 'backward'])
@pytest.mark.parametrize('number', [2, 5, 8, 13])
def test_what_the_device_has_no_room_for_leaves(monkeypatch, where, number):
    def pressing(model):
        return {number: lambda h: Pressing().apply((h,))[0]}

    want = outcomes([pressing] * 8)
    calls = []

    def press(way):
        if way == where and len(calls) > 8:
            sessions.current()._iteration.room._relieve(10**9)
        calls.append(way)

    monkeypatch.setattr(Pressing, 'act', staticmethod(press))
    assert outcomes([pressing] * 8, 'swap-all') == want


def test_the_programs_own_functions_go_through_all():
    def pressing(model):
        return {5: lambda h: Pressing().apply((h,))[0]}

    assert outcomes([pressing] * 5, 'swap-all') == outcomes([pressing] * 5)
    iteration = sessions.current()._iteration
    own = next(each.index for each in iteration.recorder.calls if each.label == 'Pressing')
    assert own not in iteration._unmoved._counted
    assert own + 1 in iteration._unmoved._counted


def test_gradients_that_add_up_and_several_backward_passes():
    def run():
        model, found = Mixed(), []
        for _ in range(6):
            model.cleargrads()
            for _ in range(2):
                loss = model(BATCH)
                loss.backward(retain_grad=True)
            found += [each.grad.tobytes() for _, each in sorted(model.namedparams())]
            loss.backward()
            found += [each.grad.tobytes() for _, each in sorted(model.namedparams())]
        return found

    want = run()
    with ooc('swap-all', min_bytes=MIN_BYTES), checked_accounts() as found:
        assert run() == want
    assert not [each for each in found if each[1] != 'over the budget']


@pytest.mark.parametrize('policy', ['swap-all', 'recompute-all'])
def test_double_backprop(policy):
    def run():
        x = chainer.Variable(BATCH.copy())
        y = F.sum(F.tanh(F.sum(F.tanh(x), axis=1)) ** 2)
        gradient, = chainer.grad([y], [x], enable_double_backprop=True)
        F.sum(gradient ** 2).backward()
        return x.grad.tobytes()

    want = run()
    with ooc(policy, min_bytes=MIN_BYTES):
        assert [run() for _ in range(6)] == [want] * 6


@pytest.mark.parametrize('policy', ['swap-all', 'recompute-all'])
def test_interrupts_between_any_two_lines(policy):
    places = {unmoved.__file__, comparison.__file__, Register.count.__code__}
    want, model = outcomes([None])[0], Mixed()
    with ooc(policy, min_bytes=MIN_BYTES):
        for _ in range(4):
            iterate(model)
        number = 1

        def once():
            model.norm.avg_mean[...], model.norm.avg_var[...] = 0, 1
            return iterate(model)

        while interrupted_at(number, once, 'line', lambda code: code in places or code.co_filename in places):
            assert once() == want
            assert differences() is None
            number += 11
        assert number > 100
        for _ in range(4):
            assert once() == want
        assert counted() > 5


def test_what_was_counted_as_an_interrupt_came_goes_out_of_the_account(model):
    number = 1
    while number < 25 and interrupted_at(
            number, lambda: iterate(model), 'line', lambda code: code is Account.count_alone.__code__):
        model.made = []
        for _ in range(2):
            iterate(model)
        gc.collect()
        assert differences() is None
        assert all(each.root() is not None for each in Account._blocks.values())
        number += 1
    assert number > 20


def test_nothing_is_left_behind(model):
    iterate(model)
    chainer_ooc.reset()
    gc.collect()
    assert not Account._blocks
