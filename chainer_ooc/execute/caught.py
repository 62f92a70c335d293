"""Errors of forward calls that the program catches, to go on with the graph (P9).

Whether it will, nobody can know when the first one comes: that ends the iteration, so that nothing is left of it where
the program ends, or takes another batch. Where a later call reads what the iteration had made, the program goes on
after such errors. From then on they end their calls alone, which are no part of the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chainer_ooc.errors import OocError
from chainer_ooc.execute.iteration.comparison import Calls


class Caught:
    """What is known of it.

    Attributes:
        given_up: the calls of the last iteration that was given up, until the next one ends; or None.
    """

    given_up: Calls | None = None
    _goes_on = False

    def note_call(self, inputs: Sequence[Any]) -> None:
        """A call after what was given up: it may read that."""
        if self.given_up is not None and self.given_up.is_read_by(inputs):
            self._goes_on, self.given_up = True, None

    def goes_on_after(self, error: BaseException) -> bool:
        """Whether the program goes on after a call's own error, as this one is: not for want of memory, nor of ours."""
        return self._goes_on and isinstance(error, Exception) and not isinstance(error, (MemoryError, OocError))
