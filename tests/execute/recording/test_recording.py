"""What is recorded of small networks that run through Chainer itself."""
import chainer_ooc  # before chainer

# isort: split
import tracemalloc

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from chainer_ooc.execute.recording.parameters import Parameters
from chainer_ooc.trace import Trace

SLACK_BYTES = 100_000  # objects of Python


def labels(trace):
    return [call.label for call in trace.calls]


def call_of(trace, label, number=0):
    return [call for call in trace.calls if call.label == label][number]


def output(trace, label, number=0):
    return trace.maps[call_of(trace, label, number).outputs[0]]


def batch(*shape):
    return np.random.default_rng(0).random(shape, 'f4')


class Chain(chainer.Chain):
    def __init__(self, **links):
        super().__init__()
        with self.init_scope():
            for name, link in links.items():
                setattr(self, name, link)


@pytest.fixture
def perceptron(record):
    # position  0        1      2        3    |  4    5        6      7
    #           Linear   ReLU   Linear   Sum     Sum  Linear   ReLU   Linear
    # reads     x        a      b        c       -    b        b      x
    net = Chain(one=L.Linear(30, 40), two=L.Linear(40, 20))
    x = batch(50, 30)
    return record(lambda: F.sum(net.two(F.relu(net.one(x)))))


def test_calls_and_steps_come_in_the_order_in_which_they_ran(perceptron):
    assert labels(perceptron) == ['LinearFunction', 'ReLU', 'LinearFunction', 'Sum']
    assert [step.call for step in perceptron.steps] == [3, 2, 1, 0]
    assert [step.position for step in perceptron.steps] == [4, 5, 6, 7]
    assert perceptron.device == 'host'
    assert perceptron.positions == 8


def test_maps_are_numbered_as_they_are_first_seen(perceptron):
    # x = 0, a = 1, b = 2, c = 3, loss = 4; -1 are parameters
    assert [(call.inputs, call.outputs, call.hidden) for call in perceptron.calls] == [
        ((0, -1, -1), (1,), ()), ((1,), (2,), ()), ((2, -1, -1), (3,), ()), ((3,), (4,), ())]
    assert [each.id for each in perceptron.maps] == [0, 1, 2, 3, 4]
    assert [(each.shape, each.dtype, each.nbytes) for each in perceptron.maps] == [
        ((50, 30), 'float32', 6000), ((50, 40), 'float32', 8000), ((50, 40), 'float32', 8000),
        ((50, 20), 'float32', 4000), ((), 'float32', 4)]


def test_maps_know_producer_last_forward_use_and_backward_uses(perceptron):
    x, a, b, c, loss = perceptron.maps
    assert [each.producer for each in (x, a, b, c, loss)] == [None, 0, 1, 2, 3]
    assert [each.last_forward_use for each in (x, a, b, c, loss)] == [0, 1, 2, 3, 3]
    # ReLU keeps its output, which the second Linear keeps as its input: one map, read by both.
    assert [each.backward_uses for each in (x, a, b, c, loss)] == [(7,), (), (5, 6), (), ()]
    assert [each.retained for each in (x, a, b, c, loss)] == [True, False, True, False, False]
    assert [step.maps for step in perceptron.steps] == [(), (2,), (2,), (0,)]


def test_a_batch_that_the_user_holds_is_foreign_and_the_networks_own_maps_are_not(perceptron):
    assert perceptron.maps[0].foreign
    assert not any(each.foreign for each in perceptron.maps if each.retained and each.producer is not None)


def test_times_and_bandwidth_are_measured(perceptron):
    assert all(0 < each.seconds < 5 for each in (*perceptron.calls, *perceptron.steps))
    assert sum(each.seconds for each in (*perceptron.calls, *perceptron.steps)) <= perceptron.seconds
    assert perceptron.write_bytes_per_second > 1e6
    assert perceptron.read_bytes_per_second > 1e6


def test_a_recording_reads_back_equal(perceptron):
    assert Trace.from_json(perceptron.to_json()) == perceptron


def test_what_nobody_retains_goes_when_the_model_lets_go(record):
    # position  0         1          2     |
    #           a = x+1   b = a+1    sum      nobody keeps a or b for backward; a dies with `del`, within call 1
    def forward():
        h = chainer.Variable(batch(100, 10))
        h = h + 1
        h = h + 1
        return F.sum(h)
    trace = record(forward)
    assert output(trace, 'AddConstant').last_alive == 1


def test_a_second_recording_knows_nothing_of_the_first(record):
    # The loss of the first iteration holds its graph until it is assigned anew: its blocks go in the second one.
    net = Chain(one=L.Linear(30, 40), two=L.Linear(40, 20))
    batches = [batch(50, 30), batch(50, 30)]
    traces = []
    with chainer.using_config('ooc', 'swap-all'), chainer.using_config('ooc_min_bytes', 0), \
            chainer.using_config('ooc_profile_iterations', 2):
        for x in batches:
            net.cleargrads()
            loss = F.sum(net.two(F.relu(net.one(x))))
            loss.backward()
            traces.append(chainer_ooc.trace())
    assert traces[0].fingerprint == traces[1].fingerprint
    assert [each.backward_uses for each in traces[0].maps] == [each.backward_uses for each in traces[1].maps]


def test_a_batch_seen_again_is_a_map_again(record):
    net, x = Chain(one=L.Linear(30, 40)), batch(50, 30)
    with chainer.using_config('ooc', 'swap-all'), chainer.using_config('ooc_min_bytes', 0), \
            chainer.using_config('ooc_profile_iterations', 2):
        for _ in range(2):
            F.sum(net.one(x)).backward()
            first = chainer_ooc.trace().maps[0]
            assert (first.nbytes, first.producer, first.last_forward_use) == (6000, None, 0)


# --- what is a feature map (P4, P5) -----------------------------------------------------------------------------------


def test_views_share_one_map(record):
    # position  0       1                 2           3            4       5
    #           x + x   reshape           transpose   split_axis   mul     sum
    # map       a       a                 a           a a          p       s
    def forward():
        h = chainer.Variable(batch(20, 30))
        h = h + h
        h = F.transpose(F.reshape(h, (20, 5, 6)), (1, 0, 2))
        one, other = F.split_axis(h, 2, 2)
        return F.sum(one * other)
    trace = record(forward)
    a = call_of(trace, 'Add').outputs[0]
    assert [call_of(trace, label).outputs for label in ('Reshape', 'Transpose', 'SplitAxis')] == [(a,), (a,), (a, a)]
    product = call_of(trace, 'Mul')
    assert product.inputs == (a, a)
    assert trace.maps[a].nbytes == 20 * 30 * 4
    assert trace.maps[a].last_forward_use == product.index
    assert [step.maps for step in trace.steps if step.call == product.index] == [(a,)]
    assert len(trace.maps) == 4  # x, a, product, sum


def test_parameters_their_views_and_persistent_values_are_no_maps(record):
    net = Chain(one=L.Linear(30, 40), norm=L.BatchNormalization(40), bias=L.Bias(1, (40,)))
    x = batch(50, 30)

    def forward():
        h = F.relu(net.norm(net.one(x)))
        return F.sum(net.bias(h)) + F.sum(F.transpose(net.one.W) * 2)
    trace = record(forward)
    assert call_of(trace, 'LinearFunction').inputs == (0, -1, -1)
    assert call_of(trace, 'BatchNormalization').inputs[1:] == (-1, -1)
    assert (call_of(trace, 'Transpose').inputs, call_of(trace, 'Transpose').outputs) == ((-1,), (-1,))
    hidden = [trace.maps[each] for each in call_of(trace, 'BatchNormalization').hidden]
    # Of mean, variance and their running values only what the call itself made.
    assert all(each.nbytes == 160 for each in hidden)
    assert len(hidden) <= 2


HIDING = {
    # function, label, hidden bytes of a batch (2, 8, 12, 12) of float32
    'dropout mask': (lambda h: F.dropout(h, 0.5), 'Dropout', [2 * 8 * 12 * 12 * 4]),
    'max pooling indexes': (lambda h: F.max_pooling_2d(h, 3, 3), 'MaxPoolingND', [2 * 8 * 4 * 4 * 8]),
    'response normalisation scales': (
        F.local_response_normalization, 'LocalResponseNormalization', [2 * 8 * 12 * 12 * 4] * 2),
}


@pytest.mark.parametrize('kind', HIDING)
def test_an_array_that_a_function_hides_is_a_map(record, kind):
    function, label, sizes = HIDING[kind]
    x = batch(2, 8, 12, 12)
    trace = record(lambda: F.sum(function(F.relu(chainer.Variable(x)))))
    call = call_of(trace, label)
    hidden = [trace.maps[each] for each in call.hidden]
    assert sorted(each.nbytes for each in hidden) == sorted(sizes)
    step = next(step for step in trace.steps if step.call == call.index)
    for each in hidden:
        assert (each.hidden, each.retained, each.foreign, each.producer) == (True, True, False, call.index)
        assert each.backward_uses == (step.position,)
        assert each.id in step.maps


def test_a_hidden_array_that_the_user_has_too_is_no_map_of_ours(record):
    mask = np.ones((50, 30), 'f4')
    x = batch(50, 30)
    trace = record(lambda: F.sum(F.dropout(chainer.Variable(x) * 2, 0.5, mask=mask)))
    assert call_of(trace, 'Dropout').hidden == ()


def test_small_hidden_arrays_are_not_recorded(record):
    x = batch(50, 30)
    forward = lambda: F.sum(F.dropout(chainer.Variable(x) * 2, 0.5))  # noqa: E731
    assert call_of(record(forward, min_bytes=6001), 'Dropout').hidden == ()
    assert len(call_of(record(forward, min_bytes=6000), 'Dropout').hidden) == 1


# --- memory of a call -------------------------------------------------------------------------------------------------


class Scratch(chainer.FunctionNode):
    """y = x, with 3 MB of scratch in forward and 5 MB in backward."""

    def forward(self, inputs):
        np.empty(3_000_000, 'u1')
        return inputs[0].copy(),

    def backward(self, indexes, grads):
        np.empty(5_000_000, 'u1')
        return chainer.as_variable(grads[0].array.copy()),


def test_the_peak_of_a_call_is_what_it_allocates_at_its_highest(record):
    # forward of Scratch     3 MB of scratch, freed; then 1 MB of output    highest: 3 MB
    # backward of Scratch    5 MB of scratch, freed; then 1 MB of gradient  highest: 5 MB
    x = chainer.Variable(batch(250_000))
    trace = record(lambda: F.sum(Scratch().apply((x,))[0]))
    call = call_of(trace, 'Scratch')
    assert call.peak_bytes == pytest.approx(3_000_000, abs=SLACK_BYTES)
    step = next(step for step in trace.steps if step.call == call.index)
    assert step.peak_bytes == pytest.approx(5_000_000, abs=SLACK_BYTES)


def test_the_peak_of_a_plain_function_is_its_output(record):
    x = chainer.Variable(batch(250_000))
    trace = record(lambda: F.sum(F.relu(x + x)))
    assert call_of(trace, 'ReLU').peak_bytes == pytest.approx(1_000_000, abs=SLACK_BYTES)


def test_gradients_so_far_are_counted_beside_a_step(record):
    # position      0        1        2     |  3     4          5
    #               Linear   Linear   Sum      Sum   Linear     Linear
    # gradients                                0     gy 0.2 MB  W of two (4 MB) + g
    net = Chain(one=L.Linear(1000, 1000), two=L.Linear(1000, 1000))
    net.cleargrads()
    x = batch(50, 1000)
    trace = record(lambda: F.sum(net.two(net.one(x))))
    assert trace.steps[0].other_bytes < 100
    assert trace.steps[2].other_bytes == pytest.approx(4_000_000 + 4_000 + 200_000, abs=100_000)


def test_what_the_program_allocates_in_forward_is_counted_beside_the_calls_after_it(record):
    net, asides = Chain(one=L.Linear(1000, 1000), two=L.Linear(1000, 1000)), []
    net.cleargrads()

    def forward():
        h = net.one(batch(50, 1000))
        asides.append(np.zeros(500_000, np.float32))
        h = net.two(h)
        asides.clear()
        return F.sum(h)
    trace = record(forward)
    assert [each.other_bytes for each in trace.calls] == pytest.approx([0, 2_000_000, 0], abs=SLACK_BYTES)
    assert trace.steps[0].other_bytes < SLACK_BYTES


def test_a_batch_that_is_made_while_the_graph_is_recorded_is_counted_once(record):
    net, first = Chain(one=L.Linear(1000, 10)), batch(50, 1000)
    trace = record(lambda: F.sum(net.one(first)) + F.sum(net.one(batch(50, 1000))))
    assert sum(each.nbytes for each in trace.maps if each.producer is None) == 2 * 200_000
    assert max(each.other_bytes for each in trace.steps) < 100_000


# --- tracemalloc ------------------------------------------------------------------------------------------------------


def test_tracing_ends_with_the_recorded_iteration(record):
    net, x = Chain(one=L.Linear(30, 40)), batch(50, 30)
    record(lambda: F.sum(net.one(x)))
    assert not tracemalloc.is_tracing()


def test_tracing_ends_when_the_recording_fails():
    with chainer.using_config('ooc', 'keep'):
        with pytest.raises(chainer.utils.type_check.InvalidType):
            F.linear(F.relu(batch(50, 30)), batch(4, 7))
        assert not tracemalloc.is_tracing()


def test_tracing_of_the_users_goes_on(record):
    net, x = Chain(one=L.Linear(30, 40)), batch(50, 30)
    tracemalloc.start(3)
    try:
        trace = record(lambda: F.sum(net.one(x)))
        assert tracemalloc.is_tracing()
        assert tracemalloc.get_traceback_limit() == 3
        assert trace.calls[0].peak_bytes >= 8000
    finally:
        tracemalloc.stop()


# --- a network of the real kind ---------------------------------------------------------------------------------------


class Residual(chainer.Chain):
    """A bottleneck of ResNet50 at a toy's size."""

    def __init__(self, channels):
        super().__init__()
        with self.init_scope():
            self.conv1, self.bn1 = L.Convolution2D(channels, 4, 1, nobias=True), L.BatchNormalization(4)
            self.conv2, self.bn2 = L.Convolution2D(4, 4, 3, pad=1, nobias=True), L.BatchNormalization(4)
            self.conv3, self.bn3 = L.Convolution2D(4, channels, 1, nobias=True), L.BatchNormalization(channels)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        h = F.relu(self.bn2(self.conv2(h)))
        return F.relu(self.bn3(self.conv3(h)) + x)


@pytest.fixture
def resnet():
    return Chain(conv=L.Convolution2D(3, 8, 3, pad=1), bn=L.BatchNormalization(8), one=Residual(8), two=Residual(8),
                 fc=L.Linear(8, 5))


def resnet_loss(net, x, t):
    h = F.max_pooling_2d(F.relu(net.bn(net.conv(x))), 2)
    h = net.two(net.one(h))
    h = F.average_pooling_2d(h, h.shape[2:])
    return F.softmax_cross_entropy(net.fc(h), t)


def test_a_residual_network_is_recorded_consistently(record, resnet):
    x, t = batch(4, 3, 16, 16), np.arange(4, dtype='i4')
    trace = record(lambda: resnet_loss(resnet, x, t))
    assert labels(trace).count('Convolution2DFunction') == 7
    assert labels(trace).count('Add') == 2
    assert sorted(step.call for step in trace.steps) == list(range(len(trace.calls)))
    for each in trace.maps:
        assert each.nbytes == np.prod(each.shape, dtype=int) * np.dtype(each.dtype).itemsize
        users = [call.index for call in trace.calls if each.id in {*call.inputs, *call.outputs, *call.hidden}]
        assert each.last_forward_use == users[-1]
        assert each.producer is None or each.producer == users[0]
        assert each.backward_uses == tuple(step.position for step in trace.steps if each.id in step.maps)
        assert not each.backward_uses or each.retained
    # A residual's input is read by its first convolution and by the addition; the addition keeps nothing.
    additions = [call for call in trace.calls if call.label == 'Add']
    shortcut = trace.maps[additions[0].inputs[1]]
    assert shortcut.last_forward_use == additions[0].index
    assert Trace.from_json(trace.to_json()) == trace


def test_the_same_network_has_the_same_fingerprint_under_every_policy_and_another_batch_another(record, resnet):
    t = np.arange(4, dtype='i4')
    recorded = [record(lambda: resnet_loss(resnet, batch(4, 3, 16, 16), t), policy)
                for policy in ('keep', 'swap-all', 'swap-all-naive')]
    assert len({trace.fingerprint for trace in recorded}) == 1
    larger = record(lambda: resnet_loss(resnet, batch(5, 3, 16, 16), np.arange(5, dtype='i4')))
    assert larger.fingerprint != recorded[0].fingerprint


def test_arrays_that_a_parameter_had_before_are_forgotten():
    parameter, known = chainer.Parameter(np.ones(3, np.float32)), Parameters()
    for number in range(5):
        parameter.array = np.full(3, number, np.float32)
        known.add(parameter)
    known.beside()
    assert len(known._roots) == 1
    assert known.own(parameter.array)
