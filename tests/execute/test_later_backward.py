"""A backward pass that goes back through an earlier iteration's graph: what that graph keeps counts in its floor."""
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.errors import InfeasibleBudgetError, LostMapError
from chainer_ooc.execute import sessions
from chainer_ooc.execute.graphs.graph import Graph
from support.trainings.ooc_training import ooc


def iterate(model, number):
    """chainer.grad ends an iteration; the penalty's backward pass is another, and reads the first one's maps."""
    x = chainer.Variable(np.random.RandomState(number).uniform(-1, 1, (2, 3, 6, 6)).astype(np.float32))
    model.cleargrads()
    loss = F.mean(F.tanh(F.relu(F.tanh(model(x)))))
    gradient, = chainer.grad([loss], [x], enable_double_backprop=True)
    (loss + F.sum(gradient * gradient)).backward()
    return model.W.grad.tobytes()


@pytest.mark.parametrize('policy', ['keep', 'swap-all'])
def test_training_goes_through_at_the_floor_that_is_named_first(policy):
    np.random.seed(0)
    model = L.Convolution2D(3, 4, 3, pad=1)
    plain = [iterate(model, number) for number in range(4)]
    with ooc(policy, budget=1):
        assert iterate(model, 0) == plain[0]  # records both graphs, and that the second reads the first's maps
        with pytest.raises(InfeasibleBudgetError) as refused:
            iterate(model, 1)
    with ooc(policy, budget=int(1.02 * refused.value.floor_bytes)):
        assert [iterate(model, number) for number in range(1, 4)] == plain[1:]


def test_maps_that_a_later_backward_reads_are_known_by_the_trace():
    np.random.seed(0)
    model = L.Convolution2D(3, 4, 3, pad=1)
    with ooc('keep'):
        for number in range(2):
            iterate(model, number)
            graphs = chainer_ooc.execute.sessions.current()._graphs._graphs.values()
            first = next(each for each in graphs if each.trace.calls[0].label == 'Convolution2DFunction')
            assert any(each.reused for each in first.trace.maps)


def learn_to_learn(parameters, number):
    """One or two inner steps for each of two or three tasks, all of which the last backward pass goes through again."""
    random, total = np.random.RandomState(number), 0

    def error(own, x, y):
        h = F.tanh(F.linear(F.tanh(F.linear(x, own[0], own[1])), own[2], own[3]))
        return F.mean((F.linear(h, own[4], own[5]) - y) ** 2)

    for _ in range((2, 3)[number % 2]):
        x = random.uniform(-1, 1, (20, 3)).astype('f')
        y, own = np.sin(x.sum(1, keepdims=True)), parameters
        for _ in range(1 + number % 2):
            gradients = chainer.grad([error(own, x, y)], own, enable_double_backprop=True)
            own = [each - 0.1 * gradient for each, gradient in zip(own, gradients, strict=True)]
        total += error(own, x[::-1].copy(), y)
    for each in parameters:
        each.cleargrad()
    total.backward()
    return [each.grad.tobytes() for each in parameters]


@pytest.mark.parametrize('policy', [
    'pooch', 'unified', *(pytest.param(each, marks=pytest.mark.long) for each in ('keep', 'sublinear'))])
def test_maps_of_a_backward_pass_that_makes_a_graph_are_not_lost_before_another_has_read_them(policy):
    shapes = (12, 3), (12,), (12, 12), (12,), (1, 12), (1,)
    random = np.random.RandomState(0)
    parameters = [chainer.Parameter(random.uniform(-1, 1, shape).astype('f')) for shape in shapes]
    plain = [learn_to_learn(parameters, number) for number in range(7)]
    budget_bytes, found = 1000, None
    for _ in range(8):  # each budget that is named is in doubt
        with ooc(policy, budget=budget_bytes):
            try:
                found = [learn_to_learn(parameters, number) for number in range(7)]
            except InfeasibleBudgetError as refused:
                budget_bytes = int(1.02 * refused.floor_bytes)
            else:
                break
    assert found == plain


def test_what_a_plan_is_made_with_is_no_scratch_of_the_iteration_in_which_it_is_made():
    from chainer_ooc.execute.graphs.graph import Graph
    kept = []

    def orders_for(graph, *given, real=Graph.orders_for):
        kept.append(np.ones(10**6, 'f'))  # arrays that planning keeps
        return real(graph, *given)

    def run(layers):
        h = chainer.Variable(np.ones((100, 100), 'f'))
        for layer in layers:
            h = layer(h)
        F.sum(h).backward()

    one, other, new = (F.tanh, F.relu, F.sigmoid), (F.tanh, F.relu, F.cos), (F.tanh, F.relu, F.cos, F.exp)
    with ooc('swap-all'):
        for layers in (other, other, one, one):
            run(layers)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Graph, 'orders_for', orders_for)
            for layers in (new, one) * 4:  # seems to be one, then the other, and is recorded at last
                run(layers)
        traces = {len(each.calls): each for each in chainer_ooc.execute.sessions.current().traces()}
    assert max(traces[5].computing_bytes) < 10**6


class Carrying(chainer.Chain):
    """A recurrent network whose state is carried over three iterations, each with a backward pass of its own."""

    def __init__(self):
        super().__init__()
        np.random.seed(0)
        with self.init_scope():
            self.lstm, self.out = L.LSTM(32, 48), L.Linear(48, 5)

    def iterate(self, number):
        random, loss = np.random.RandomState(number), 0
        if number % 3 == 0:
            self.lstm.reset_state()
        for _ in range(4):
            h = self.lstm(random.randn(16, 32).astype('f'))
            loss += F.softmax_cross_entropy(self.out(h), random.randint(0, 5, 16).astype('i'))
        self.cleargrads()
        loss.backward()


def iterations_that_lose(model, policy, count, cycle, update=lambda: None):
    """Runs so many iterations at the named floor, and a cycle of them anew after an error; those that lost a map."""
    lost, number = [], 0
    with ooc(policy, budget=1, min_bytes=1000):
        while number < count:
            try:
                model.iterate(number)
                update()
                number += 1
            except InfeasibleBudgetError as error:
                chainer.config.ooc_budget = int(1.02 * error.floor_bytes)
                number -= number % cycle
            except LostMapError:
                lost.append(number)
                number -= number % cycle
    return lost


@pytest.mark.parametrize('policy', [
    'pooch', 'tensor-cache', *(pytest.param(each, marks=pytest.mark.long) for each in ('keep', 'sublinear'))])
def test_graphs_with_the_same_calls_lose_nothing_that_one_of_them_needs_later(policy):
    """The second and the third iteration differ in their steps alone: the third one's plan lost maps in each cycle."""
    model = Carrying()
    optimizer = chainer.optimizers.Adam().setup(model)
    lost = iterations_that_lose(model, policy, 24, 3, optimizer.update)
    assert len(lost) <= 3 and max(lost, default=0) < 6, 'once for each graph'


class FromAnEarlierState(chainer.Chain):
    """Every second iteration goes on from the state before; the batch of a side path is read by the last step."""

    def __init__(self):
        super().__init__()
        np.random.seed(0)
        with self.init_scope():
            self.layer = L.Linear(64, 64)

    def iterate(self, number):
        random = np.random.RandomState(number)
        if number % 2 == 0:
            self.h = chainer.Variable(np.ones((256, 64), 'f'))
        h, side = self.h, F.sin(chainer.Variable(random.randn(256, 64).astype('f')))
        for _ in range(6):
            h = F.tanh(self.layer(h)) * random.randn(256, 64).astype('f')
        self.h = h
        self.cleargrads()
        F.sum(h + side).backward()


@pytest.mark.parametrize('policy', ['keep', 'pooch', 'superneurons'])
def test_batches_are_among_what_graphs_with_the_same_calls_share(policy):
    """Such a graph lost a batch in each cycle that another one's backward pass reads again."""
    lost = iterations_that_lose(FromAnEarlierState(), policy, 16, 2)
    assert len(lost) <= 2 and max(lost, default=0) < 4, 'once for each graph'


def test_what_a_backward_pass_reads_again_is_learnt_at_once(monkeypatch):
    """Each map was learnt by itself, and had the rows of all made anew: 47 s for 2,000 calls in place of 0.2 s."""
    learnt = []
    learn = Graph.learn
    monkeypatch.setattr(Graph, 'learn', lambda graph, *trace, **new: learnt.append(graph) or learn(
        graph, *trace, **new))
    with ooc('keep', budget=10**9, min_bytes=1):
        for _ in range(3):
            h = chainer.Variable(np.ones((8, 8), 'f'))
            for _ in range(2):
                for _ in range(100):
                    h = F.sin(h)
                F.sum(h).backward()
    assert any(each.reused for trace in chainer_ooc.execute.sessions.current().traces() for each in trace.maps)
    assert len(learnt) < 40


def test_an_interrupt_while_a_graph_learns_has_it_learn_once_more(monkeypatch):
    """The map was noted, the plans were not made anew, and never again: it was lost in each iteration."""
    model = L.Convolution2D(3, 4, 3, pad=1)
    with ooc('keep'):
        for _ in range(3):
            F.sum(F.tanh(model(np.ones((2, 3, 6, 6), 'f')))).backward()
        graph = chainer_ooc.execute.sessions.current()._graphs.latest()
        number = next(each.id for each in graph.trace.maps if not each.reused)
        with monkeypatch.context() as patch:
            patch.setattr('chainer_ooc.execute.graphs.graph.written_with', interrupt)
            with pytest.raises(KeyboardInterrupt):
                graph.learn(reused=[number])
        graph.learn(reused=[number])
        assert graph.trace.maps[number].reused


def interrupt(*arguments):
    raise KeyboardInterrupt


def test_a_graph_that_was_missed_is_recorded_though_known_ones_come_first():
    """Two networks with a gradient penalty: after each miss the known graph of the penalty was recorded once more."""
    layer, over = L.Linear(200, 200), []

    def learn(number):
        x = chainer.Variable(np.random.RandomState(number % 2).uniform(-1, 1, (64, 200)).astype('f'))
        layer.cleargrads()
        h = F.tanh(F.relu(F.tanh(layer(x))))
        loss = F.mean(F.sigmoid(h) if number % 2 else h)
        gradient, = chainer.grad([loss], [x], enable_double_backprop=True)
        (loss + F.sum(gradient * gradient)).backward()

    with ooc('pooch', budget=1, min_bytes=1000):
        done = 0
        while done < 24:
            try:
                learn(done)
            except InfeasibleBudgetError as error:
                chainer.config.ooc_budget, done = int(1.02 * error.floor_bytes), 0
                continue
            done += 1
            over.append(chainer_ooc.stats().peak_bytes > chainer.config.ooc_budget)
        assert not sessions.current()._graphs._missed
    assert not any(over[-8:])


def lagging(iterations, policy, budget, passes=1):
    """Backward passes two iterations late, of graphs of any size and depth; gives their peaks and which were lost.

    So many `passes` come one after the other, and as many forward passes.
    """
    np.random.seed(0)
    first, middle, last = L.Linear(20, 256), L.Linear(256, 256), L.Linear(256, 3)
    model = chainer.ChainList(first, middle, last)
    optimizer = chainer.optimizers.SGD(0.1).setup(model)
    losses, peaks, lost = [], [], []
    with ooc(policy, budget=budget):
        for number in range(iterations):
            random = np.random.RandomState(1000 + number)
            size = random.randint(1000, 1400)
            h = F.relu(first(random.randn(size, 20).astype('f')))
            for _ in range(random.randint(1, 4)):
                h = F.tanh(middle(h))
            losses.append(F.softmax_cross_entropy(last(h), random.randint(0, 3, size).astype('i')))
            del h
            for _ in range(passes if number > 1 and number % passes == 0 else 0):
                model.cleargrads()
                try:
                    losses.pop(0).backward()
                except LostMapError:
                    lost.append(number)
                else:
                    optimizer.update()
                    peaks.append(chainer_ooc.stats().peak_bytes)
    return peaks, lost


@pytest.mark.parametrize('policy', ['pooch', 'swap-opt', 'tensor-cache', 'auto'])
def test_steps_of_earlier_graphs_keep_within_the_budget(policy):
    """They are in no recording, and what they allocated came on top: gradients of maps, up to 1.4 times the budget."""
    peaks, lost = lagging(18, policy, 6_950_000)
    assert not lost
    assert max(peaks) <= 6_950_000


def test_where_a_pass_through_an_earlier_graph_has_met_a_loss_none_follows():
    """It was lost again with each size and depth, though the error says that the next iteration plans for it."""
    _, lost = lagging(18, 'superneurons', 6_950_000)
    assert lost  # else this shows nothing
    assert lost[-1] <= lost[0] + 2  # the graphs that were there by then


def test_where_a_second_pass_has_met_a_loss_none_follows():
    """That the first pass of the iteration had ended hid that the second one had not: it was lost five times in 100.

    Where the iteration's own graph was passed again, after an update, no graph learnt at all.
    """
    _, lost = lagging(24, 'superneurons', 14_000_000, passes=2)
    assert len(lost) == 1
