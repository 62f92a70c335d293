"""The system refuses memory in the midst of a computation: maps leave for it, or the error says what to do."""
import gc
import subprocess
import sys
import textwrap
import types
import weakref

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.backends.host import HostBackend, arena, headroom
from chainer_ooc.errors import DeviceMemoryError, InfeasibleBudgetError, OocError
from chainer_ooc.execute import sessions
from chainer_ooc.execute.recording.parameters import Parameters
from chainer_ooc.execute.shortage import explain
from support.trainings.ooc_training import Training, assert_same_bits, ooc, plain

pytestmark = pytest.mark.host
KB, MB = 1 << 10, 1 << 20

PROGRAM = '''
    import resource, sys
    import numpy as np
    import chainer_ooc
    import chainer, chainer.functions as F
    from chainer_ooc.backends.host import limits

    class Hungry(chainer.FunctionNode):
        """Takes 24 MB for a moment in the third iteration, which no recording knows."""
        def forward(self, inputs):
            if iteration >= 3:
                np.ones(24 << 20, np.uint8)
            return inputs[0] + 1,
        def backward(self, indexes, grads):
            return grads

    chainer.config.ooc, chainer.config.ooc_budget = 'keep', '1GB'
    if sys.argv[1] == 'plain':
        chainer.config.ooc = None
    p = chainer.Parameter(np.full((4, 512, 512), 0.1, 'f'))
    for iteration in range(1, 6):
        if iteration == 3 and sys.argv[1] == 'wall':
            wall = limits.kilobyte_fields('/proc/self/status')['VmData'] + (8 << 20)
            resource.setrlimit(resource.RLIMIT_DATA, (wall, wall))
        h = p * 2
        for _ in range(8):
            h = F.sigmoid(h)
        loss = F.sum(Hungry().apply((h,))[0])
        p.cleargrad()
        loss.backward()
        print(float(loss.array), float(abs(p.grad).sum()))
        del loss, h
'''


@pytest.mark.skipif(arena.available() is not None, reason=str(arena.available()))
def test_maps_leave_for_what_nobody_knew_of_and_the_bits_stay():
    def lines(kind):
        ended = subprocess.run([sys.executable, '-W', 'ignore', '-c', textwrap.dedent(PROGRAM), kind],
                               capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.splitlines()

    assert lines('wall') == lines('plain')


@pytest.fixture
def floor_bytes():
    with pytest.raises(InfeasibleBudgetError) as refused:
        iterate('1 KB')
    return refused.value.floor_bytes


def iterate(budget):
    training = Training('residual')
    with ooc('swap-all', budget=budget):
        for _ in range(3):
            training.iterate()


def give(monkeypatch, free_bytes, *default_bytes):
    """Has the machine give these default budgets, the last of them again and again."""
    given = iter(default_bytes)
    monkeypatch.setattr(headroom.groups, 'groups', list)
    monkeypatch.setattr(HostBackend, 'free_bytes', lambda self: free_bytes)
    monkeypatch.setattr(HostBackend, 'default_budget_bytes',
                        lambda self, held, latest: next(given, default_bytes[-1]))


def train(monkeypatch, free_bytes, *default_bytes):
    """Trains with these default budgets; gives the budgets of the iterations."""
    give(monkeypatch, free_bytes, *default_bytes)
    training = Training('residual')
    with ooc('swap-all'):
        for _ in range(4):
            training.iterate()
    budgets = [each.budget_bytes for each in training.outcome.stats]
    assert_same_bits(training.finish(), plain('residual', 4))
    return budgets


def test_where_the_default_budget_is_too_small_the_smallest_that_works_is_tried_if_it_is_free(
        monkeypatch, floor_bytes):
    assert train(monkeypatch, 2 * floor_bytes, floor_bytes // 2)[-1] == pytest.approx(floor_bytes, rel=0.05)


def test_what_an_iteration_has_taken_may_be_taken_again(monkeypatch, floor_bytes):
    """A margin that is set aside is no reason to refuse what has gone through."""
    budgets = train(monkeypatch, 0, 4 * floor_bytes, 4 * floor_bytes, floor_bytes // 2)
    assert budgets[1] == 4 * floor_bytes and budgets[-1] == pytest.approx(floor_bytes, rel=0.05)


def test_what_was_never_taken_and_is_not_free_is_refused(monkeypatch, floor_bytes):
    with pytest.raises(InfeasibleBudgetError):
        train(monkeypatch, 0, floor_bytes // 2)


def test_an_explicit_budget_is_what_it_is(floor_bytes):
    with pytest.raises(InfeasibleBudgetError):
        iterate(floor_bytes // 2)


def test_an_explicit_budget_was_not_given_by_the_machine(monkeypatch, floor_bytes):
    give(monkeypatch, 0, floor_bytes // 2)
    training = Training('residual')
    with ooc('swap-all', budget=4 * floor_bytes):
        training.iterate(3)
    with ooc('swap-all'), pytest.raises(InfeasibleBudgetError):
        training.iterate()


def test_in_a_container_half_of_what_is_set_aside_is_left_when_more_than_the_default_is_tried(monkeypatch, tmp_path):
    backend = HostBackend(str(tmp_path))
    try:
        monkeypatch.setattr(HostBackend, 'free_bytes', lambda self: 100 * MB)
        assert backend.most_budget_bytes(MB) == 101 * MB
        group = types.SimpleNamespace(limit_bytes=1 << 30)
        monkeypatch.setattr(backend._headroom, '_find', lambda: [group])
        monkeypatch.setattr(backend._headroom, '_looked_at', float('-inf'))
        set_aside_bytes = backend._headroom.set_aside_bytes(100 * MB)
        assert set_aside_bytes > 20 * MB
        assert backend.most_budget_bytes(MB) == 101 * MB - set_aside_bytes // 2
    finally:
        backend.close()


class Refused(chainer.FunctionNode):
    def forward(self, inputs):
        return np.empty(1 << 47, np.uint8),


def loss():
    return F.sigmoid(chainer.Parameter(np.ones((64, 1024), 'f')) * 2)


def test_the_error_says_where_what_holds_memory_and_the_next_step():
    with ooc('swap-all', min_bytes=10 ** 6), pytest.raises(MemoryError) as refused:
        Refused().apply((loss(),))
    assert isinstance(refused.value, DeviceMemoryError) and isinstance(refused.value, OocError)
    assert isinstance(refused.value.__cause__, MemoryError)
    text = str(refused.value)
    for said in ('forward of Refused', '140737.49 GB', 'maps smaller than chainer.config.ooc_min_bytes',
                 'lower the batch size', 'lower ooc_min_bytes (is 1.0 MB)', 'ooc_workspace', 'ulimit -d'):
        assert said in text, text


def test_it_says_where_in_an_iteration_that_is_compared_alone(monkeypatch):
    """The one in which nobody has to be asked for room: it named the first call of all."""
    monkeypatch.setattr(arena, 'available', lambda: 'not here')
    chainer_ooc.reset()

    class Larger(chainer.FunctionNode):
        ooc_recompute = True
        nbytes = 8

        def forward(self, inputs):
            np.empty(self.nbytes, np.uint8)
            return inputs[0] * 2,

        def backward(self, indexes, gradients):
            return gradients

    model = L.Linear(8, 8)
    with ooc('keep'):
        for _ in range(3):
            F.sum(Larger().apply((model(np.ones((2, 8), 'f')),))[0]).backward()
        y = model(np.ones((2, 8), 'f'))
        assert sessions.current()._iteration.quiet is not None
        monkeypatch.setattr(Larger, 'nbytes', 1 << 47)
        with pytest.raises(MemoryError, match='for an array in forward of Larger'):
            Larger().apply((y,))
    chainer_ooc.reset()


def test_parameters_that_the_first_iteration_has_used_are_named():
    class Refused(chainer.FunctionNode):
        def forward(self, inputs):
            return np.empty(1 << 47, np.uint8),

    layer = L.Linear(500, 500)
    with ooc('swap-all'), pytest.raises(MemoryError, match=r'in memory: 2\.0 MB parameters'):
        Refused().apply((layer(np.ones((2, 500), np.float32)),))


def test_errors_of_the_program_stay_what_they_are():
    class Raising(chainer.FunctionNode):
        def forward(self, inputs):
            raise MemoryError('mine')

    with ooc('swap-all'), pytest.raises(MemoryError, match=r'^mine$') as raised:
        Raising().apply((loss(),))
    assert type(raised.value) is MemoryError


OUTSIDE = '''
    import resource, sys
    import numpy as np
    import chainer_ooc
    import chainer, chainer.links as L
    from chainer_ooc.backends.host import limits

    chainer.config.ooc, where = 'swap-all', sys.argv[1]
    if where == 'plain':
        chainer.config.ooc = None
    layer = L.Linear(1000, 1000)
    optimizer = chainer.optimizers.Adam().setup(layer)
    if where == 'update':
        chainer.functions.sum(layer(np.ones((2, 1000), np.float32))).backward()
    wall = limits.kilobyte_fields('/proc/self/status')['VmData'] + (1 << 20)
    resource.setrlimit(resource.RLIMIT_DATA, (wall, wall))
    if where == 'own error':
        raise MemoryError('mine')
    L.Linear(2000, 2000)
'''


def last_line(where):
    ended = subprocess.run([sys.executable, '-W', 'ignore', '-c', textwrap.dedent(OUTSIDE), where],
                           capture_output=True, text=True, check=False)
    assert ended.returncode == 1 and 'Traceback' in ended.stderr, ended.stderr
    return ended.stderr.splitlines()[-1]


def test_an_array_outside_of_functions_that_nothing_can_leave_for_ends_with_advice():
    advice = ("raise the limit (ulimit -d, ulimit -v, the container's), or take a smaller model, an optimizer with "
              'less state, or data in parts')
    refused = 'chainer_ooc: the system refuses 16.0 MB for an array, and no feature map can leave for it here'
    assert last_line('build') == f'{refused} (no function has run yet); {advice}'
    line = last_line('update')
    assert line.startswith(f'{refused} (in memory: 8.0 MB parameters, gradients, optimizer state and')
    assert line.endswith(f'; {advice}')


@pytest.mark.parametrize('where', ['plain', 'own error'])
def test_of_other_errors_and_trainings_nothing_is_said(where):
    assert 'chainer_ooc' not in last_line(where)


def test_with_a_workspace_and_large_maps_only_what_helps_is_advised():
    with ooc('swap-all', min_bytes=1, workspace='32MB'):
        loss()
        with pytest.raises(MemoryError) as refused:
            np.empty(1 << 47, np.uint8)
        session = sessions.current()
        told = explain(refused.value, Refused(), False, session._iteration, session.memory, Parameters())
    assert 'ooc_workspace' not in str(told) and 'ooc_min_bytes' not in str(told)


def test_reset_asks_nobody_any_more():
    with ooc('swap-all'):
        loss()
        assert arena._asked or arena.available() is not None
        chainer_ooc.reset()
        assert not arena._asked


class Greedy(chainer.FunctionNode):
    """Asks for more than any machine has, in forward or in backward."""

    def __init__(self, in_forward):
        self.in_forward = in_forward

    def forward(self, inputs):
        if self.in_forward:
            np.empty(1 << 56, np.uint8)
        return inputs[0] * 1,

    def backward(self, indexes, grads):
        np.empty(1 << 56, np.uint8)


@pytest.mark.parametrize('in_forward', [True, False])
def test_what_a_failed_try_had_is_free_as_soon_as_its_error_is_caught(in_forward):
    """A search for the largest batch goes on at once with a smaller one, and the collector comes when it comes."""
    batches = []

    def attempt():
        batch = np.ones((8, 64), np.float32)
        batches.append(weakref.ref(batch))
        F.sum(Greedy(in_forward).apply((F.tanh(F.sigmoid(chainer.Variable(batch))),))[0]).backward()

    gc.collect()
    gc.disable()
    try:
        with ooc('swap-all'):
            with pytest.raises(DeviceMemoryError) as refused:
                attempt()
            del refused
            assert all(batch() is None for batch in batches)
    finally:
        gc.enable()
