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

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from chainer_ooc.errors import OocError

#: What 1 is in the whole numbers of rows.
ONE = 1 << 50

#: A variable's number and its coefficient, in multiples of 1 / ONE.
Entry = tuple[int, int]

#: By variable, a value that it has for the time being, in multiples of 1 / ONE.
Fixed = Mapping[int, int]
Floats = npt.NDArray[np.float64]

NO_VALUES: Fixed = MappingProxyType({})


class NoSolverError(OocError, ImportError):
    """SciPy is not installed."""

    def __init__(self) -> None:
        super().__init__('a lower bound needs a solver of linear programs, which comes with SciPy, and SciPy is not '
                         'installed; run: pip install "chainer-ooc[auto]"')


@dataclass(frozen=True, eq=False)
class Solution:
    """What the solver says.

    Attributes:
        values: of the variables, float64, shape (variables,).
        multipliers: of the rows, 0 or more, float64, shape (rows,). Where it found no minimum both are empty.
    """

    values: Floats
    multipliers: Floats


NOTHING = Solution(np.zeros(0), np.zeros(0))


class Program:
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
        self._made: Any = None

    @property
    def size(self) -> tuple[int, int]:
        """Rows and variables."""
        return len(self.sides), len(self._tops)

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

    def solve(self, limit_seconds: float = 60.0, fixed: Fixed = NO_VALUES) -> Solution:
        """Asks HiGHS; if it takes longer than the limit, or finds no values that keep all rows, it says nothing.

        Raises:
            NoSolverError: it is not installed.
        """
        return self._ask(self._matrix(), self._costs, self._boxes(fixed), limit_seconds)

    def is_impossible(self, limit_seconds: float, fixed: Fixed) -> bool:
        """Whether it is proven that no values keep all rows.

        By a program that is allowed to break each row by the same amount, which is to be small: multipliers for which
        that is above 0 are a proof, whatever has found them.
        """
        _, sparse = _solver()
        broken = sparse.csr_array(np.full((len(self.sides), 1), -1.0))
        boxes = np.vstack([self._boxes(fixed), [0.0, np.inf]])
        matrix = sparse.hstack([self._matrix(), broken], format='csr')
        found = self._ask(matrix, {len(self._tops): ONE}, boxes, limit_seconds)
        return self._bound(found.multipliers, {}, fixed) > 0

    def _ask(self, matrix: Any, costs: Fixed, boxes: Floats, limit_seconds: float) -> Solution:
        optimize, _ = _solver()
        wanted = np.zeros(len(boxes))
        wanted[list(costs)] = 1.0
        found = optimize.linprog(wanted, A_ub=matrix, b_ub=_floats(self.sides), bounds=boxes, method='highs-ds',
                                 options={'time_limit': limit_seconds})
        if found.status != 0:
            return NOTHING
        return Solution(found.x, np.maximum(0.0, -found.ineqlin.marginals))

    def _boxes(self, fixed: Fixed) -> Floats:
        """The least and the largest value of each variable."""
        boxes = np.stack([np.zeros(len(self._tops)), _floats(self._tops)], axis=1)
        for number, value in fixed.items():
            boxes[number] = value / ONE
        return boxes

    def _matrix(self) -> Any:
        """The rows as floats, a SciPy array; made anew when there are more."""
        _, sparse = _solver()
        if self._made is None or self._made.shape != self.size:
            counts = [0, *(len(each) for each in self._entries)]
            columns = [column for each in self._entries for column, _ in each]
            numbers = _floats(number for each in self._entries for _, number in each)
            self._made = sparse.csr_array((numbers, np.array(columns, np.int32), np.cumsum(counts, dtype=np.int32)),
                                          shape=self.size)
            self._made.sum_duplicates()
        return self._made

    def bound(self, multipliers: Floats, fixed: Fixed = NO_VALUES) -> Fraction:
        """What the minimum is at least, whatever the multipliers are; exact. Rows that have none count with 0."""
        return self._bound(multipliers, self._costs, fixed)

    def _bound(self, multipliers: Floats, costs: Fixed, fixed: Fixed) -> Fraction:
        weights = [int(each * ONE) for each in np.nan_to_num(multipliers, posinf=0.0, neginf=0.0).tolist()]
        reduced = [costs.get(number, 0) * ONE for number in range(len(self._tops))]
        total = 0
        for weight, side, entries in zip(weights, self.sides, self._entries, strict=False):
            if weight > 0:
                total -= weight * side
                for column, number in entries:
                    reduced[column] += weight * number
        for number, (cost, top) in enumerate(zip(reduced, self._tops, strict=True)):
            if number in fixed:
                total += cost * fixed[number] // ONE
            elif cost < 0:
                total += cost * top // ONE
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
