"""`ooc_parameters = 'file'`: the bits of plain Chainer, whoever updates and whatever the program does with arrays."""
import contextlib
import os
import signal
import threading

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizer_hooks as hooks
from chainer import optimizers

import chainer_ooc
from chainer_ooc.backends.host import arena
from chainer_ooc.backends.host.backend import HostBackend
from chainer_ooc.errors import ConfigError, InfeasibleBudgetError, SpillError
from chainer_ooc.execute import on_file, sessions
from support.forked import forked
from support.trainings.ooc_training import bits_of, ooc

pytestmark = [pytest.mark.host, pytest.mark.skipif(arena.available() is not None, reason=str(arena.available()))]

#: Arrays of the weights in the middle: they lie on the file, biases do not.
SIDE = 300
WEIGHT_BYTES = 4 * SIDE * SIDE
EVERY_POLICY = ('keep', 'swap-all', 'pooch', 'sublinear', 'tensor-cache', 'superneurons', 'unified', 'auto')


class Network(chainer.Chain):
    def __init__(self, dtype=np.float32):
        super().__init__()
        with self.init_scope(), chainer.using_config('dtype', dtype):
            self.first = L.Linear(20, SIDE)
            self.middle = L.Linear(SIDE, SIDE)
            self.last = L.Linear(None, SIDE)  # has its parameters from the first batch on
            self.deconvolution = L.Deconvolution2D(3, 3, 4)

    def forward(self, x):
        h = F.relu(self.middle(F.dropout(F.tanh(self.first(x)))))
        h = self.middle(h)  # its gradient is a sum
        h = self.deconvolution(F.reshape(self.last(h), (-1, 3, 10, 10)))
        return F.average(h * h)


def batch(number, dtype=np.float32):
    return np.random.RandomState(number).randn(7, 20).astype(dtype)


def learn(model, optimizer, numbers, note=None, prepare=lambda model: model.cleargrads(), dtype=np.float32):
    """Trains on batches by their numbers; gives all bits."""
    bits = {}
    for number in numbers:
        loss = model(batch(number, dtype))
        prepare(model)
        loss.backward()
        bits[number, 'loss'] = bits_of(loss.array)
        del loss
        bits.update({(number, 'grad', name): bits_of(each.grad) for name, each in sorted(model.namedparams())})
        optimizer.update()
        bits.update({(number, name): bits_of(each.array) for name, each in sorted(model.namedparams())})
        bits.update({(number, 'grad after', name): bits_of(each.grad) for name, each in sorted(model.namedparams())
                     if each.grad is not None})
        if note is not None:
            note()
    for name, each in sorted(model.namedparams()):
        bits.update({(name, key): bits_of(np.asarray(value)) for key, value in (each.update_rule.state or {}).items()})
    bits['random'] = np.random.get_state()[1].tobytes()
    return bits


def made(make_optimizer=optimizers.MomentumSGD, dtype=np.float32):
    """A network with its first values, and its optimizer."""
    np.random.seed(0)
    model = Network(dtype)
    return model, make_optimizer().setup(model)


def train(make_optimizer=optimizers.MomentumSGD, added=(), *, is_plain=False, policy='swap-all', count=4, budget=None,
          note=None, dtype=np.float32, **how):
    model, optimizer = made(make_optimizer, dtype)
    if dtype == np.float16:
        optimizer.use_fp32_update()
    for each in added:
        optimizer.add_hook(each)
    entries = contextlib.nullcontext() if is_plain else ooc(policy, budget=budget, parameters='file')
    with entries:
        return learn(model, optimizer, range(count), note, dtype=dtype, **how)


def lie_on_file(arrays):
    blocks = sessions.current().memory.backend.file_backed
    return [blocks.is_backed(each) for each in arrays]


def assert_equal(bits, expected):
    assert [label for label in expected if bits.get(label) != expected[label]] == []
    assert bits.keys() == expected.keys()


class Noisy:
    """A hook of the program's, which writes to gradients."""

    name = 'noisy'
    call_for_each_param = True
    timing = 'pre'

    def __call__(self, rule, parameter):
        parameter.grad += np.random.normal(size=parameter.grad.shape).astype(parameter.grad.dtype)


class ByRow(optimizers.momentum_sgd.MomentumSGDRule):
    """A rule of the program's, which wants whole arrays."""

    def update_core_cpu(self, parameter):
        parameter.array -= parameter.grad / (1 + np.sqrt((parameter.grad ** 2).sum(axis=0)))


class OwnRule(optimizers.MomentumSGD):
    def create_update_rule(self):
        return ByRow(self.hyperparam)


OPTIMIZERS = {
    **{name: getattr(optimizers, name) for name in (
        'AdaDelta', 'AdaGrad', 'Adam', 'CorrectedMomentumSGD', 'MSVAG', 'MomentumSGD', 'NesterovAG', 'RMSprop',
        'RMSpropGraves', 'SGD', 'SMORMS3')},
    'AMSGrad': lambda: optimizers.Adam(amsgrad=True, weight_decay_rate=0.1),
    'AdaBound': optimizers.AdaBound,
    'own rule': OwnRule,
}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Parts that are no whole rows, the last of which is smaller."""
    monkeypatch.setattr(on_file, 'PART_BYTES', WEIGHT_BYTES // 7 + 4)
    yield
    chainer_ooc.reset()


@pytest.mark.filterwarnings('ignore:invalid value:RuntimeWarning')
@pytest.mark.parametrize('name', OPTIMIZERS)
def test_every_optimizer_gives_the_bits_of_plain_chainer(name):
    assert_equal(train(OPTIMIZERS[name]), train(OPTIMIZERS[name], is_plain=True))


@pytest.mark.parametrize('added', [
    [hooks.WeightDecay(0.01)], [hooks.Lasso(0.01), hooks.GradientHardClipping(-0.1, 0.1)],
    [hooks.GradientClipping(0.5)], [hooks.GradientLARS()], [hooks.GradientNoise(0.3)], [Noisy()]],
    ids=lambda added: type(added[0]).__name__)
def test_every_hook_gives_the_bits_of_plain_chainer(added):
    assert_equal(train(added=added), train(added=added, is_plain=True))


@pytest.mark.parametrize('policy', EVERY_POLICY)
def test_every_policy_gives_the_bits_of_plain_chainer(policy):
    assert_equal(train(policy=policy), train(is_plain=True))


@pytest.mark.parametrize('prepare', [
    lambda model: model.zerograds(), lambda model: None,
    lambda model: [each.grad.fill(0.5) for each in model.params() if each.grad is not None]],
    ids=['zerograds', 'accumulation', 'the program writes'])
@pytest.mark.filterwarnings('ignore::DeprecationWarning')
def test_gradients_that_stand_are_added_to(prepare):
    def settle(model):
        for each in model.params():
            if each.grad is None and each.array is not None:
                each.grad = np.zeros_like(each.array)
        prepare(model)

    assert_equal(train(prepare=settle), train(prepare=settle, is_plain=True))


def test_float16_with_a_copy_in_float32():
    assert_equal(train(optimizers.Adam, dtype=np.float16), train(optimizers.Adam, dtype=np.float16, is_plain=True))


def test_parameters_gradients_and_state_lie_on_the_file_and_small_ones_do_not():
    model, optimizer = made(optimizers.Adam)
    with ooc('swap-all', parameters='file'):
        learn(model, optimizer, range(2))
        weight, bias = model.middle.W, model.middle.b
        assert lie_on_file([weight.array, weight.grad, *weight.update_rule.state.values()]) == [True] * 4
        assert lie_on_file([bias.array, bias.grad, *bias.update_rule.state.values()]) == [False] * 4
        model.cleargrads()
        weight.array = weight.array.copy()  # another one
        learn(model, optimizer, [2])
        assert lie_on_file([weight.array]) == [True]
    with ooc('swap-all', parameters='file', min_bytes=2 * WEIGHT_BYTES):
        learn(model, optimizer, range(2))
        chainer_ooc.reset()
        learn(model, optimizer, range(2))
        assert lie_on_file([weight.array, weight.grad]) == [False] * 2


@pytest.mark.parametrize(('kind', 'name'), [
    (optimizers.sgd.SGDRule, 'update_core_cpu'), (hooks.WeightDecay, '__call__'), (hooks.GradientLARS, '__call__'),
    (optimizers.smorms3.SMORMS3Rule, 'update_core_cpu')])
def test_what_treats_each_element_by_itself_sees_parts_and_all_else_the_whole(monkeypatch, kind, name):
    shapes, original = [], getattr(kind, name)

    def noting(self, *given):
        shapes.append(given[-1].array.shape)
        original(self, *given)

    monkeypatch.setattr(kind, name, noting)
    train(optimizers.SMORMS3 if kind is optimizers.smorms3.SMORMS3Rule else optimizers.SGD,
          [] if name == 'update_core_cpu' else [kind(0.01)], count=1)
    sizes = [int(np.prod(shape)) for shape in shapes if np.prod(shape) > SIDE * 20]
    if kind in (optimizers.sgd.SGDRule, hooks.WeightDecay):
        assert max(sizes) == on_file.PART_BYTES // 4
        assert 1.8 * SIDE * SIDE < sum(sizes) <= 2 * SIDE * SIDE
    else:
        assert sizes == [SIDE * SIDE] * 2


def test_hooks_of_a_rule_see_parts_with_it():
    def hooked(is_plain):
        model, optimizer = made()
        model.middle.W.update_rule.add_hook(hooks.WeightDecay(0.1))
        model.middle.W.update_rule.add_hook(hooks.Lasso(0.1), timing='post')
        with contextlib.nullcontext() if is_plain else ooc('swap-all', parameters='file'):
            return learn(model, optimizer, range(3))

    assert_equal(hooked(False), hooked(True))


def assert_within():
    assert chainer_ooc.stats().peak_bytes <= chainer_ooc.stats().budget_bytes


def floor_of(parameters):
    """The smallest budget that is named, and that 1.02 times it works for the whole training."""
    nbytes = 1
    while True:
        model, optimizer = made()
        try:
            with ooc('swap-all', budget=nbytes, parameters=parameters):
                learn(model, optimizer, range(2))
                learn(model, optimizer, range(2, 6), assert_within)
                return nbytes
        except InfeasibleBudgetError as error:
            nbytes = max(nbytes + 1, int(1.02 * error.floor_bytes))
        finally:
            chainer_ooc.reset()


def test_the_smallest_budget_is_less_by_what_lies_on_the_file():
    """Two weights, their momentum, and their gradients but one."""
    assert floor_of('file') < floor_of(None) - 4 * WEIGHT_BYTES


def test_a_floor_does_not_count_what_is_evaluated_and_lies_on_the_file():
    """An evaluation has it expected that a model will be trained, by which this one brings nothing."""
    nbytes = floor_of('file')
    model, optimizer = made()
    with ooc('swap-all', parameters='file'):
        for number in range(3):
            learn(model, optimizer, [number])
            with chainer.using_config('train', False), chainer.no_backprop_mode():
                model(batch(number))
        with chainer.using_config('ooc_budget', 1), pytest.raises(InfeasibleBudgetError) as raised:
            model(batch(0))
    assert raised.value.floor_bytes <= nbytes


def test_a_model_that_is_made_in_its_first_iteration_has_the_floor_of_another():
    def floor(size):
        np.random.seed(0)
        model = chainer.Sequential(L.Linear(20, SIDE), F.relu, L.Linear(size, SIDE), F.relu, L.Linear(SIDE, 3))
        optimizer = optimizers.MomentumSGD().setup(model)
        with ooc('swap-all', parameters='file'):
            for number in range(3):
                optimizer.update(lambda number=number: F.average(model(batch(number))))
            with chainer.using_config('ooc_budget', 1), pytest.raises(InfeasibleBudgetError) as raised:
                model(batch(0))
        chainer_ooc.reset()
        return raised.value.floor_bytes

    assert floor(None) == pytest.approx(floor(SIDE), abs=8192)
    assert floor(SIDE) < 1.5 * WEIGHT_BYTES


def resident_bytes(array):
    """What of an array's pages is in the process's memory."""
    address = array.ctypes.data + array.nbytes // 2
    with open('/proc/self/smaps') as file:
        for line in file:
            head = line.split()[0]
            if '-' in head and not head.endswith(':'):
                first, last = (int(each, 16) for each in head.split('-'))
                is_there = first <= address < last
            elif head == 'Rss:' and is_there:
                return 1024 * int(line.split()[1])
    raise AssertionError('no mapping')


def test_no_byte_stays_near_after_a_computation_nor_between_those_of_a_step():
    class Looking(chainer.FunctionHook):
        def forward_preprocess(self, function, in_data):
            if type(function).__name__ == 'LinearGradWeight':
                seen.append(resident_bytes(weight.array))

    seen = []
    np.random.seed(0)
    model = chainer.Sequential(L.Linear(20, SIDE), L.Linear(SIDE, SIDE))
    weight = model[1].W
    optimizer = optimizers.MomentumSGD().setup(model)
    with ooc('swap-all', parameters='file'):
        for number in range(3):
            loss = F.average(model(batch(number)))
            assert resident_bytes(weight.array) == 0
            model.cleargrads()
            with Looking():
                loss.backward()
            del loss
            assert [resident_bytes(each) for each in (weight.array, weight.grad)] == [0, 0]
            optimizer.update()
            state = weight.update_rule.state['v']
            assert [resident_bytes(each) for each in (weight.array, weight.grad, state)] == [0] * 3
    assert seen == [0] * 6


def test_a_refusal_names_it_where_it_would_help():
    for side, named in ((100, False), (3000, True)):
        np.random.seed(0)
        model = chainer.Sequential(L.Linear(20, side), L.Linear(side, side))
        optimizer = optimizers.MomentumSGD().setup(model)
        for parameters in (None, 'file'):
            with ooc('keep', parameters=parameters):
                for _ in range(2):
                    optimizer.update(lambda model=model: F.average(model(batch(0))))
                with chainer.using_config('ooc_budget', 1), pytest.raises(InfeasibleBudgetError) as raised:
                    model(batch(0))
                found = "set chainer.config.ooc_parameters = 'file' (" in str(raised.value)
                assert found == (named and parameters is None)
    assert raised.value.movable_bytes == 0


def test_the_program_reads_and_writes_arrays_as_it_likes():
    def run(is_plain):
        model, optimizer = made()
        entries = contextlib.nullcontext() if is_plain else ooc('swap-all', parameters='file')
        with entries:
            first = learn(model, optimizer, range(2))
            held = model.middle.W.array.T[3:9]
            held *= 2
            model.middle.W.array[::5] += 1
            model.middle.W.update_rule.state['v'][:] = 0.25
            with chainer.using_config('train', False), chainer.no_backprop_mode():
                evaluated = bits_of(model(batch(9)).array)
            clone = model.copy('copy')
            return first, evaluated, learn(model, optimizer, range(2, 4)), bits_of(held), bits_of(clone.middle.W.array)
    assert run(False) == run(True)


def test_a_fork_has_the_values_of_its_moment_and_training_goes_on():
    model, optimizer = made()
    with ooc('swap-all', parameters='file'):
        learn(model, optimizer, range(2))
        before = model.middle.W.array.tobytes()

        def look():
            seen = b'same' if model.middle.W.array.tobytes() == before else b'else'
            model.middle.W.array[:] = 0
            return seen

        with forked(look) as ask:
            learn(model, optimizer, range(2, 4))
            assert ask() == b'same'
        learn(model, optimizer, [4])
        assert lie_on_file([model.middle.W.array]) == [True]
        found = model.middle.W.array.tobytes()
    assert found == train(is_plain=True, count=5)[4, '/middle/W'][2]


def test_after_a_fork_it_goes_on_within_a_budget_that_was_enough():
    nbytes = floor_of('file')
    model, optimizer = made()
    with ooc('swap-all', parameters='file', budget=nbytes):
        learn(model, optimizer, range(3))
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        learn(model, optimizer, range(3, 5), assert_within)


def test_a_plan_from_a_file_is_within_its_budget_in_a_training_that_is_resumed(tmp_path):
    nbytes = floor_of('file')
    model, optimizer = made()
    with ooc('swap-all', parameters='file', budget=nbytes, plan=str(tmp_path / 'plan')):
        learn(model, optimizer, range(3))
        chainer_ooc.reset()
        learn(model, optimizer, range(3, 5), assert_within)
        assert chainer_ooc.stats().phase == 'run'


def test_threads_that_share_a_model_leave_its_parameters_whole():
    """Each has a session and a spill file of its own; those of threads that have ended are closed meanwhile."""
    np.random.seed(0)
    model = Network()
    model(batch(0))
    before = {name: each.array.copy() for name, each in model.namedparams()}

    def evaluate():
        with ooc('keep', parameters='file'), chainer.using_config('train', False), chainer.no_backprop_mode():
            for number in range(3):
                model(batch(number))

    for _ in range(6):
        threads = [threading.Thread(target=evaluate) for _ in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    evaluate()
    assert all(np.array_equal(each.array, before[name]) for name, each in model.namedparams())


def test_where_there_is_no_memory_to_close_training_goes_on(monkeypatch):
    model, optimizer = made()
    with ooc('swap-all', parameters='file'):
        bits = learn(model, optimizer, range(2))
        library = sessions.current().on_file._blocks._library
        with monkeypatch.context() as context:
            context.setattr(library, 'file_backed_unback', lambda owner: 12)
            with pytest.raises(MemoryError, match='lies on the spill file'):
                chainer_ooc.reset()
            bits.update(learn(model, optimizer, range(2, 4)))
    assert_equal(bits, train(is_plain=True))


def test_a_reset_by_another_thread_in_the_midst_of_a_call_is_no_error():
    class Resetting(chainer.FunctionHook):
        def forward_preprocess(self, function, in_data):
            thread = threading.Thread(target=chainer_ooc.reset)
            thread.start()
            thread.join()

    np.random.seed(0)
    model = Network()
    with ooc('swap-all', parameters='file'):
        for _ in range(2):
            with Resetting():
                model(batch(0))


def test_what_is_read_only_is_not_written_to():
    model, optimizer = made(optimizers.SGD)
    model.middle.W.array.flags.writeable = False
    before = model.middle.W.array.copy()
    with ooc('keep', parameters='file'), pytest.raises(ValueError, match='read-only'):
        learn(model, optimizer, [0])
    assert np.array_equal(model.middle.W.array, before)


@pytest.mark.parametrize('shape', [(1, SIDE * SIDE), (SIDE * SIDE, 1), (SIDE, 3, 10, 10)])
def test_parameters_of_any_shape_are_updated_in_parts(shape):
    def run(is_plain):
        np.random.seed(0)
        link = chainer.Link()
        with link.init_scope():
            link.W = chainer.Parameter(np.random.randn(*shape).astype(np.float32))
        optimizer = optimizers.Adam().setup(link)
        with contextlib.nullcontext() if is_plain else ooc('swap-all', parameters='file'):
            for _ in range(3):
                loss = F.average(link.W * link.W)
                link.cleargrads()
                loss.backward()
                optimizer.update()
        return bits_of(link.W.array), {name: bits_of(each) for name, each in link.W.update_rule.state.items()}

    assert run(False) == run(True)


def test_a_model_goes_to_the_file_as_it_is_made():
    with ooc('keep', parameters='file'):
        np.random.seed(0)
        model = Network()
        assert lie_on_file([model.middle.W.array, model.middle.W.grad, model.first.W.array]) == [True, True, False]
        optimizer = optimizers.MomentumSGD().setup(model)
        model.cleargrads()
        bits = learn(model, optimizer, range(4))
    with chainer.using_config('ooc_parameters', 'file'):
        Network()  # and nowhere while ooc is not set
    np.random.seed(0)
    assert_equal(bits, train(is_plain=True))


def test_a_lower_threshold_takes_more_of_them():
    """Which arrays are small was settled with the first function that ran, for ever."""
    model, optimizer = made()
    with ooc('swap-all', min_bytes=2 * WEIGHT_BYTES, parameters='file'):
        learn(model, optimizer, [0])
        assert lie_on_file([model.middle.W.array]) == [False]
        with chainer.using_config('ooc_min_bytes', 0):
            learn(model, optimizer, [1])
            assert lie_on_file([model.middle.W.array]) == [True]
        model.middle.W.grad = None
        learn(model, optimizer, [2])  # plans count on no gradient of it in memory
        assert lie_on_file([model.middle.W.array, model.middle.W.grad]) == [True, True]


def test_it_is_turned_on_and_off_on_the_way():
    model, optimizer = made()
    bits = {}
    for number, parameters in enumerate([None, 'file', None, 'file']):
        with ooc('swap-all', parameters=parameters):
            bits.update(learn(model, optimizer, [number]))
            assert lie_on_file([model.middle.W.array]) == [parameters == 'file']
    assert_equal(bits, train(is_plain=True))


@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning', 'ignore::ResourceWarning')
def test_an_interrupt_leaves_a_training_that_goes_on():
    """After one in the midst of an iteration a plain training from the same values gives the same bits."""
    model, optimizer = made()
    with ooc('swap-all', parameters='file'):
        learn(model, optimizer, range(2))
        for wait_seconds in np.linspace(0.0002, 0.01, 25):
            timer = threading.Timer(wait_seconds, signal.raise_signal, (signal.SIGINT,))
            with contextlib.suppress(KeyboardInterrupt):
                timer.start()
                learn(model, optimizer, [2, 3])
                timer.join()
                os.getpid()  # where the last ones come
            timer.join()
            values = {name: each.array.copy() for name, each in model.namedparams()}
            states = {name: each.update_rule.state['v'].copy() for name, each in model.namedparams()}
            np.random.seed(1)
            bits = learn(model, optimizer, [4])
            with chainer.using_config('ooc', None), chainer.using_config('ooc_parameters', None):
                other = Network()
                other(batch(0))
                plain = optimizers.MomentumSGD().setup(other)
                for name, each in other.namedparams():
                    each.array = values[name]
                    each.update_rule._state = {'v': states[name]}
                np.random.seed(1)
                assert_equal(bits, learn(other, plain, [4]))


def test_a_full_disk_is_told_of_and_training_goes_on(monkeypatch):
    def fail(self, source):
        raise SpillError(28, 'no space left')

    model, optimizer = made()
    with ooc('keep', parameters='file'):
        bits = learn(model, optimizer, range(2))
        with monkeypatch.context() as context:
            context.setattr(HostBackend, '_write_whole', fail)
            sessions.current().on_file._blocks._write = lambda source: fail(None, source)
            state = np.random.get_state()
            with pytest.raises(SpillError, match='no space left'):
                learn(model, optimizer, [2])
        sessions.current().on_file._blocks._write = sessions.current().memory.backend._write_whole
        np.random.set_state(state)
        bits.update(learn(model, optimizer, [2, 3]))
    assert_equal(bits, train(is_plain=True))


def test_a_disk_that_is_full_in_the_first_update_leaves_no_parameter_behind(monkeypatch, caplog):
    """What the optimizer makes has no room: it stays in memory, and the next iteration is refused as a whole."""
    def fail(source):
        raise SpillError(28, 'no space left')

    model, optimizer = made()
    update, writes = optimizer.update, []

    def update_on_a_full_disk():
        blocks = sessions.current().on_file._blocks
        writes.append((blocks, blocks._write))
        blocks._write = fail
        update()

    with ooc('keep', parameters='file'):
        monkeypatch.setattr(optimizer, 'update', update_on_a_full_disk)
        bits = learn(model, optimizer, [0])
        monkeypatch.undo()
        assert 'no space left; what updates make stays in memory' in caplog.text
        state = np.random.get_state()
        with pytest.raises(SpillError, match='no space left'):
            learn(model, optimizer, [1])
        for blocks, write in writes:
            blocks._write = write
        np.random.set_state(state)
        bits.update(learn(model, optimizer, [1, 2, 3]))
        assert all(lie_on_file([each.update_rule.state['v'] for each in (model.middle.W,)]))
    assert_equal(bits, train(is_plain=True))


def test_a_device_without_files_refuses_it(monkeypatch):
    original = HostBackend.__init__

    def without(self, *args):
        original(self, *args)
        self.file_backed = None

    monkeypatch.setattr(HostBackend, '__init__', without)
    with pytest.raises(ConfigError, match=r"ooc_parameters = 'file' cannot be used on this device \(host\)"):
        train(count=1)


@pytest.mark.parametrize('policy', ['keep', 'swap-all'])
def test_sums_of_gradients_on_the_file_keep_within_the_budget(policy):
    """A sum is made in near memory. It was in no floor, and no room was made for it, if the recording had none."""
    first, last, peaks = L.Linear(256, 256), L.Linear(256, 256), []
    model, batch = chainer.ChainList(first, last), np.ones((32, 256), np.float32)
    optimizer = chainer.optimizers.NesterovAG().setup(model)

    def add(batches):
        model.cleargrads()
        for _ in range(batches):
            F.sum(last(F.tanh(first(F.sigmoid(batch))))).backward()
            peaks.append(chainer_ooc.stats().peak_bytes)
        optimizer.update()

    with ooc(policy, parameters='file'):
        add(3)
        model.cleargrads()
        F.sum(last(F.tanh(first(F.relu(F.sigmoid(batch)))))).backward()  # another graph, without an update
        chainer.config.ooc_budget = 1
        with pytest.raises(InfeasibleBudgetError) as refused:
            add(1)
        chainer.config.ooc_budget = int(1.02 * refused.value.floor_bytes)
        peaks.clear()
        for _ in range(3):
            add(3)
        assert max(peaks) <= chainer.config.ooc_budget
