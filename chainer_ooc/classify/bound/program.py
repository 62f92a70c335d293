"""A linear program with exact data, and lower bounds on its minimum that no rounding can make false.

    minimise     cost . x
    subject to   row . x <= side   for each row,      0 <= x <= top

A solver works in floats: neither its minimum nor that its point is feasible is proven. But any multipliers y >= 0, of
wherever they come, give a bound:

    cost . x >= cost . x + sum of y (row . x - side) >= - y . side + sum over variables of min(0, reduced cost * top)

Coefficients, sides and the multipliers taken from the solver are multiples of 2**-50, held as whole numbers, so that
the right end of this line is worked out without rounding. Source: Neumaier and Shcherbina 2004, "Safe bounds in linear
and mixed-integer linear programming". What differs: whole numbers here, in place of directed rounding.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from chainer_ooc.errors import OocError

#: What 1 is in the whole numbers of rows.
ONE = 1 << 50

#: A variable's number and its coefficient, in multiples of 1 / ONE.
Entry = tuple[int, int]

Floats = npt.NDArray[np.float64]

#: Multipliers of no rows.
NOTHING: Floats = np.zeros(0)


class NoSolverError(OocError, ImportError):
    """SciPy is not installed."""

    def __init__(self) -> None:
        super().__init__('a lower bound needs a solver of linear programs, which comes with SciPy, and SciPy is not '
                         'installed; run: pip install "chainer-ooc[auto]"')


class LinearProgram:
    """Variables and rows, as they are added.

    Attributes:
        rules: of each row, its name in docs/bound.md.
        places: of each row, the position that it is about, or -1.
        sides: of each row, the right side, in multiples of 1 / ONE.
    """

    def __init__(self) -> None:
        self.rules: list[str] = []
        self.places: list[int] = []
        self.sides: list[int] = []
        self._tops: list[int] = []
        self._entries: list[list[Entry]] = []
        self._costs: dict[int, int] = {}

    def variable(self, top: int = ONE) -> int:
        """Adds a variable between 0 and `top`, and returns its number."""
        self._tops.append(max(0, top))
        return len(self._tops) - 1

    def at_most(self, rule: str, entries: Iterable[Entry], side: int = 0, place: int = -1) -> None:
        """Adds a row: the sum of the entries is at most `side`."""
        self._entries.append(list(entries))
        self.rules.append(rule)
        self.places.append(place)
        self.sides.append(side)

    def minimise(self, *variables: int) -> None:
        """Sets what is to be small: the sum of these."""
        self._costs = dict.fromkeys(variables, ONE)

    def solve(self, limit_seconds: float) -> Floats:
        """Asks HiGHS for the multipliers of the rows.

        Returns:
            Each 0 or more, float64, shape (rows,); empty if it takes longer than the limit, or finds no values that
            keep all rows.

        Raises:
            NoSolverError: it is not installed.
        """
        optimize, _ = _solver()
        wanted = np.zeros(len(self._tops))
        wanted[list(self._costs)] = 1.0
        boxes = np.stack([np.zeros(len(self._tops)), _floats(self._tops)], axis=1)
        found = optimize.linprog(wanted, A_ub=self._matrix(), b_ub=_floats(self.sides), bounds=boxes,
                                 method='highs-ds', options={'time_limit': limit_seconds})
        return NOTHING if found.status != 0 else np.maximum(0.0, -found.ineqlin.marginals)

    def _matrix(self) -> Any:
        """The rows as floats, a SciPy array."""
        _, sparse = _solver()
        counts = [0, *(len(each) for each in self._entries)]
        columns = [column for each in self._entries for column, _ in each]
        numbers = _floats(number for each in self._entries for _, number in each)
        made = sparse.csr_array((numbers, np.array(columns, np.int32), np.cumsum(counts, dtype=np.int32)),
                                shape=(len(self.sides), len(self._tops)))
        made.sum_duplicates()
        return made

    def bound(self, multipliers: Floats) -> Fraction:
        """What the minimum is at least, whatever the multipliers are; exact. Rows that have none count with 0."""
        weights = [int(each * ONE) for each in np.nan_to_num(multipliers, posinf=0.0, neginf=0.0).tolist()]
        reduced = [self._costs.get(number, 0) * ONE for number in range(len(self._tops))]
        total = 0
        for weight, side, entries in zip(weights, self.sides, self._entries, strict=False):
            if weight > 0:
                total -= weight * side
                for column, number in entries:
                    reduced[column] += weight * number
        total += sum(cost * top // ONE for cost, top in zip(reduced, self._tops, strict=True) if cost < 0)
        return Fraction(total, ONE * ONE)


def _solver() -> tuple[Any, Any]:
    """SciPy's optimize and sparse.

    Raises:
        NoSolverError: it is not installed.
    """
    try:
        import scipy.optimize
        import scipy.sparse
    except ImportError:
        raise NoSolverError from None
    return scipy.optimize, scipy.sparse


def _floats(numbers: Iterable[int]) -> Floats:
    return np.array([number / ONE for number in numbers], np.float64)
