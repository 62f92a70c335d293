"""The budget where the program has set none: what the device has free, or more where no plan keeps within that."""

from __future__ import annotations

from chainer_ooc.execute.memory.residency import Residency
from chainer_ooc.execute.recording.parameters import Parameters


class DefaultBudget:
    """The default budget of a session's iterations."""

    def __init__(self, memory: Residency, parameters: Parameters):
        self._memory = memory
        self._parameters = parameters
        self._before_bytes: int | None = None
        self._taken_bytes = self._steady_bytes = 0

    def note(self, taken_bytes: int, steady_bytes: int) -> None:
        """An iteration without a budget has taken so much, or might have; parameters and their state were of it."""
        self._taken_bytes, self._steady_bytes = taken_bytes, steady_bytes

    def now_bytes(self) -> int:
        """What the next iteration is planned within."""
        beside = self._parameters.beside()
        self._memory.stands(beside.total_bytes)
        budget_bytes = self._memory.backend.default_budget_bytes(self._memory.held_bytes(), self._before_bytes)
        # Before the first iteration it is not known which of the memory in use is parameters; there may be none.
        if beside.steady_bytes or self._taken_bytes:
            self._before_bytes = budget_bytes
        return budget_bytes

    def most_bytes(self) -> int:
        """What a plan may take where none keeps within that: what is free, or has been taken before."""
        more_bytes = max(0, self._parameters.beside().steady_bytes - self._steady_bytes)
        return max(self._memory.backend.most_budget_bytes(self._memory.held_bytes()), self._taken_bytes + more_bytes)
