"""Training in a container (a memory group of version 1): the kernel kills nothing, whatever the policy and the budget.

The groups are real, so that these tests need root and a kernel that has them.
"""
import functools
import os
import subprocess
import sys
import textwrap

import pytest

from memory_groups import memory_group

#: 190 MB of maps; the first convolutions unfold the batch to nine times a map.
PROGRAM = '''
    import sys
    import numpy as np
    import chainer_ooc
    import chainer, chainer.functions as F, chainer.links as L
    from chainer_ooc.errors import InfeasibleBudgetError

    class Net(chainer.ChainList):
        def __init__(self):
            super().__init__(*(L.Convolution2D(None, 8, 3, pad=1) for _ in range(2)),
                             *(L.Convolution2D(None, 8, 1) for _ in range(20)), L.Linear(None, 10))
        def forward(self, x):
            for link in self[:-1]:
                x = F.relu(link(x))
            return F.sum(self[-1](F.average_pooling_2d(x, 8, 8)) ** 2)

    chainer.config.ooc, chainer.config.ooc_budget = sys.argv[1] or None, sys.argv[2] or None
    np.random.seed(0)
    net, x = Net(), np.random.randn(16, 8, 96, 96).astype('f')
    optimizer = chainer.optimizers.MomentumSGD(1e-9).setup(net)
    try:
        for _ in range(4):
            optimizer.update(lambda: net(x))
    except (InfeasibleBudgetError, MemoryError) as error:
        print(type(error).__name__)
    else:
        print(sum(float(abs(each.array).sum()) for each in net.params()))
'''


#: Adam's state of 80 MB is written to a file after every second update.
SNAPSHOTS = """
    import sys
    import numpy as np
    import chainer_ooc
    import chainer, chainer.functions as F, chainer.links as L

    class Net(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.a, self.b = L.Convolution2D(3, 8, 3, pad=1), L.Convolution2D(8, 8, 3, pad=1)
                self.c, self.d = L.Linear(8 * 32 * 32, 600), L.Linear(600, 10)
        def forward(self, x, t):
            h = F.max_pooling_2d(F.relu(self.b(F.relu(self.a(x)))), 2)
            return F.softmax_cross_entropy(self.d(F.relu(self.c(h))), t)

    chainer.config.ooc, _ = sys.argv[1] or None, np.random.seed(0)
    net = Net()
    optimizer = chainer.optimizers.Adam().setup(net)
    for number in range(4):
        x, t = np.random.randn(16, 3, 64, 64).astype('f'), np.random.randint(0, 10, 16).astype('i')
        optimizer.update(net, x, t)
        if number % 2:
            chainer.serializers.save_npz('optimizer.npz', optimizer)
            chainer.serializers.save_npz('model.npz', net)
    print(sum(float(abs(each.array).sum()) for each in net.params()))
"""

#: 170 MB of maps, and as much of a C library's, which asks nobody: where there are no maps yet; or all of them, when
#: 100 MB of arrays have just been freed.
LIBRARY = """
    import ctypes, sys
    import numpy as np
    import chainer_ooc
    import chainer, chainer.functions as F, chainer.links as L

    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    def take():
        block = ctypes.c_void_p(libc.malloc(170 << 20))
        ctypes.memset(block, 1, 170 << 20)
        libc.free(block)

    class Taking(chainer.FunctionNode):
        def forward(self, inputs):
            take() if sys.argv[2] == 'first' else np.ones(100 << 20, np.uint8)
            return inputs[0].copy(),
        def backward(self, indexes, gradients):
            return gradients

    chainer.config.ooc, _ = sys.argv[1] or None, np.random.seed(0)
    net = chainer.Sequential(*(each for _ in range(10) for each in (L.Linear(400, 400), F.relu)))
    optimizer = chainer.optimizers.SGD(1e-7).setup(net)
    x = np.random.rand(5000, 400).astype('f')
    for _ in range(4):
        h = net[0](x)
        if sys.argv[2] == 'first':
            h, = Taking().apply((h,))
        for each in list(net)[1:]:
            h = each(h)
        if sys.argv[2] == 'between':
            h, = Taking().apply((h,))
        loss = F.sum(h ** 2)
        del h
        if sys.argv[2] == 'between':
            take()
        net.cleargrads()
        loss.backward()
        optimizer.update()
        del loss
    print(sum(float(abs(each.array).sum()) for each in net.params()))
"""

ERRORS = ('DeviceMemoryError', 'MemoryError', 'InfeasibleBudgetError')
QUICK = [('swap-all', 180), ('pooch', 172)]


@functools.cache
def why_not():
    """Why memory groups cannot be made here, or ''."""
    try:
        with memory_group(1 << 30) as group:
            subprocess.run(['true'], preexec_fn=group.enter, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return ''


@pytest.fixture(autouse=True)
def groups():
    if why_not():
        pytest.skip(f'memory groups of version 1 cannot be made here: {why_not()}')


def train(policy, megabytes, budget='', program=PROGRAM, folder=None):
    """Returns what the program printed, or 'killed'."""
    environment = {**os.environ, 'OMP_NUM_THREADS': '1'}
    command = [sys.executable, '-W', 'ignore', '-c', textwrap.dedent(program), policy, budget]
    with memory_group(megabytes << 20) as group:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment,
                              preexec_fn=group.enter, cwd=folder)
        kills = group.kills()
    assert (done.returncode == -9) == (kills > 0)
    assert kills or done.returncode == 0, done.stderr
    return 'killed' if kills else done.stdout.strip()


@functools.cache
def unlimited():
    return train('', 4096)


def test_plain_chainer_is_killed_where_out_of_core_goes_through():
    assert train('', 200) == 'killed'
    assert train('swap-all', 200) == unlimited()


@pytest.mark.parametrize('policy', ['pooch', pytest.param('unified', marks=pytest.mark.long)])
def test_other_policies_go_through_too(policy):
    assert train(policy, 200) == unlimited()


def test_a_budget_beyond_the_limit_is_kept_within_it():
    assert train('pooch', 200, '8 GB') == unlimited()


@pytest.mark.parametrize('megabytes', [pytest.param(120, marks=pytest.mark.long), 160])
def test_where_nothing_works_there_is_an_error_and_no_kill(megabytes):
    assert train('swap-all', megabytes) in ERRORS


@pytest.mark.parametrize(('policy', 'megabytes'), [
    pytest.param(policy, megabytes, marks=() if (policy, megabytes) in QUICK else pytest.mark.long)
    for policy in ('swap-all', 'pooch', 'superneurons') for megabytes in [120, *range(140, 200, 4)]])
def test_below_a_limit_that_works_there_is_an_error_and_no_kill(policy, megabytes):
    """The edge is somewhere in between, by the versions of NumPy and Python."""
    assert train(policy, megabytes) in (*ERRORS, unlimited())


@pytest.mark.parametrize('policy', ['swap-all', pytest.param('auto', marks=pytest.mark.long)])
def test_snapshots_are_written_where_plain_chainer_writes_them(policy, tmp_path):
    """What they are written from had no room beside pages that were kept for the next iteration."""
    plain = train('', 220, program=SNAPSHOTS, folder=tmp_path)
    assert plain != 'killed'
    assert train(policy, 220, program=SNAPSHOTS, folder=tmp_path) == plain


@pytest.mark.parametrize(('when', 'megabytes'), [
    ('between', 390), pytest.param('first', 310, marks=pytest.mark.long)])
@pytest.mark.parametrize('policy', ['pooch', pytest.param('keep', marks=pytest.mark.long)])
def test_a_library_has_what_no_array_needs_at_that_moment(policy, when, megabytes):
    """The pool kept its free pages all through an iteration, those that its peak will need too."""
    plain = train('', megabytes, when, LIBRARY)
    assert plain != 'killed'
    assert train(policy, megabytes, when, LIBRARY) == plain
