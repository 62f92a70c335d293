"""Policies that synchronise: no call or step begins before the copies that began with the one before have ended."""
import functools
import os
import time

import pytest

import chainer_ooc
from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.cost.costs import measured
from chainer_ooc.execute.iteration.iteration import Iteration
from chainer_ooc.execute.memory.residency import Residency
from chainer_ooc.execute.storage.states import State
from chainer_ooc.problem import Problem, Standing
from chainer_ooc.schedule.schedule import lay_out
from chainer_ooc.simulate.simulator import simulate
from chainer_ooc.simulate.timeline import Stream
from support.trainings.ooc_training import Training, assert_same_bits, ooc, plain


class Watch:
    """Notes what execution does, in order, and which copies are under way when a computation begins."""

    def __init__(self, monkeypatch, backend_class):
        self.events = []
        #: Positions that began while a swap-out ran, a swap-in from the step before, one that had just begun.
        self.leaving_at_the_beginning = []
        self.coming_at_the_beginning = []
        self.beginning_beside = []
        self._outs, self._ins = [], []
        self._note_copies(monkeypatch, backend_class)
        self._note_computations(monkeypatch)

    def clear(self):
        self.events.clear()
        self.leaving_at_the_beginning.clear()
        self.coming_at_the_beginning.clear()
        self.beginning_beside.clear()

    def _note_copies(self, monkeypatch, backend_class):
        swap_out, swap_in, prefetch = backend_class.swap_out, backend_class.swap_in, Residency.prefetch

        def out(backend, source):
            copy, transfer = swap_out(backend, source)
            self._outs.append(transfer)
            return copy, transfer

        def back(backend, copy, into):
            self._ins.append(swap_in(backend, copy, into))
            return self._ins[-1]

        def noted(residency, storage):
            away = storage.state is State.AWAY
            done = prefetch(residency, storage)
            if away and storage.state is State.ARRIVING:
                self.events.append(('in', storage.map))
            return done
        monkeypatch.setattr(backend_class, 'swap_out', out)
        monkeypatch.setattr(backend_class, 'swap_in', back)
        monkeypatch.setattr(Residency, 'prefetch', noted)

    def _note_computations(self, monkeypatch):
        before_call, before_step = Iteration.before_call, Iteration.before_step
        begun = []  # swap-ins that had begun when the last step did

        def call_begins(iteration, function, inputs):
            before_call(iteration, function, inputs)
            self._begins(len(iteration.recorder.calls), begun)

        def step_begins(iteration, function):
            needed = before_step(iteration, function)
            self._begins(iteration.recorder.next_position, begun)
            begun[:] = self._ins
            return needed

        monkeypatch.setattr(Iteration, 'before_call', call_begins)
        monkeypatch.setattr(Iteration, 'before_step', step_begins)

    def _begins(self, position, begun):
        self.events.append(('compute', position))
        self.leaving_at_the_beginning += [position] * sum(not each.done for each in self._outs)
        self.coming_at_the_beginning += [position] * sum(not each.done for each in begun)
        self.beginning_beside += [position] * sum(not each.done for each in self._ins if each not in begun)


@pytest.fixture
def watch(monkeypatch, backend_class):
    return Watch(monkeypatch, backend_class)


@pytest.fixture
def slow_copies(monkeypatch):
    """Each copy of the host takes 10 ms more; those of chaos take until they are waited for anyway."""
    def slowly(move, *arguments):
        time.sleep(0.01)
        return move(*arguments)
    for name in ('pwritev', 'preadv'):
        monkeypatch.setattr(os, name, functools.partial(slowly, getattr(os, name)))


def run(watch, network, policy):
    """Records one iteration and watches the next."""
    training = Training(network)
    with ooc(policy):
        training.iterate()
        watch.clear()
        training.iterate()
        found = chainer_ooc.plan(), chainer_ooc.trace()
    assert_same_bits(training.finish(), plain(network, 2))
    return found


@pytest.mark.parametrize('policy', ['vdnn-all', 'vdnn-conv'])
@pytest.mark.parametrize('network', ['residual', 'hidden', 'inception'])
def test_the_next_computation_waits_for_swap_outs_and_for_swap_ins_that_began_before(
        watch, slow_copies, network, policy):
    run(watch, network, policy)
    assert (watch.leaving_at_the_beginning, watch.coming_at_the_beginning) == ([], [])


def test_a_policy_that_does_not_synchronise_computes_while_maps_leave(watch, slow_copies):
    run(watch, 'residual', 'vdnn++')
    assert watch.leaving_at_the_beginning


def test_a_swap_in_is_not_waited_for_by_the_step_that_it_begins_with(watch, slow_copies):
    run(watch, 'residual', 'vdnn-all')
    assert watch.beginning_beside


@pytest.mark.parametrize('policy', ['vdnn-all', 'vdnn-conv'])
@pytest.mark.parametrize('network', ['residual', 'hidden', 'inception'])
def test_execution_starts_the_swap_ins_that_the_simulator_starts_with_the_same_steps(watch, network, policy):
    plan, trace = run(watch, network, policy)
    problem = Problem(trace, measured(trace), Standing(0, 0), plan.budget_bytes, 0)
    timeline = simulate(problem, lay_out(problem, POLICIES[policy].decide(problem)))
    backward = [(kind, subject) for kind, subject in watch.events if kind == 'in' or subject >= trace.backward_start]
    kinds = {Stream.COPY_IN: 'in', Stream.COMPUTE: 'compute'}
    executed, simulated = _by_step(backward), _by_step([
        (kinds[each.stream], each.subject) for each in timeline.tasks
        if each.stream is Stream.COPY_IN or (
            each.stream is Stream.COMPUTE and each.subject >= trace.backward_start)])
    # What the program still holds then has not begun to leave when backward wants it, and stays.
    assert executed.pop(trace.backward_start) <= simulated.pop(trace.backward_start)
    assert simulated == executed
    assert any(executed.values())


def _by_step(events):
    """The swap-ins that begin before each step, whatever their order."""
    groups, since = {}, set()
    for kind, subject in events:
        if kind == 'in':
            since.add(subject)
        else:
            groups[subject], since = since, set()
    return groups


@pytest.mark.parametrize('policy', ['vdnn-all', 'vdnn-conv'])
@pytest.mark.parametrize('network', ['residual', 'hidden', 'inception'])
def test_what_has_left_comes_back_once_and_nobody_faults(network, policy):
    training = Training(network)
    with ooc(policy):
        training.iterate(4)
    for each in training.outcome.stats[1:]:
        assert (each.faults, each.swapped_in_bytes) == (0, each.swapped_out_bytes)
