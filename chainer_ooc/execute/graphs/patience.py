"""For how long iterations are recorded because another graph may come.

    recorded --a graph is known--> calm --an iteration has none that is known--> recorded --its like is known--> calm
                                                                                    |
                                                                                    '--it does not come again--> calm

A graph that ran and was not recorded can only be recorded when it comes again. Recording takes time: `FIRST_PATIENCE`
iterations are recorded for it, and twice as many each time that was too few.
"""

from __future__ import annotations

FIRST_PATIENCE = 4


class Patience:
    """Decides for a session whether the next iteration is recorded (`records`)."""

    def __init__(self) -> None:
        self.records = True
        self._most = FIRST_PATIENCE
        self._waited = 0

    def met(self, is_known: bool) -> None:
        """A graph was recorded: it is known now, or has to be recorded once more."""
        self.records, self._waited = not is_known, 0

    def missed(self) -> None:
        """An iteration had another graph than the known ones, and was not recorded as a whole."""
        if not self.records:
            self._most *= 2
        self.records, self._waited = True, 0

    def wait(self) -> None:
        """An iteration had a known graph."""
        self._waited += 1
        self.records = self.records and self._waited < self._most
