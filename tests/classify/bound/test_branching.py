"""Branch and bound: what it proves is never above the fastest course, and what goes wrong in it is found."""
import math
import os
from fractions import Fraction

import numpy as np
import pytest

from chainer_ooc.classify.bound import branching, lower_bound
from chainer_ooc.classify.bound.program import NO_VALUES, NOTHING, ONE, Program
from support.planning.small_problems import best_seconds, draw_problem

PROBLEMS = int(os.environ.get('BOUND_PROBLEMS', '0')) // 4 or 30
SAMPLES = 8


@pytest.fixture(scope='module')
def problems():
    """Small problems, the time of the fastest course of each, and its bound without branches."""
    drawn = ((draw_problem(seed), seed) for seed in range(PROBLEMS))
    found = ((problem, best_seconds(problem, SAMPLES), seed) for problem, seed in drawn)
    return [(problem, best, lower_bound(problem).seconds, seed) for problem, best, seed in found if best < math.inf]


def test_it_is_tighter_and_no_course_is_faster(problems):
    gained = 0
    for problem, best, root, seed in problems:
        for known in (best, math.inf):
            proven = lower_bound(problem, 30.0, known)
            assert root <= proven.seconds * (1 + 1e-12) and proven.seconds <= best, seed
        gained += proven.seconds > root * (1 + 1e-6)
    assert gained


@pytest.mark.parametrize('broken', ['one child is lost', 'the best child counts', 'a branch is closed unproven'])
def test_what_goes_wrong_is_found(broken, problems, monkeypatch):
    if broken == 'one child is lost':
        monkeypatch.setattr(Program, 'is_impossible', lambda self, limit_seconds, fixed: True)
        solve = Program.solve
        monkeypatch.setattr(Program, 'solve', lambda self, limit_seconds=60.0, fixed=NO_VALUES: (
            NOTHING if 0 in fixed.values() else solve(self, limit_seconds, fixed)))
    elif broken == 'the best child counts':
        monkeypatch.setattr(branching, 'min', max, raising=False)
    else:
        bound = Program.bound
        monkeypatch.setattr(Program, 'bound', lambda self, multipliers, fixed=NO_VALUES: bound(
            self, multipliers, fixed) + (Fraction(1, 20) if fixed else 0))
    assert any(lower_bound(problem, 30.0).seconds > best for problem, best, _, _ in problems)


def packing():
    """Not to be decided by halves: of three things at least two have to go, and any two together are too much."""
    program = Program()
    things, lost = [program.variable() for _ in range(3)], program.variable(10 * ONE)
    program.at_most('cover', [(each, -ONE) for each in things], -3 * ONE // 2)
    for each in things:
        program.at_most('cost', [(each, 2 * ONE), (lost, -ONE)])
    program.minimise(lost)
    return program, things


def prove(enough=100, seconds=30.0, clock=None):
    program, things = packing()
    solution = program.solve()
    given = {} if clock is None else {'clock': clock}
    return branching.branch(program, dict.fromkeys(things, 1), (solution, program.bound(solution.multipliers)),
                            Fraction(enough), seconds, **given)


def test_a_relaxation_that_halves_things_is_told_apart():
    program, _ = packing()
    solution = program.solve()
    assert program.bound(solution.multipliers) == pytest.approx(1)
    proven, branches = prove()
    assert proven == pytest.approx(2) and 2 <= branches <= 14


def test_no_more_is_proven_than_that_no_course_is_faster_than_the_known_one():
    proven, _ = prove(enough=Fraction(3, 2))
    assert proven == Fraction(3, 2)


def test_it_stops_when_the_time_is_up_and_says_what_it_has():
    ticks = iter(range(1000))
    proven, branches = prove(seconds=1.0, clock=lambda: next(ticks))
    assert proven == pytest.approx(1) and branches <= 2
    assert prove(seconds=0.0, clock=lambda: 0)[1] == 0


def test_what_is_impossible_is_proven_to_be():
    program, things = packing()
    assert program.is_impossible(10.0, dict.fromkeys(things, 0))
    assert not program.is_impossible(10.0, {things[0]: 0})


def test_a_wrong_answer_of_the_solver_proves_nothing(monkeypatch):
    """An unproven branch keeps the bound of what it was split from."""
    program, things = packing()
    solution = program.solve()
    root = solution, program.bound(solution.multipliers)
    monkeypatch.setattr(program, 'solve', lambda limit_seconds, fixed: NOTHING)
    monkeypatch.setattr(program, '_ask', lambda *given: NOTHING)
    proven, branches = branching.branch(program, dict.fromkeys(things, 1), root, Fraction(100), 5.0)
    assert proven == root[1] and branches == 2


def test_a_fixed_value_counts_in_the_bound_as_it_is():
    program, things = packing()
    fixed = {things[0]: ONE}
    found = program.solve(10.0, fixed)
    assert found.values[things[0]] == 1
    assert program.bound(found.multipliers, fixed) == pytest.approx(2)
    assert program.bound(np.zeros(0), fixed) == 0
