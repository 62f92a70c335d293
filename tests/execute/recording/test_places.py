"""Where in the model a call is made: the link's path and the line, noted while it is recorded and never compared."""
import sys
import types
from pathlib import Path

import chainer_ooc  # before chainer

# isort: split
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.execute.memory import recomputation
from chainer_ooc.execute.recording.places import Places
from chainer_ooc.warning import is_the_programs
from support.trainings.ooc_training import ooc


def line():
    """The line of the caller."""
    return sys._getframe(1).f_lineno


class Block(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv1 = L.Convolution2D(4, 4, 3, pad=1)
            self.layers = chainer.ChainList(L.Convolution2D(4, 4, 1), L.Convolution2D(4, 4, 1))

    def forward(self, x):
        h = F.relu(self.conv1(x))
        for each in self.layers:
            h = each(h)
        return h + x


class Net(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.res2 = chainer.Sequential(Block(), F.relu)
            self.fc = L.Linear(None, 3)

    def forward(self, x):
        return self.fc(self.res2(x))


FORWARD = {name: code.co_firstlineno for name, code in (
    ('block', Block.forward.__code__), ('net', Net.forward.__code__))}
HERE = 'test_places.py'


def arrays():
    return np.ones((2, 4, 6, 6), 'f'), np.zeros(2, 'i')


def record(loss_of, iterations=1, policy='swap-all', **entries):
    with ooc(policy, **entries):
        for _ in range(iterations):
            loss_of().backward()
        return chainer_ooc.trace()


def places(trace):
    return [(each.label, each.path, each.line) for each in trace.calls]


def test_each_call_has_its_link_and_its_line():
    model, (x, t) = L.Classifier(Net(), accfun=None), arrays()
    model.compute_accuracy = False
    called = line() + 1
    trace = record(lambda: model(x, t))
    block, net = FORWARD['block'], FORWARD['net']
    assert places(trace) == [
        ('Convolution2DFunction', '/predictor/res2/0/conv1', f'{HERE}:{block + 1}'),
        ('ReLU', '/predictor/res2/0', f'{HERE}:{block + 1}'),
        ('Convolution2DFunction', '/predictor/res2/0/layers/0', f'{HERE}:{block + 3}'),
        ('Convolution2DFunction', '/predictor/res2/0/layers/1', f'{HERE}:{block + 3}'),
        ('Add', '/predictor/res2/0', f'{HERE}:{block + 4}'),
        ('ReLU', '/predictor/res2', f'{HERE}:{net + 1}'),
        ('Reshape', '/predictor/fc', f'{HERE}:{net + 1}'), ('LinearFunction', '/predictor/fc', f'{HERE}:{net + 1}'),
        ('SoftmaxCrossEntropy', '/', f'{HERE}:{called}')]
    assert trace.name_of(0) == (
        f'Convolution2DFunction, forward of call 0, at /predictor/res2/0/conv1 in {HERE}:{block + 1}')
    assert trace.name_of(len(trace.calls)).endswith(f'backward of call 8, in {HERE}:{called}')
    maker = trace.maker_of(trace.calls[1].outputs[0])
    assert (maker.label, maker.path) == ('ReLU', '/predictor/res2/0')
    assert trace.maker_of(0) is None


def test_links_outside_of_their_root_have_the_names_that_they_know():
    net, (x, _) = Net(), arrays()
    called = line() + 1
    trace = record(lambda: F.sum(F.relu(net.res2(x)) + net.forward(x)[0, 0]))
    assert [each.path for each in trace.calls[:5]] == ['/res2/0/conv1', '/res2/0', '/res2/0/layers/0',
                                                        '/res2/0/layers/1', '/res2/0']
    assert (trace.calls[-1].path, trace.calls[-1].line) == ('', f'{HERE}:{called}')
    assert trace.calls[-1].place == f', in {HERE}:{called}'


def test_a_link_that_calls_another_ones_link_has_both_in_the_path():
    class Borrower(chainer.Chain):
        def __init__(self, lender):
            super().__init__()
            self.lender = [lender]

        def forward(self, x):
            return self.lender[0](x)

    class Twice(chainer.Chain):
        def forward(self, x, again=True):
            return self(x, False) if again else F.relu(x)

    x, _ = arrays()
    shared = L.Linear(None, 3)
    trace = record(lambda: F.sum(Borrower(shared)(Twice()(chainer.Variable(x)))))
    assert [each.path for each in trace.calls] == ['/', '/Linear', '/Linear', '']


@pytest.mark.parametrize(('package', 'is_own'), [
    ('chainer', False), ('chainermn', False), ('chainercv', True), ('chainer_ooc_experiments', True)])
def test_packages_beside_chainer_are_the_programs(package, is_own):
    folder = Path(chainer.__file__).parents[1] / package / 'links' / 'resnet.py'
    assert is_the_programs(str(folder)) is is_own


def test_only_recorded_iterations_look(monkeypatch):
    looked, honest = [], Places.here
    monkeypatch.setattr(Places, 'here', lambda self: looked.append(1) or honest(self))
    net, (x, _) = Net(), arrays()
    trace = record(lambda: F.sum(net(x)), 4)
    assert len(looked) == len(trace.calls)


def test_equal_graphs_are_one_wherever_they_are_made():
    x, _ = arrays()
    net = Block()
    traces = []
    with ooc('swap-all'):
        for forward in (lambda: F.sum(net(x)), lambda: F.sum(net.forward(x))):
            forward().backward()
            traces.append(chainer_ooc.trace())
            stats = chainer_ooc.stats()
    assert stats.phase == 'run'
    assert traces[0] == traces[1]
    chainer_ooc.reset()
    other = record(lambda: F.sum(net.forward(x)))
    assert other.calls[1].path != traces[0].calls[1].path
    assert other.fingerprint == traces[0].fingerprint


def test_a_size_that_was_not_recorded_has_the_places_of_the_one_that_was():
    net, (x, _) = Net(), arrays()
    with ooc('swap-all'):
        for size in (2, 2, 3, 3):
            F.sum(net(np.concatenate([x, x])[:size])).backward()
        trace = chainer_ooc.trace()
    assert trace.calls[0].arguments[0].shape[0] == 3
    assert trace.calls[0].path == '/res2/0/conv1'


def test_nothing_else_is_recorded_otherwise(monkeypatch):
    model, (x, t) = L.Classifier(Net()), arrays()

    def recorded():
        trace = record(lambda: model(x, t), policy='keep')  # when swap-outs end is left to threads
        chainer_ooc.reset()
        return (trace.maps, [(each.position, each.call, each.maps, each.other_bytes)
                                           for each in trace.steps], [each.signature for each in trace.calls])
    recorded()  # links get their parameters
    looking = recorded()
    monkeypatch.setattr(Places, 'here', lambda self: ('', ''))
    assert recorded() == looking


def test_a_refused_budget_says_where_in_the_model():
    net, (x, _) = Net(), arrays()
    with pytest.raises(InfeasibleBudgetError) as refused:
        record(lambda: F.sum(net(x)), 2, budget=1000)
    assert f', at /res2/0/conv1 in {HERE}:{FORWARD["block"] + 1}' in refused.value.where
    assert refused.value.where in str(refused.value)


def test_an_error_about_a_map_says_where_it_is_made():
    net, (x, _) = Net(), arrays()
    trace = record(lambda: F.sum(net(x)))
    made = trace.calls[0].outputs[0]
    token = types.SimpleNamespace(graph=types.SimpleNamespace(trace=trace))
    lost = types.SimpleNamespace(map=made, nbytes=64, from_outside=False, token=token)
    assert recomputation._named(lost) == (
        f'feature map {made} (64 bytes, made by Convolution2DFunction, forward of call 0, at /res2/0/conv1 in {HERE}:'
        f'{FORWARD["block"] + 1})')
    lost.token.graph = None
    assert recomputation._named(lost) == f'feature map {made} (64 bytes)'
    lost.from_outside = True
    assert recomputation._named(lost) == f'feature map {made} (64 bytes, given by the program)'
