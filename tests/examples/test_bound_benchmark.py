"""The benchmark of the lower bound: its rows, and that annealing keeps above the bound."""
import argparse
import math
import random
from dataclasses import replace

import pytest

import bound

ARGUMENTS = argparse.Namespace(policy='pooch', insize=63, anneal=0.2)


@pytest.fixture(scope='module')
def problem():
    return bound.problem(bound.trace_of('alexnet', ARGUMENTS), bound.Row('alexnet', 'v100-pcie3', '1.15GB', 2432))


def test_a_row_has_the_bound_below_the_plan_and_what_binds(problem):
    row = bound.measure('alexnet', 'v100-pcie3', 2432, problem, ARGUMENTS)
    assert 1 < row['bound'] <= row['annealed'] <= row['planned']
    assert 0 <= row['annealed_gap'] <= row['gap']
    assert row['binds'].startswith('memory at ')
    assert 'a link twice as fast -' in row['binds']


def test_a_row_of_a_budget_in_which_nothing_fits(problem):
    row = bound.measure('alexnet', 'v100-pcie3', 2432, replace(problem, budget_bytes=10 ** 8), ARGUMENTS)
    assert (row['bound'], row['planned'], row['gap']) == (math.inf, None, None)
    assert row['binds'].startswith('nothing fits below ')


def test_changes_keep_to_what_a_map_can_do(problem):
    rng, decision = random.Random(0), bound.POLICIES['swap-all'].decide(problem)
    again = bound.can_recompute(problem.trace, problem.min_bytes)
    for _ in range(300):
        decision = bound.change(problem, decision, rng)
    for each, verdict in zip(problem.trace.maps, decision.verdicts, strict=True):
        assert verdict is bound.Verdict.KEEP or bound.can_leave(each, problem.min_bytes)
        assert verdict is not bound.Verdict.RECOMPUTE or again[each.id]
        assert each.leaves_at <= decision.leaves.get(each.id, each.leaves_at) < problem.trace.backward_start
