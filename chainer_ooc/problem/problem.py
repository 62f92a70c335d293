"""What a policy decides about: an iteration, its times, and the memory that there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from chainer_ooc.cost.costs import Costs, measured
from chainer_ooc.problem.decision import Decision
from chainer_ooc.trace import Trace


@dataclass(frozen=True)
class Standing:
    """Bytes that live through an iteration: parameters, optimizer state, the program's; in forward old gradients.

    Attributes:
        forward_bytes, backward_bytes: all of them, in forward and in backward.
        left_bytes: of both, maps that iterations before have left and that cannot be moved.
        forward_expected_bytes, backward_expected_bytes: of neither, what may stand there later and does not for
            certain, such as an optimizer's state before its first update. The floor that a refusal names counts it.
    """

    forward_bytes: int
    backward_bytes: int
    left_bytes: int = 0
    forward_expected_bytes: int = 0
    backward_expected_bytes: int = 0

    @property
    def expected_bytes(self) -> int:
        """What may stand there later, wherever that is most."""
        return max(self.forward_expected_bytes, self.backward_expected_bytes)

    def to_come(self, more_bytes: int) -> Standing:
        """The same when all that is expected is there, and so much more."""
        return Standing(self.forward_bytes + self.forward_expected_bytes + more_bytes,
                        self.backward_bytes + self.backward_expected_bytes + more_bytes, self.left_bytes)

    def beside(self, unaccounted_bytes: int) -> Standing:
        """The same on a device that counts so much in the budget that the manager does not.

        That is arrays of the program's own, what was allocated before, and what an allocator rounds up.
        """
        return replace(self, forward_bytes=self.forward_bytes + unaccounted_bytes,
                       backward_bytes=self.backward_bytes + unaccounted_bytes)


@dataclass(frozen=True)
class Problem:
    """The input of every policy.

    Attributes:
        trace: the iteration.
        costs: its times on the machine that it will run on.
        standing: what lives through it beside its feature maps.
        budget_bytes: what near memory may hold.
        min_bytes: smaller maps always stay.
        limit_seconds: a search that takes longer gives the best that it has found.
        recalls: a map that is wanted back while it is still leaving stays, as our execution has it. Systems of the
            papers copy it out to the end, and then in.
        known: decisions that were good before, for less memory or by other times; a search may begin with them.
    """

    trace: Trace
    costs: Costs
    standing: Standing
    budget_bytes: int
    min_bytes: int
    limit_seconds: float = 60.0
    recalls: bool = True
    known: Sequence[Decision] = field(default=(), compare=False)


def problem_of(trace: Trace, budget_bytes: int, min_bytes: int) -> Problem:
    """The problem that a trace poses on the machine that it was recorded on."""
    others_bytes = trace.others_bytes
    standing = Standing(trace.standing_forward_bytes + others_bytes, trace.standing_backward_bytes + others_bytes)
    return Problem(trace, measured(trace), standing, budget_bytes, min_bytes)
