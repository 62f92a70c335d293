"""The bound is below every course: all of those of small problems, and every policy's of larger ones.

`BOUND_PROBLEMS=2000` has as many small problems tried, and a quarter as many larger ones.
"""
import dataclasses
import math
import os

import pytest
from hypothesis import given, settings

from chainer_ooc.classify.bound import lower_bound
from chainer_ooc.classify.bound.program import Program
from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.plans.making import make_plan
from support.planning import drawn_problems
from support.planning.small_problems import best_seconds, draw_problem

PROBLEMS = int(os.environ.get('BOUND_PROBLEMS', '0'))
SAMPLES = 60 if PROBLEMS else 8

#: For each rule of docs/bound.md a problem by whose courses a wrong term in it is found.
FOUND_BY = {
    'verdicts': 8, 'made': 1, 'inputs': 20, 'inputs that died': 248, 'time': 1, 'slowdown': 7, 'leaves': 3, 'out': 3,
    'comes': 47, 'in': 3, 'memory': 1, 'away': 20, 'whole': 10, 'rounding': 12, 'out whole': 3, 'in whole': 8}


def tightened(rule):
    """A program in whose rows of one rule every term is wrong: a quarter more is spent, a fifth less is given."""
    def at_most(self, name, entries, side=0, place=-1):
        if name == rule:
            entries = [(variable, more(number)) for variable, number in entries]
            side = -more(-side)
        add(self, name, entries, side, place)

    def more(number):
        return number * 5 // 4 if number > 0 else number * 4 // 5

    add = Program.at_most
    return at_most


@pytest.mark.parametrize('seeds', [range(first, first + 10) for first in range(0, PROBLEMS or 50, 10)], ids=str)
def test_no_course_of_a_small_problem_is_faster(seeds):
    for seed in seeds:
        problem = draw_problem(seed)
        assert lower_bound(problem).seconds <= best_seconds(problem, SAMPLES), seed


@settings(max_examples=PROBLEMS // 4 or 15)
@given(drawn_problems.problems())
def test_no_policy_of_a_larger_problem_is_faster(problem):
    found = lower_bound(problem)
    for name, policy in POLICIES.items():
        try:
            plan = make_plan(policy, problem)
        except InfeasibleBudgetError:
            continue
        assert plan.mapped or found.seconds <= plan.seconds, name


@pytest.mark.parametrize('rule', FOUND_BY)
def test_a_wrong_term_in_a_rule_is_found(rule, monkeypatch):
    problem = draw_problem(FOUND_BY[rule])
    best = best_seconds(problem, 20)
    assert lower_bound(problem).seconds <= best
    monkeypatch.setattr(Program, 'at_most', tightened(rule))
    assert lower_bound(problem).seconds > best


def test_each_rule_is_tried_with_a_wrong_term(monkeypatch):
    seen = set()
    add = Program.at_most
    monkeypatch.setattr(Program, 'at_most', lambda self, rule, *rest: (seen.add(rule), add(self, rule, *rest)))
    for seed in FOUND_BY.values():
        lower_bound(draw_problem(seed))
    assert seen == {*FOUND_BY}
