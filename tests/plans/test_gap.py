"""The gap of a plan: between its time and one that no plan is below, worked out when it is asked for, and once.

A map of 5 bytes is made by call 0 and read by position 3; call 1 needs 15 bytes of 19, and a byte takes the link 1 s::

    seconds  0....5....0..
    compute  0.....12....3     swap-all: 13 s. To make the map again takes 5 s in all, the least that is possible.
    out      .aaaaa
    in       .......aaaaa
"""
import copy
import dataclasses
import pickle
import sys

import pytest

from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.execute.tally import Tally, freeze
from chainer_ooc.plans import gap
from chainer_ooc.plans.making import make_plan
from chainer_ooc.plans.plan import Plan
from support.planning.literal_iterations import make_problem


def planned(policy):
    return make_plan(POLICIES[policy], make_problem([1, 1], [1, 1], {'a': (5, 0, 0, [3])}, 19, {0: 5, 1: 15}))


class Device:
    def tier_bytes(self):
        return {}

    def timestamp(self):
        return 0.0

    def seconds_between(self, start, end):
        return end - start


def stats_of(plan):
    return freeze(Tally(Device()), 'swap-all', 'run', 19, plan, False)


@pytest.fixture
def asked(monkeypatch):
    """The problems of which a bound was worked out."""
    problems, bound = [], gap.known_bound
    monkeypatch.setattr(gap, 'known_bound', lambda problem: (problems.append(problem), bound(problem))[1])
    return problems


@pytest.mark.parametrize('value', [lambda: planned('swap-all'), lambda: stats_of(planned('swap-all'))])
def test_the_gap_is_between_the_time_of_the_plan_and_the_bound(value):
    assert value().gap == pytest.approx(13 / 5 - 1)


def test_the_best_plan_has_none():
    assert planned('auto').gap == pytest.approx(0, abs=1e-9)


def test_it_is_worked_out_when_it_is_asked_for_and_once(asked):
    plan = planned('swap-all')
    stats = stats_of(plan)
    str(stats), repr(stats), repr(plan), plan.to_json(), dataclasses.asdict(stats), pickle.dumps([plan, stats])
    assert stats == stats_of(plan)
    assert asked == []
    assert stats.gap == stats.gap == plan.gap
    assert [each.budget_bytes for each in asked] == [19]


def test_the_time_that_a_search_had_is_not_that_of_the_bound(asked):
    problem = make_problem([1, 1], [1, 1], {'a': (5, 0, 0, [3])}, 19, {0: 5, 1: 15})
    plan = make_plan(POLICIES['swap-all'], dataclasses.replace(problem, limit_seconds=1e-6))
    assert plan.gap == pytest.approx(13 / 5 - 1)
    assert [each.limit_seconds for each in asked] == [gap.LIMIT_SECONDS]


def test_there_is_none_without_a_plan_and_where_maps_are_outside_of_the_budget(asked):
    assert stats_of(None).gap is None
    assert planned('unified').gap is None
    assert stats_of(planned('unified')).gap is None
    assert asked == []


def test_there_is_none_where_scipy_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, 'scipy.optimize', None)
    assert planned('swap-all').gap is None


@pytest.mark.parametrize('make', [lambda plan: plan, stats_of], ids=['plan', 'stats'])
@pytest.mark.parametrize('copied', [
    copy.copy, copy.deepcopy, dataclasses.replace, lambda value: pickle.loads(pickle.dumps(value))])
def test_copies_are_equal_and_know_no_gap(make, copied):
    value = make(planned('swap-all'))
    before = repr(value), copied(value)
    assert value.gap is not None
    after = repr(value), copied(value)
    assert before == after == (repr(value), value)
    assert after[1].gap is None
    assert 'gap' not in dataclasses.asdict(value)


def test_a_plan_of_a_file_knows_no_gap():
    plan = planned('swap-all')
    read = Plan.from_json(plan.to_json())
    assert read == plan
    assert (read.gap, stats_of(read).gap) == (None, None)


def test_a_gap_cannot_be_set():
    for value in (planned('swap-all'), stats_of(planned('swap-all'))):
        with pytest.raises(dataclasses.FrozenInstanceError):
            value.gap = 0.0
