"""Linear programs: any multipliers give a bound, and the solver's give the minimum up to rounding."""
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainer_ooc.classify.bound import NoSolverError
from chainer_ooc.classify.bound.program import ONE, LinearProgram


def make(rows, tops, costs):
    """A program: rows of (numbers, side), tops, and which variables are to be small."""
    program = LinearProgram()
    variables = [program.variable(top * ONE) for top in tops]
    for numbers, side in rows:
        program.at_most('row', [(variable, number * ONE) for variable, number in zip(variables, numbers, strict=True)],
                        side * ONE)
    program.minimise(*(variables[each] for each in costs))
    return program


#: x + y >= 3 and x >= 2 y, where x <= 10 and y <= 10: y = 1 at most if x = 2.
TWO = [([-1, -1], -3), ([-1, 2], 0)]


def test_the_minimum_of_a_small_program():
    program = make(TWO, [10, 10], [0])
    assert 2 - 1e-9 <= program.bound(program.solve(60)) <= 2


@pytest.mark.parametrize(('multipliers', 'bound'), [
    ([0.0, 0.0], 0),
    ([0.5, 0.25], Fraction(3, 2)),  # the reduced cost of x is 1 - 0.75
    ([1.0, 0.5], 3 - 5),            # that of x is -0.5, and x may be 10
    ([np.inf, 0.0], 0), ([np.nan, 0.0], 0), ([-1.0, 0.0], 0)])
def test_any_multipliers_give_a_bound(multipliers, bound):
    assert make(TWO, [10, 10], [0]).bound(np.array(multipliers)) == bound


@given(st.data())
def test_no_multipliers_give_more_than_a_point_that_keeps_all_rows(data):
    count = data.draw(st.integers(1, 4))
    numbers = st.integers(-9, 9)
    point = [data.draw(st.integers(0, 5)) for _ in range(count)]
    rows = []
    for _ in range(data.draw(st.integers(1, 4))):
        row = [data.draw(numbers) for _ in range(count)]
        rows.append((row, sum(a * x for a, x in zip(row, point, strict=True)) + data.draw(st.integers(0, 3))))
    costs = data.draw(st.sets(st.integers(0, count - 1)))
    program = make(rows, [each + data.draw(st.integers(0, 3)) for each in point], costs)
    spent = sum(point[each] for each in costs)
    multipliers = np.array([data.draw(st.floats(0, 100)) for _ in rows])
    assert program.bound(multipliers) <= spent
    found = program.solve(60)
    assert found.size
    assert program.bound(found) <= spent


def test_a_program_without_a_point():
    program = make([([1], -1)], [10], [0])
    multipliers = program.solve(60)
    assert not multipliers.size
    assert program.bound(multipliers) == 0


def test_without_scipy_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, 'scipy.optimize', None)
    with pytest.raises(NoSolverError, match=r'pip install "chainer-ooc\[auto\]"'):
        make(TWO, [10, 10], [0]).solve(60)
