"""A better plan is looked for in a thread while training goes on, and is taken between two iterations."""
import _thread
import contextlib
import dataclasses
import functools
import logging
import os
import sys
import threading
import time
from pathlib import Path

import pytest

import chainer_ooc
from chainer_ooc.backends.base import Bandwidth
from chainer_ooc.backends.host.backend import HostBackend
from chainer_ooc.classify import policies
from chainer_ooc.classify.policies import keep, swap_all
from chainer_ooc.classify.policies.policy import Policy
from chainer_ooc.classify.search import evaluate
from chainer_ooc.errors import InfeasibleBudgetError, SpillError
from chainer_ooc.execute import sessions
from chainer_ooc.execute.graphs import planner
from chainer_ooc.execute.graphs.planner import Planner
from chainer_ooc.execute.graphs.times import Times
from chainer_ooc.execute.other_threads import other_threads
from chainer_ooc.plans.making import plan_within
from chainer_ooc.problem import everything
from support.planning.small_problems import draw_problem
from support.side_by_side import side_by_side
from support.trainings.ooc_training import Training, assert_same_bits, floor_of, ooc, plain

NETWORK = 'residual'
LONGEST = 30.0


class TwoStages:
    """A policy that swaps everything at first. In the thread it keeps everything, after what a test has it wait for.

    Attributes:
        may_end: set by the test.
        looks: evaluations in the thread.
        threads: that it decided in.
    """

    def __init__(self):
        self.may_end = threading.Event()
        self.looks = 0
        self.threads = []
        self.decide_beside = keep.decide

    def decide(self, problem):
        self.threads.append(threading.get_ident())
        if threading.current_thread() is threading.main_thread():
            return swap_all.decide(problem)
        while not self.may_end.is_set():
            evaluate(problem, keep.decide(problem))
            self.looks += 1
            time.sleep(1e-4)
        return self.decide_beside(problem)


@pytest.fixture
def two_stages(monkeypatch):
    policy = TwoStages()
    monkeypatch.setattr(planner, 'FIRST_SECONDS', 0.0)
    monkeypatch.setattr(HostBackend, 'bandwidth', lambda self: Bandwidth(1e6, 1e6, 1e-4, 1.0))  # to swap is slow
    monkeypatch.setattr(Times, 'note', lambda self, timing: False)  # it is not, and no plan is made anew for that
    monkeypatch.setitem(
        policies.POLICIES, 'two-stages', Policy('two-stages', 'for tests', policy.decide, searches=True))
    yield policy
    policy.may_end.set()


def until(condition):
    ends = time.monotonic() + LONGEST
    while not condition():
        assert time.monotonic() < ends
        time.sleep(1e-3)


def planner_in_use():
    return sessions.current()._graphs.planner


def until_it_has_ended():
    until(lambda: not planner_in_use()._runs)


def swapped(training):
    return [each.swap > 0 for each in training.outcome.stats]


def searching(training):
    return [each.is_searching for each in training.outcome.stats]


@pytest.mark.usefixtures('nothing_quiet')
def test_a_better_plan_takes_over_between_two_iterations(two_stages, caplog):
    with ooc('two-stages'), caplog.at_level(logging.INFO, 'chainer_ooc'):
        training = Training(NETWORK)
        training.iterate(3)
        assert 'a better plan is looked for' in str(chainer_ooc.stats())
        first = chainer_ooc.plan()
        two_stages.may_end.set()
        until_it_has_ended()
        assert chainer_ooc.plan() is first, 'it is taken when the next iteration begins'
        training.iterate(2)
        assert chainer_ooc.plan().seconds < first.seconds
    assert swapped(training) == [False, True, True, False, False]
    assert searching(training) == [False, True, True, False, False]
    assert 'a better plan was found in' in caplog.text
    assert_same_bits(training.finish(), plain(NETWORK, 5))


def test_known_iterations_become_quiet_under_the_better_plan(two_stages):
    with ooc('two-stages'):
        training = Training(NETWORK)
        training.iterate(2)
        two_stages.may_end.set()
        until_it_has_ended()
        training.iterate(4)
        assert sessions.current()._iteration.quiet is not None
    assert_same_bits(training.finish(), plain(NETWORK, 6))


def test_what_is_no_better_is_not_taken(two_stages, caplog):
    two_stages.decide_beside = swap_all.decide
    two_stages.may_end.set()
    with ooc('two-stages'), caplog.at_level(logging.INFO, 'chainer_ooc'):
        training = Training(NETWORK)
        training.iterate(2)
        first = chainer_ooc.plan()
        until_it_has_ended()
        training.iterate(2)
        assert chainer_ooc.plan() is first
    assert 'no better plan was found' in caplog.text
    assert swapped(training) == [False, True, True, True]


def test_a_search_that_ends_at_once_has_no_thread(two_stages, monkeypatch):
    monkeypatch.setattr(planner, 'FIRST_SECONDS', LONGEST)
    with ooc('two-stages'):
        training = Training(NETWORK)
        training.iterate(3)
    assert two_stages.threads == [threading.get_ident()] * len(two_stages.threads)
    assert searching(training) == [False] * 3


def test_while_an_iteration_is_recorded_the_search_rests(two_stages):
    """It allocates, and recording measures what is allocated."""
    with ooc('two-stages'):
        training = Training(NETWORK)
        training.iterate(2)
        until(lambda: two_stages.looks > 0)
        other = Training('old')
        loss = other.forward()  # another graph, which is recorded
        looks = two_stages.looks
        time.sleep(0.05)
        loss.backward()
        assert sessions.current()._iteration.recorder.measures
        assert two_stages.looks == looks
        other.iterate(2)
        training.iterate()
        until(lambda: two_stages.looks > looks)


def test_a_recording_beside_a_search_that_does_not_rest_is_in_doubt(two_stages, monkeypatch):
    monkeypatch.setattr(Planner, 'rest', lambda self, rests: not rests)
    with ooc('two-stages'):
        training = Training(NETWORK)
        training.iterate()
        chainer_ooc.trace()
        assert sessions.current()._graphs.latest().is_disturbed


def test_so_is_one_beside_a_search_of_a_closed_session_that_is_not_over_yet(two_stages, monkeypatch):
    def solve(problem):
        two_stages.may_end.wait(LONGEST)  # as a solver that never looks up
        return keep.decide(problem)

    monkeypatch.setattr(planner, 'LONGEST_END_SECONDS', 0.05)
    monkeypatch.setattr(TwoStages, 'decide', lambda self, problem: (
        swap_all.decide if threading.current_thread() is threading.main_thread() else solve)(problem))
    monkeypatch.setitem(policies.POLICIES, 'two-stages', dataclasses.replace(
        policies.POLICIES['two-stages'], decide=two_stages.decide))
    found = []
    for is_over in (False, True):
        with ooc('two-stages'):
            Training(NETWORK).iterate(2)
            thread = planner_in_use()._thread
            assert thread.is_alive()
            if is_over:
                two_stages.may_end.set()
            chainer_ooc.reset()
            assert thread.is_alive() is not is_over
        with ooc('keep'):
            Training(NETWORK).iterate()
            chainer_ooc.trace()
            found.append(sessions.current()._graphs.latest().is_disturbed)
            chainer_ooc.reset()
        two_stages.may_end.set()
        until(lambda thread=thread: not thread.is_alive())
        two_stages.may_end.clear()
    assert found == [True, False]


def test_what_iterations_take_beside_a_search_is_not_noted(two_stages, monkeypatch):
    noted = []
    monkeypatch.setattr(Times, 'note', lambda self, timing: noted.append(timing))
    with ooc('two-stages'):
        training = Training(NETWORK)
        training.iterate(8)
        assert not noted
        two_stages.decide_beside = swap_all.decide
        two_stages.may_end.set()
        until_it_has_ended()
        training.iterate(5)
        assert noted


def test_an_error_in_the_search_is_a_warning_and_the_first_plan_stays(two_stages, caplog):
    def fail(problem):
        raise ZeroDivisionError('of a test')

    two_stages.decide_beside = fail
    two_stages.may_end.set()
    with ooc('two-stages'), caplog.at_level(logging.WARNING, 'chainer_ooc'):
        training = Training(NETWORK)
        training.iterate(2)
        until_it_has_ended()
        training.iterate(2)
    assert "ZeroDivisionError('of a test')" in caplog.text
    assert swapped(training) == [False, True, True, True]
    assert_same_bits(training.finish(), plain(NETWORK, 4))


def test_where_no_thread_can_be_had_the_first_plan_stays(two_stages, monkeypatch):
    def refuse(*_):
        raise RuntimeError("can't start new thread")

    with ooc('two-stages'):
        training = Training(NETWORK)
        training.iterate()
        monkeypatch.setattr(_thread, 'start_new_thread', refuse)
        training.iterate(3)
    assert swapped(training) == [False, True, True, True] and not any(searching(training))


def test_one_that_begins_late_is_not_waited_for(two_stages, monkeypatch):
    may_begin, begun = threading.Event(), []

    def launch_late(self, launch=Planner._launch):
        may_begin.wait(LONGEST)
        launch(self)
        begun.append(self._thread)

    monkeypatch.setattr(planner, 'LONGEST_START_SECONDS', 0.05)
    monkeypatch.setattr(Planner, '_launch', launch_late)
    with ooc('two-stages'):
        training = Training(NETWORK)
        training.iterate(4)
        may_begin.set()
        until(lambda: begun and not begun[0].is_alive())
        training.iterate(2)
    assert swapped(training) == [False, *[True] * 5] and not any(searching(training))
    assert len(begun) == 1


def test_nor_where_it_cannot_begin(two_stages, monkeypatch):
    start = threading.Thread.start

    def refuse(thread):
        if thread.name == 'chainer_ooc-planner':
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, 'start', refuse)
    with ooc('two-stages'):
        training = Training(NETWORK)
        training.iterate(4)
    assert swapped(training) == [False, True, True, True] and not any(searching(training))


def test_the_thread_is_none_of_the_programs(two_stages):
    """Or functions that draw random numbers would not be made again beside it, nor after it."""
    with ooc('two-stages'):
        Training(NETWORK).iterate(2)
        until(lambda: two_stages.looks > 0)
        assert not other_threads()
        two_stages.may_end.set()
        until_it_has_ended()
    assert not other_threads()


def test_a_better_plan_goes_into_the_file(two_stages, tmp_path):
    file = str(tmp_path / 'plans')
    two_stages.may_end.set()
    with ooc('two-stages', plan=file):
        training = Training(NETWORK)
        training.iterate(2)
        until_it_has_ended()
        training.iterate()
    chainer_ooc.reset()
    with ooc('two-stages', plan=file):
        training = Training(NETWORK)
        training.iterate()
        assert not chainer_ooc.stats().swap and chainer_ooc.stats().phase == 'run'
    assert len(two_stages.threads) == 2, 'a loaded plan is not searched for'


def test_a_far_memory_that_is_too_small_for_the_better_plan_leaves_the_first(two_stages, monkeypatch):
    """The first plan keeps everything here, and the better one would swap."""
    def reserve(self, nbytes):
        if nbytes:
            raise SpillError('of a test')

    monkeypatch.setattr(HostBackend, 'reserve', reserve)
    monkeypatch.setattr(swap_all, 'decide', keep.decide)
    monkeypatch.setattr(planner.BackgroundSearch, 'run', lambda self: None)
    with ooc('two-stages'):
        training = Training(NETWORK)
        training.iterate(2)
        graph = sessions.current()._graphs.latest()
        plan = graph.plan
        _, search = graph._search
        search.plan = dataclasses.replace(plan, seconds=plan.seconds / 2, verdicts=everything(graph.trace, 1))
        search.is_over = True
        training.iterate()
        assert graph.plan is plan


@pytest.mark.parametrize('when', ['at work', 'at rest', 'not begun'])
def test_reset_ends_the_thread(two_stages, when):
    with ooc('two-stages'):
        training = Training(NETWORK)
        training.iterate(2)
        used = planner_in_use()
        if when != 'not begun':
            until(lambda: two_stages.looks > 0)
        if when == 'at rest':
            assert used.rest(True)
        chainer_ooc.reset()
    assert not used._runs
    looks = two_stages.looks
    time.sleep(0.02)
    assert two_stages.looks == looks


def test_a_plan_that_is_made_anew_ends_the_search_for_the_old_one(two_stages):
    with ooc('two-stages'):
        training = Training(NETWORK)
        training.iterate(2)
        graph = sessions.current()._graphs.latest()
        _, search = graph._search
        until(lambda: two_stages.looks > 0)
        graph._forget_orders()
        assert search.is_over and search.plan is None
        training.iterate()
        assert graph._search[1] is not search


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='needs fork')
def test_a_forked_child_trains_without_the_parents_search(two_stages):
    with ooc('two-stages'):
        training = Training(NETWORK)
        training.iterate(2)
        until(lambda: two_stages.looks > 0)
        child = os.fork()
        if child == 0:
            status = 1
            with contextlib.suppress(BaseException):
                other = Training(NETWORK)
                other.iterate(3)
                status = 0 if swapped(other) == [False, True, True] else 2
                chainer_ooc.reset()
            os._exit(status)
        ends = time.monotonic() + LONGEST
        found = (0, 0)
        while found == (0, 0) and time.monotonic() < ends:
            found = os.waitpid(child, os.WNOHANG)
            time.sleep(0.01)
        assert found == (child, 0)
        two_stages.may_end.set()
        until_it_has_ended()
        training.iterate(2)
    assert_same_bits(training.finish(), plain(NETWORK, 4))


@pytest.mark.skipif(sys.platform != 'linux', reason='threads have priorities of their own on Linux')
def test_the_thread_has_a_lower_priority(two_stages):
    found, own = [], os.getpriority(os.PRIO_PROCESS, 0)

    def look(problem):
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return keep.decide(problem)

    two_stages.decide_beside = look
    two_stages.may_end.set()
    with ooc('two-stages'):
        Training(NETWORK).iterate(2)
        until_it_has_ended()
    assert found == [min(19, own + 10)] and os.getpriority(os.PRIO_PROCESS, 0) == own


def test_two_threads_that_train_search_at_once(two_stages, monkeypatch):
    beside = threading.local()

    def decide(problem):
        return (swap_all if getattr(beside, 'trains', False) else keep).decide(problem)

    monkeypatch.setitem(policies.POLICIES, 'two-stages', Policy('two-stages', 'for tests', decide, searches=True))
    outcomes = []

    def run():
        beside.trains = True
        with ooc('two-stages'):
            training = Training(NETWORK)
            training.iterate(2)
            until_it_has_ended()
            training.iterate()
            outcomes.append(swapped(training))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(LONGEST)
    assert outcomes == [[False, True, False]] * 2


# --- the planner alone ---------------------------------------------------------------------------------------------


def test_a_large_graph_begins_with_what_is_decided_at_once(monkeypatch):
    problem = draw_problem(3)
    monkeypatch.setattr(planner, 'LARGE_POSITIONS', 0)
    monkeypatch.setattr(planner, 'FIRST_SECONDS', LONGEST)
    used = Planner()
    plan, search = used.plan(policies.POLICIES['pooch'], problem)
    until(lambda: search.is_over)
    used.close()
    assert plan.policy == 'pooch'
    assert plan.verdicts in (swap_all.decide(problem).verdicts, keep.decide(problem).verdicts)
    assert search.error is None and search.plan.seconds <= plan.seconds
    assert search.plan.verdicts == policies.POLICIES['pooch'].decide(problem).verdicts


@pytest.mark.parametrize('name', [name for name, each in policies.POLICIES.items() if each.takes_long])
def test_whatever_the_policy_its_own_plan_is_awaited_then(name, monkeypatch):
    monkeypatch.setattr(planner, 'LARGE_POSITIONS', 0)
    monkeypatch.setattr(planner, 'FIRST_SECONDS', LONGEST)
    tried = 0
    for seed in range(12):
        used, policy, problem = Planner(), policies.POLICIES[name], draw_problem(seed)
        expected = refused = plan = search = None
        try:
            expected = plan_within(policy, problem)
        except InfeasibleBudgetError as error:
            refused = error
        with contextlib.suppress(InfeasibleBudgetError):
            plan, search = used.plan(policy, problem)
        if search is None:  # the stand-in did not fit
            assert plan == expected
        else:
            until(lambda search=search: search.is_over)
            assert search.plan == expected and str(search.error) == str(refused) and search.is_awaited
            tried += 1
        used.close()
    assert tried


def test_a_plan_that_is_awaited_is_taken_though_it_is_slower(two_stages, monkeypatch):
    slow = Policy('slow', 'for tests', swap_all.decide, takes_long=True)
    monkeypatch.setitem(policies.POLICIES, 'slow', slow)
    monkeypatch.setattr(planner, 'LARGE_POSITIONS', 0)
    with ooc('slow'):
        training = Training(NETWORK)
        training.iterate(2)
        until_it_has_ended()
        training.iterate(2)
    assert swapped(training) == [False, False, True, True]


def test_a_policy_that_refuses_what_is_awaited_refuses_the_next_iteration(two_stages, monkeypatch):
    monkeypatch.setitem(policies.POLICIES, 'slow', Policy('slow', 'for tests', keep.decide, takes_long=True))
    monkeypatch.setattr(planner, 'LARGE_POSITIONS', 0)
    budget_bytes = floor_of(NETWORK, 'keep') * 9 // 10
    with ooc('slow', budget=budget_bytes):
        training = Training(NETWORK)
        training.iterate(2)
        until_it_has_ended()
        with pytest.raises(InfeasibleBudgetError) as refused:
            training.iterate()
    assert refused.value.floor_bytes > budget_bytes
    with ooc('slow', budget=refused.value.floor_bytes * 51 // 50):
        training.iterate(2)
    assert_same_bits(training.finish(), plain(NETWORK, 4))


def test_without_a_thread_a_large_graph_gets_the_policys_own_plan_at_once(monkeypatch):
    monkeypatch.setattr(planner, 'LARGE_POSITIONS', 0)
    monkeypatch.setattr(Planner, '_start', lambda self: False)
    for seed in range(12):
        problem = draw_problem(seed)
        with contextlib.suppress(InfeasibleBudgetError):
            assert Planner().plan(policies.POLICIES['sublinear'], problem) == (
                plan_within(policies.POLICIES['sublinear'], problem), None)


@pytest.mark.skipif(sys.platform != 'linux', reason='reads /proc')
def test_the_thread_has_a_small_stack(two_stages):
    """It is private memory, which RLIMIT_DATA counts."""
    def private_kilobytes():
        lines = Path('/proc/self/status').read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith('VmData:'))

    used = Planner()
    before, stack_before = private_kilobytes(), threading.stack_size()
    _, search = used.plan(policies.POLICIES['two-stages'], draw_problem(3))
    until(lambda: two_stages.looks > 0)
    assert private_kilobytes() - before < 4096
    assert threading.stack_size() == stack_before
    two_stages.may_end.set()
    until(lambda: search.is_over)
    used.close()


def test_a_policy_that_does_not_search_does_not_go_on(monkeypatch):
    monkeypatch.setattr(planner, 'FIRST_SECONDS', 0.0)
    used = Planner()
    assert used.plan(policies.POLICIES['lms'], draw_problem(3))[1] is None


def test_a_refusal_is_the_callers(monkeypatch):
    monkeypatch.setattr(planner, 'FIRST_SECONDS', 0.0)
    used = Planner()
    with pytest.raises(InfeasibleBudgetError):
        used.plan(policies.POLICIES['pooch'], dataclasses.replace(draw_problem(3), budget_bytes=1))
    assert not used._runs
    used.close()


def test_plans_do_not_depend_on_the_time_that_the_first_one_had(monkeypatch):
    """What the thread finds is what a search without a limit finds."""
    for seed in range(20):
        problem = draw_problem(seed)
        expected = None
        for first_seconds in (0.0, LONGEST):
            monkeypatch.setattr(planner, 'FIRST_SECONDS', first_seconds)
            used = Planner()
            with contextlib.suppress(InfeasibleBudgetError):
                plan, search = used.plan(policies.POLICIES['auto'], problem)
                if search is not None:
                    until(lambda search=search: search.is_over)
                    assert search.error is None
                    plan = search.plan
                expected = expected or plan
                assert plan == expected
            used.close()


def test_two_threads_evaluate_one_problem_at_once():
    """Neither sees what the other has asked."""
    problem = next(each for each in map(draw_problem, range(40)) if len(each.trace.maps) > 3)
    decisions = [swap_all.decide(problem), keep.decide(problem)]
    expected = [evaluate(problem, each).floor_bytes for each in decisions]
    assert expected[0] != expected[1]
    wrong = []

    def ask(number):
        for _ in range(3000):
            found = evaluate(problem, decisions[number]).floor_bytes
            if found != expected[number]:
                wrong.append(found)

    side_by_side(*(functools.partial(ask, each) for each in (0, 1)))
    assert not wrong


def test_an_interrupted_pause_leaves_the_planner_usable(two_stages, monkeypatch):
    with ooc('two-stages'):
        training = Training(NETWORK)
        training.iterate(2)
        used = planner_in_use()

        def interrupt(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(used._changed, 'wait_for', interrupt)
            with pytest.raises(KeyboardInterrupt):
                used.rest(True)
        two_stages.may_end.set()
        training.iterate(2)
        until_it_has_ended()
        training.iterate()
    assert swapped(training)[-1] is False
    assert_same_bits(training.finish(), plain(NETWORK, 5))
