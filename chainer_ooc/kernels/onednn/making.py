"""What is made once for a geometry, and kept: a computation, or that oneDNN has none."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

from chainer_ooc.kernels.onednn.library import UnsupportedError, load

Given = ParamSpec('Given')
Computation = TypeVar('Computation')

_makers: list[Made[..., Any]] = []


class Made(Generic[Given, Computation]):
    """A function that makes computations, with those that it made and what it could not make.

    A forked child lacks the threads that its parent's computations wait for: it has none at first.

    Args:
        make: the function; its arguments can be hashed.
        most: as many are kept.
    """

    def __init__(self, make: Callable[Given, Computation], most: int) -> None:
        functools.update_wrapper(self, make)
        self._make = make
        kept = functools.lru_cache(most)(self._made_or_refusal)
        self._kept: Callable[..., tuple[Computation | None, str]] = kept
        self.cache_info, self.cache_clear = kept.cache_info, kept.cache_clear
        _makers.append(self)

    def __call__(self, *args: Given.args, **kwargs: Given.kwargs) -> Computation:
        """Returns the computation, or raises what its making raised.

        Raises:
            UnsupportedError: oneDNN cannot compute it.
        """
        computation, refusal = self._kept(*args, **kwargs)
        if computation is None:
            raise UnsupportedError(refusal)
        return computation

    def _made_or_refusal(self, *args: Given.args, **kwargs: Given.kwargs) -> tuple[Computation | None, str]:
        try:
            return self._make(*args, **kwargs), ''
        except UnsupportedError as error:  # its text alone: a traceback would keep arrays
            return None, str(error)


def made_once(most: int) -> Callable[[Callable[Given, Computation]], Made[Given, Computation]]:
    """Has a function keep what it makes."""
    return lambda make: Made(make, most)


def _forget_in_child() -> None:
    library = load() if load.cache_info().currsize else None
    if library is not None:
        library.compute_in_one_thread()
        for each in _makers:
            each.cache_clear()


os.register_at_fork(after_in_child=_forget_in_child)
