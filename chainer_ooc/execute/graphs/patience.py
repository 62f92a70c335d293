"""For how long iterations are recorded because another graph may come.

    recorded --a graph is known--> calm --an iteration has none that is known--> recorded --its like is known--> calm
                                                                                    |
                                                                                    '--it does not come again--> calm

A graph that ran and was not recorded can only be recorded when it comes again. Recording takes time: `FIRST_PATIENCE`
iterations are recorded for it, and twice as many each time that was too few. Where graphs keep coming once only, such
as the lengths of rare sentences, no more than a share of all iterations is recorded for that.
"""

from __future__ import annotations

FIRST_PATIENCE = 8

#: Of all iterations, those that may be recorded in vain, beyond the first of them.
SHARE_IN_VAIN = 1 / 8
FIRST_IN_VAIN = 64

#: Of graphs that come once only and need no plan, one of so many is recorded: some may come again after all.
RECORDED_OF = 32


class Patience:
    """Decides for a session whether the next iteration is recorded (`records`)."""

    def __init__(self) -> None:
        self.records = True
        self._most = FIRST_PATIENCE
        self._waited = 0
        self._ran_out = False
        self._iterations = self._in_vain = self._passed_over = 0

    def met(self, is_known: bool) -> None:
        """A graph was recorded: it is known now, or has to be recorded once more."""
        self.records, self._waited, self._ran_out = not is_known, 0, False

    def missed(self) -> None:
        """An iteration had another graph than the known ones, and was not recorded as a whole."""
        if self._ran_out:
            self._most *= 2
        self.records, self._waited, self._ran_out = self._may_wait(), 0, False

    def wait(self) -> None:
        """An iteration had a known graph."""
        self._iterations += 1
        self._waited += 1
        self._in_vain += self.records
        self._ran_out |= self.records and self._waited >= self._most
        self.records = self.records and not self._ran_out and self._may_wait()

    def pass_over(self) -> None:
        """An iteration had an unknown graph, and was not recorded, as such graphs come once only."""
        self._passed_over += 1
        self.records = self._passed_over % RECORDED_OF == 0

    def _may_wait(self) -> bool:
        return self._in_vain < FIRST_IN_VAIN + SHARE_IN_VAIN * self._iterations
