"""Signal handlers and finalizers that read maps, wherever they interrupt: the value or one clear error, and no harm.

While a trace function runs Python calls no other, so that a handler that it calls at a line stands for one of a signal.
"""
import collections
import contextlib
import functools
import gc
import itertools
import os
import signal
import threading
import timeit

import chainer
import chainer.functions as F
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.backends.base import OWN_THREADS, Backend
from chainer_ooc.backends.host import HostBackend
from chainer_ooc.errors import InfeasibleBudgetError, LostMapError, ReentryError
from chainer_ooc.execute.storage import reentry, storage
from support.combinations import spread
from support.interrupting import handled_before
from support.trainings.accounts import differences
from support.trainings.ooc_training import bits_of, ooc

ITERATIONS = 3
#: Seven.
MAPS = (*(f'{layer} {name}' for layer in range(3) for name in ('product', 'kept')), 'loss')
CORE = os.path.dirname(storage.__file__)


class Program:
    """Iterations whose maps a handler can reach.

    Attributes:
        maps: those of the iteration in hand, by name, with its number.
        bits: what was computed.
        stats: of each iteration.
    """

    def __init__(self):
        self.weight = chainer.Parameter(np.random.RandomState(0).rand(96, 64).astype('f4'))
        self.maps, self.bits, self.stats, self.number = {}, {}, [], -1

    def iterate(self):
        np.random.seed(self.number)
        self.maps.clear()
        h = np.random.RandomState(self.number).rand(96, 64).astype('f4') * self.weight
        for layer in range(3):
            h = self.show(f'{layer} product', F.sin(h) * F.exp(-h))
            h = self.show(f'{layer} kept', F.dropout(F.tanh(h), 0.25))
        loss = self.show('loss', F.sum(h * h))
        self.weight.cleargrad()
        loss.backward()
        self.bits[f'gradient {self.number}'] = bits_of(self.weight.grad)
        self.stats.append(chainer_ooc.stats())
        self.weight.array -= np.float32(0.01) * self.weight.grad

    def show(self, name, variable):
        self.maps[name] = self.number, variable
        return variable

    def run(self):
        for self.number in range(ITERATIONS):
            self.iterate()
            maps, self.maps = self.maps, {}  # a handler has nothing to read while this is counted
            assert differences() is None
            self.maps = maps
            del maps
        return self


class Noting(Program):
    """Notes what each map is."""

    def __init__(self):
        super().__init__()
        self.values = {}

    def show(self, name, variable):
        for way, array in read(variable):
            self.values[self.number, name, way] = np.array(array)
        return super().show(name, variable)


def read(variable):
    """All ways to what a Variable shows, and to what its function retains."""
    yield 'array', variable.array
    data = variable.node.data
    if data is not None:
        yield 'array', data
    if variable.creator_node is not None:
        for retained in variable.creator_node.get_retained_outputs():
            yield 'array', retained.array
        if hasattr(variable.creator_node, 'mask'):
            yield 'mask', variable.creator_node.mask


class Handler:
    """Reads maps of a program, and compares them with those of another, that nothing has interrupted.

    Args:
        program: whose maps.
        values: what they are.
        at_once: how many of them are read at each call, in turn.

    Attributes:
        outcomes: how often each came.
    """

    def __init__(self, program, values, at_once=7):
        self.program, self.values, self.outcomes, self.at_once = program, values, collections.Counter(), at_once
        self.names = itertools.cycle(MAPS)

    def __call__(self, *signal_and_frame):
        for name in itertools.islice(self.names, self.at_once):
            number, variable = self.program.maps.get(name, (0, None))
            try:
                for way, array in read(variable) if variable is not None else ():
                    expected = self.values[number, name, way]
                    self.outcomes['right' if np.array_equal(array, expected) else f'wrong {name} {way}'] += 1
            except ReentryError as error:
                self.outcomes['refused' if 'set a flag, and act' in str(error) else f'wrong error {error}'] += 1
            except LostMapError:
                self.outcomes['lost'] += 1

    def wrong(self):
        return [each for each in self.outcomes if each.startswith('wrong')]


@pytest.fixture(autouse=True)
def forgotten():
    yield
    chainer_ooc.reset()


@pytest.fixture(scope='module')
def plain():
    with chainer.using_config('ooc', None):
        return Noting().run()


def train(policy, program_of, interrupted_by):
    """Trains above the floor; what a handler allocates while an iteration is recorded is taken for its own."""
    budget_bytes = 1
    for _ in range(10):
        chainer_ooc.reset()
        program = program_of()
        try:
            with ooc(policy, budget=budget_bytes), interrupted_by(program):
                return program.run()
        except InfeasibleBudgetError as error:
            budget_bytes = int(1.4 * error.floor_bytes)
    raise AssertionError('no budget was enough')


def handled(handlers, values, is_due, is_traced, at_once=7):
    """For `train`: has a handler interrupt a program, and notes the handler."""
    def interrupted_by(program):
        handlers.append(Handler(program, values, at_once))
        return handled_before(is_due(), handlers[-1], is_traced=is_traced)
    return interrupted_by


def is_core(code):
    return code.co_filename.startswith(CORE)


POLICIES = ('keep', 'swap-all', 'pooch', 'sublinear', 'superneurons', 'tensor-cache', 'unified', 'vdnn++')
#: Each has a way of its own to free maps; before every line the others take as long and find the same.
EACH_LINE = ('swap-all', 'pooch')


class EachSo:
    """Says so each ``period`` times that it is asked, from ``first`` on."""

    def __init__(self, period, first):
        self.left, self.period = first, period

    def __call__(self):
        self.left -= 1
        if self.left > 0:
            return False
        self.left = self.period
        return True


def is_any(code):
    """The core's code, and Chainer's."""
    return 'chainer' in code.co_filename and 'tests' not in code.co_filename


@pytest.mark.parametrize('policy', [
    pytest.param(each, marks=() if each in EACH_LINE else pytest.mark.long) for each in POLICIES])
def test_reads_before_every_line_under_the_lock_give_the_value_or_one_error(policy, plain):
    handlers = []
    program = train(policy, Program, handled(
        handlers, plain.values, lambda: reentry.is_locked, is_core, at_once=1))
    assert handlers[-1].wrong() == []
    assert handlers[-1].outcomes['right'] > 1000
    assert program.bits == plain.bits
    assert [(each.phase, each.peak_bytes <= each.budget_bytes) for each in program.stats[1:]] == [('run', True)] * 2


@pytest.mark.parametrize(('policy', 'period'), spread(
    ['keep', 'swap-all', 'pooch', 'sublinear', 'unified'], [97, 1013], every=2))
def test_reads_before_drawn_lines_give_the_value_or_an_error_and_the_training_goes_on(policy, period, plain):
    handlers = []
    program = train(policy, Program, handled(handlers, plain.values, lambda: EachSo(period, period // 4), is_any))
    assert handlers[-1].wrong() == []
    assert handlers[-1].outcomes['right'] > 0
    assert program.bits == plain.bits


def test_on_a_device_without_such_reads_what_is_away_gives_the_error(plain, monkeypatch):
    monkeypatch.setattr(HostBackend, 'peek', Backend.peek)
    handlers = []
    program = train('swap-all', Program, handled(
        handlers, plain.values, lambda: reentry.is_locked, is_core, at_once=1))
    assert handlers[-1].wrong() == []
    assert handlers[-1].outcomes['refused'] > 100
    assert program.bits == plain.bits


@pytest.mark.parametrize('act', ['apply', 'backward', 'reset', 'trace'])
def test_a_handler_that_asks_for_more_in_the_midst_of_a_change_gets_the_error(act, plain):
    outcomes = collections.Counter()

    def interrupted_by(program):
        other = chainer.Variable(np.ones((2, 2), 'f4'))
        with chainer.using_config('ooc', None):
            sum_ = F.sum(other)

        def handle():
            try:
                if act == 'apply':
                    F.sin(other)
                elif act == 'backward':
                    sum_.backward()
                elif act == 'trace':
                    chainer_ooc.trace()
                else:
                    chainer_ooc.reset()
            except ReentryError:
                outcomes['refused'] += 1
            else:
                outcomes['done'] += 1
        return handled_before(reentry.is_locked, handle, is_traced=is_core)
    program = train('swap-all', Program, interrupted_by)
    assert (outcomes['done'], outcomes['refused'] > 100) == (0, True)
    assert program.bits == plain.bits


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason='signals come to the main thread')
@pytest.mark.parametrize('policy', POLICIES)
def test_a_signal_each_half_millisecond_reads_maps_and_the_training_goes_on(policy, plain):
    handlers = []

    @contextlib.contextmanager
    def interrupted_by(program):
        handlers.append(Handler(program, plain.values, at_once=2))
        before = signal.signal(signal.SIGPROF, handlers[-1])
        signal.setitimer(signal.ITIMER_PROF, 0.0005, 0.0005)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)
    program = train(policy, Program, interrupted_by)
    assert handlers[-1].wrong() == []
    assert program.bits == plain.bits


class Dying:
    """Reads maps when the collector finds it, and leaves another of its kind."""

    def __init__(self, handler):
        self.handler, self.itself = handler, self

    def __del__(self):
        if self.handler.program is not None:
            self.handler()
            Dying(self.handler)


@pytest.mark.parametrize('policy', [
    'swap-all', *(pytest.param(each, marks=pytest.mark.long) for each in ('pooch', 'sublinear'))])
def test_a_finalizer_reads_maps_wherever_the_collector_comes(policy, plain):
    handlers = []

    @contextlib.contextmanager
    def interrupted_by(program):
        handlers.append(Handler(program, plain.values))
        before = gc.get_threshold()
        Dying(handlers[-1])
        gc.set_threshold(20, 1000, 1000)
        try:
            yield
        finally:
            handlers[-1].program = None
            gc.set_threshold(*before)
            gc.collect()
    program = train(policy, Program, interrupted_by)
    assert handlers[-1].wrong() == []
    assert handlers[-1].outcomes['right'] > 0
    assert program.bits == plain.bits


@pytest.mark.host
def test_a_thread_that_copies_is_told_before_it_has_come_to_our_code(tmp_path):
    """A finalizer that ran there, as under a debugger or a profiler, waited for the lock whose holder waited for it."""
    found = {}

    def trace(frame, event, argument):
        found.setdefault(threading.current_thread().name, reentry.copies())

    before = threading.gettrace()
    threading.settrace(trace)
    try:
        other = threading.Thread(target=int, name="the program's")
        other.start()
        other.join()
        backend = HostBackend(str(tmp_path))
        backend.swap_out(np.zeros(10, np.uint8))[1].wait()
        backend.close()
    finally:
        threading.settrace(before)
    assert found == {"the program's": False, 'chainer_ooc-swap-out': True}


def test_a_finalizer_in_a_thread_that_copies_closes_no_session():
    """It would wait for itself, or for the thread that waits for it."""
    refused = []

    def close():
        try:
            chainer_ooc.reset()
        except ReentryError:
            refused.append(threading.current_thread().name)

    for name in (f'{OWN_THREADS}-test', 'of the program'):
        thread = threading.Thread(target=close, name=name)
        thread.start()
        thread.join()
    assert refused == [f'{OWN_THREADS}-test']


def defined(name, call, filename='<string>'):
    """A function that calls another, as if a module of that name had it."""
    namespace = {'__name__': name}
    exec(compile(f'def {call}(inner): return inner()', filename, 'exec'), namespace)
    return namespace[call]


@pytest.mark.parametrize(('name', 'filename'), [
    ('program', '/home/somebody/program.py'), ('__main__', '<stdin>'), ('timeit', '/home/somebody/timeit.py')])
def test_who_asks_for_memory_amid_a_change_is_told_by_the_frames(name, filename):
    core = 'chainer_ooc.execute.made_up'
    changes, calls, asks = (defined(core, each) for each in ('changes', 'calls', 'asks'))
    program, pythons = defined(name, 'handles', filename), defined('timeit', 'handles', timeit.__file__)
    reentry.runs_functions(calls)

    handler = functools.partial(program, functools.partial(asks, reentry.asks_amid))
    assert not changes(handler), 'nothing has begun'
    with reentry.LOCK:
        assert changes(handler)
        assert not calls(handler)
        assert not changes(functools.partial(asks, reentry.asks_amid)), 'the core itself asks'
        assert not changes(functools.partial(pythons, functools.partial(asks, reentry.asks_amid)))
