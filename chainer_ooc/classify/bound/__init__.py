"""How fast an iteration can be at best: a time that no keeping, swapping and recomputing is below, proven.

    program       a linear program in whole numbers, and bounds that rounding cannot make false
    facts         a problem in whole numbers
    relaxation    what every course keeps to: verdicts, what runs again, time, copies
    memory        what every course keeps to: memory at each position; and a closer look at single maps
    lower         the bound, and what stands against a faster course

The proof stands in docs/bound.md, rule by rule; rows have the names of its rules.
"""

from chainer_ooc.classify.bound.lower import Bound, Price, known_bound, lower_bound
from chainer_ooc.classify.bound.program import NoSolverError

__all__ = ['Bound', 'NoSolverError', 'Price', 'known_bound', 'lower_bound']
