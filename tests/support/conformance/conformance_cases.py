"""The words in which the tables of cases are written.

A case is a call and what to call it with. A *feature* is the output of other functions, so that there is something to
swap or to recompute on its side, a *weight* is a parameter, a *statistic* an array that the function changes in place,
a *link* is built anew for each run, and everything else is handed over as it is.
"""
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import chainer
import chainer.functions as F
import numpy as np


@dataclass(frozen=True)
class Feature:
    """An intermediate feature map whose values lie within [low, high]."""

    shape: tuple[int, ...]
    low: float = -1.0
    high: float = 1.0
    dtype: str = 'float32'


@dataclass(frozen=True)
class Weight:
    """A parameter; its values lie within [low, high]."""

    shape: tuple[int, ...]
    low: float = -1.0
    high: float = 1.0


@dataclass(frozen=True)
class Statistic:
    """An array that lives from iteration to iteration and may be changed in place."""

    start: np.ndarray


@dataclass(frozen=True)
class Built:
    """A link, or whatever else is made once for all iterations of a run."""

    make: Callable[[], Any]


@dataclass(frozen=True, eq=False)
class Case:
    """A function and its arguments.

    Attributes:
        call: gives a Variable, an array, or a nest of them in tuples and lists.
        arguments: features, weights, statistics, or anything else.
        forward_only: the outputs are not differentiable; the features get their gradients past the function.
        flat: the gradient of some feature is zero or absent by the function's nature.
        quiet: (regular expression, reason) for each warning of Chainer that the case causes.
        heavy: too slow for every run; see the option in conftest.
    """

    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    forward_only: bool = False
    flat: bool = False
    quiet: tuple[tuple[str, str], ...] = ()
    heavy: bool = False


def case(call, *arguments, **attributes):
    return Case(call, arguments, **attributes)


def feature(*shape, low=-1.0, high=1.0, dtype='float32'):
    return Feature(shape, low, high, dtype)


def weight(*shape, low=-1.0, high=1.0):
    return Weight(shape, low, high)


def statistic(*shape, value=0.0):
    return Statistic(np.full(shape, value, np.float32))


def link(make, *arguments, call=None, **attributes):
    """A case of a link: `call` gets it first; without a call it is called itself."""
    return Case(call or (lambda built, *args: built(*args)), (Built(make), *arguments), **attributes)


def labels(below, *shape, seed=0):
    """Integers from 0 to below - 1, the same in each iteration: some functions choose their graph by them."""
    return np.random.RandomState(seed).randint(0, below, shape).astype(np.int32)


def numbers(*values, dtype=np.float32):
    return np.array(values, dtype)


def draw(random, given):
    return np.asarray(random.uniform(-1, 1, given.shape), getattr(given, 'dtype', 'float32'))


def within(unit, given):
    """Maps [-1, 1] to [low, high]; of arrays as of Variables."""
    return unit * ((given.high - given.low) / 2) + (given.high + given.low) / 2


def make_weight(random, given):
    return chainer.Parameter(np.asarray(within(draw(random, given), given), np.float32))


def make_feature(leaf, gain, given, layout):
    """Two calls, each of which retains something, before the function under test.

    Layout 'transposed' makes the same shape a view whose strides run backwards (P4).
    """
    hidden = within(F.sin(leaf * gain), given)
    return F.transpose(hidden) if layout == 'transposed' else hidden


def leaf_of(random, given, layout):
    shape = given.shape[::-1] if layout == 'transposed' else given.shape
    return draw(random, replace(given, shape=shape))


def flatten(values):
    """The Variables and arrays of a nest, from left to right."""
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, (tuple, list)):
        return [each for value in values for each in flatten(value)]
    return [] if values is None else [values]
