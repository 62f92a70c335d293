"""Which combinations of networks, policies and whatever else every run has; `--long` has all of them."""
import itertools

import pytest


def spread(*axes, every, first=0):
    """All combinations of the values on these axes, of which one in `every` runs without `--long`.

    It is those whose positions add up to `first`, modulo `every`. So where the last axis has `every` values, each
    combination of the others meets one of them, and every value meets every other that way.

    Args:
        axes: the values of each argument of the test.
        every: how many are left out for each that runs, and one.
        first: which ones run; another test may have the others.
    """
    return [pytest.param(*(values[at] for values, at in zip(axes, place, strict=True)),
                         marks=() if sum(place) % every == first else pytest.mark.long)
            for place in itertools.product(*(range(len(values)) for values in axes))]
