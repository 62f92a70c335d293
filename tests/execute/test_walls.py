"""Training takes what a wall (RLIMIT_DATA) leaves and does not run into it, whatever the budget says."""
import functools
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from support.trainings.ooc_training import Training, assert_same_bits, ooc, plain

#: 38 MB of maps, and gradients of many sizes, which leave holes in the heap from iteration to iteration.
PROGRAM = '''
    import resource, sys
    import numpy as np
    import chainer_ooc
    import chainer, chainer.functions as F, chainer.links as L
    from chainer_ooc.backends.host import limits

    class Net(chainer.ChainList):
        def __init__(self):
            super().__init__(*(L.Convolution2D(None, 16, 3, pad=1) for _ in range(18)),
                             *(L.Linear(None, size) for size in (40, 260, 900, 1700, 60)))
        def forward(self, x):
            for link in self[:18]:
                x = F.relu(link(x))
            x = F.average_pooling_2d(x, 4, 4)
            for link in self[18:]:
                x = F.relu(link(x))
            return F.sum(x * x)

    chainer.config.ooc, chainer.config.ooc_budget = sys.argv[1], sys.argv[3] or None
    np.random.seed(0)
    net, x = Net(), np.random.randn(4, 16, 64, 64).astype('f')
    with chainer.using_config('ooc', None), chainer.no_backprop_mode():
        net(x[:1])
    optimizer = chainer.optimizers.MomentumSGD(1e-9).setup(net)
    wall = limits.kilobyte_fields('/proc/self/status')['VmData'] + (int(sys.argv[2]) << 20)
    resource.setrlimit(resource.RLIMIT_DATA, (wall, wall))
    for _ in range(3):
        optimizer.update(lambda: net(x))
    print(sum(float(abs(each.array).sum()) for each in net.params()))
'''


#: Computes no product of matrices, for which OpenBLAS would take buffers.
WITHOUT_PRODUCTS = '''
    import resource, sys
    import numpy as np
    import chainer_ooc
    import chainer, chainer.functions as F
    from chainer_ooc.backends.host import limits

    chainer.config.ooc = sys.argv[1]
    wall = limits.kilobyte_fields('/proc/self/status')['VmData'] + (int(sys.argv[2]) << 20)
    resource.setrlimit(resource.RLIMIT_DATA, (wall, wall))
    p = chainer.Parameter(np.ones((256, 1000), 'f'))
    for _ in range(3):
        h = np.ones((256, 1000), 'f') * p
        for _ in range(6):
            h = F.sin(h) + F.cos(h)
        loss = F.sum(h)
        p.cleargrad()
        loss.backward()
        print(float(loss.array), float(p.grad.sum()))
'''


@pytest.mark.parametrize('policy', [pytest.param('swap-all', marks=pytest.mark.long), 'pooch'])
def test_a_program_without_room_for_the_buffers_of_products_is_not_ended_for_a_measurement(policy):
    """OpenBLAS ended the process where it got no buffers, at the first product: that of our own measurement."""
    done, free = (run(policy, megabytes, program=WITHOUT_PRODUCTS) for megabytes in (30, 4096))
    assert (done.returncode, done.stdout) == (0, free.stdout), done.stdout + done.stderr


@functools.cache
def run(policy, megabytes, budget='', program=PROGRAM):
    command = [sys.executable, '-c', textwrap.dedent(program), policy, str(megabytes), budget]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


# The second budget is far beyond the wall.
@pytest.mark.parametrize(('policy', 'budget'), [
    ('swap-all', ''), *(pytest.param(*each, marks=pytest.mark.long) for each in (
        ('swap-all', '8 GB'), ('unified', ''), ('unified', '8 GB')))])
def test_training_goes_through_behind_a_wall_at_which_keeping_dies(policy, budget):
    megabytes = 40
    kept = run('keep', megabytes)
    assert kept.returncode and ('MemoryError' in kept.stderr or 'InfeasibleBudgetError' in kept.stderr), kept.stderr
    free = run('swap-all', 4096)
    swapped = run(policy, megabytes, budget)
    assert (swapped.returncode, swapped.stdout) == (0, free.stdout), swapped.stderr


@pytest.mark.parametrize('refused_share', [0.2, 0.8])
def test_what_the_device_refuses_is_made_room_for(backend_class, monkeypatch, refused_share):
    """The device gives now this much and now that; training goes on in what it gives."""
    random, asked = np.random.RandomState(0), []

    def has_room(self, nbytes):
        asked.append(nbytes)
        return nbytes == 0 or random.rand() >= refused_share

    training = Training('residual')
    with ooc('swap-all'):
        monkeypatch.setattr(backend_class, 'has_room', has_room)
        training.iterate(3)
    assert asked
    assert_same_bits(training.finish(), plain('residual', 3))
