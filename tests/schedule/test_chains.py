"""Which calls run again before which step. A chain of four calls, each of which makes the map that the next one reads::

    call        0 -> 1 -> 2 -> 3        map n is made by call n; the step of call n reads map n
    position    0    1    2    3  |  4    5    6    7
    step of                          3    2    1    0
"""
import dataclasses

import pytest

from chainer_ooc.cost.costs import measured
from chainer_ooc.problem import Decision, Problem, Standing, Verdict
from chainer_ooc.schedule.chains import find_chains
from chainer_ooc.schedule.schedule import lay_out

KEEP, SWAP, RECOMPUTE = Verdict
ALL_BUT_THE_FIRST = (KEEP, RECOMPUTE, RECOMPUTE, RECOMPUTE)


@pytest.fixture
def trace(trace_of):
    made = trace_of([10] * 4, [5] * 4, [(10, 0, 1, [7]), (10, 1, 2, [6]), (10, 2, 3, [5]), (10, 3, 3, [4])])
    calls = tuple(dataclasses.replace(each, inputs=(each.index - 1,), outputs=(each.index,)) for each in made.calls)
    steps = tuple(dataclasses.replace(each, maps=(each.call,)) for each in made.steps)
    return dataclasses.replace(made, calls=calls, steps=steps)


def test_a_shared_chain_runs_once_and_leaves_what_it_makes(trace):
    chains = find_chains(trace, ALL_BUT_THE_FIRST, True)
    assert chains.calls_at == {4: (1, 2, 3)}
    assert chains.restored == (-1, 4, 4, 4)


def test_an_unshared_chain_runs_for_each_step(trace):
    chains = find_chains(trace, ALL_BUT_THE_FIRST, False)
    assert chains.calls_at == {4: (1, 2, 3), 5: (1, 2), 6: (1,)}
    assert chains.restored == (-1, 6, 5, 4)


def test_of_each_map_a_policy_may_say_whether_chains_leave_it(trace):
    # map 1 stays from position 4 on; map 2 is made again for its own step, from map 1
    chains = find_chains(trace, ALL_BUT_THE_FIRST, frozenset({1}))
    assert chains.calls_at == {4: (1, 2, 3), 5: (2,)}
    assert chains.restored == (-1, 4, 5, 4)
    assert chains.uses[1] == (5, 6)


def test_what_is_named_but_not_recomputed_changes_nothing(trace):
    assert find_chains(trace, ALL_BUT_THE_FIRST, frozenset({0})).calls_at == find_chains(
        trace, ALL_BUT_THE_FIRST, False).calls_at


def test_a_course_follows_the_maps_that_a_decision_names_whatever_memory_there_is(trace):
    # position     0    1    2    3   |  4    5    6    7
    # computing   10   10   10   10     10    5    5    5      4: call 3 beside map 2, which it reads; map 3 is its own
    # map 0             10                10   10   10   10
    # map 1                  10           10   10   10
    # map 2                       10           10
    # map 3                               10
    for budget_bytes in (1, 10**9):
        problem = Problem(trace, measured(trace), Standing(0, 0), budget_bytes, 1)
        schedule = lay_out(problem, Decision(ALL_BUT_THE_FIRST, shares_chains=frozenset({1})))
        assert schedule.chains.shared == frozenset({1})
        assert schedule.need[4:].tolist() == [40, 35, 25, 15]
