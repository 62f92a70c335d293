"""The errors that chainer_ooc raises.

Every one derives from `OocError` and from the built-in that programs which do not know this package catch. A message
says what failed, the values with their units, and the next step. `assert` is kept for faults of our own.
"""

import difflib
from collections.abc import Iterable
from typing import Any

from chainer_ooc.quantities import format_bytes, format_enough

#: What refusals and commands name for ``ooc_workspace``: tiles that compute as fast as any, small beside large maps.
WORKSPACE = '32MB'


def did_you_mean(text: str, names: Iterable[str]) -> str:
    """Asks for the name that may have been meant by one that is none, with a space behind it; '' if none is near."""
    of_lower = {name.lower(): name for name in names}
    near = difflib.get_close_matches(text.lower(), of_lower, 1)
    return f'did you mean {of_lower[near[0]]!r}? ' if near else ''


class OocError(Exception):
    """Base of all errors of this package."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Has pickle and copy keep the values of an error, whose ``__init__`` takes these and not the message."""
        reduced: Any = super().__reduce__()
        return _rebuild, reduced[:2], *reduced[2:]


def _rebuild(kind: Any, args: tuple[object, ...]) -> Any:
    return kind.__base__.__new__(kind, *args)  # the class's own is refused where the other base is MemoryError


class ForkError(OocError, ImportError):
    """Chainer cannot be patched: absent, another version, altered, or imported too early."""


class ConfigError(OocError, ValueError):
    """A configuration entry has a value that cannot be used."""


class PolicyError(OocError, RuntimeError):
    """A policy of the user's own has failed, or has decided what cannot be followed."""


class InfeasibleBudgetError(OocError, ValueError):
    """No plan keeps within the budget.

    Attributes:
        budget_bytes: the budget that was set.
        floor_bytes: the smallest budget for which the policy has a plan.
        where: the call that sets the floor, such as ``'Convolution2DFunction, backward of call 14, at /conv1 in
            model.py:31'``.
        expected_bytes: of the floor, what is not there yet, or not for certain: state of optimizers that have not
            updated, gradients that no update has used and that may therefore stay, those of other models.
        workspace_floor_bytes: about the smallest budget with ``ooc_workspace = '32MB'``, or more, computed from the
            recording; None where that does not show that it would be less.
        movable_bytes: of the floor, parameters and the optimizer's state that ``ooc_parameters = 'file'`` would have in
            the spill file; 0 where they are a small part, or cannot lie there.
        lost_bytes: of the floor, what is left over as the device gives memory in pieces; 0 on the host.
        doubt: why more may turn out to be needed all the same; '' where `floor_bytes` is what recorded iterations need.
        finding: the message without its end, which says what to do.
    """

    def __init__(self, policy: str, budget_bytes: int, floor_bytes: int, where: str, *, expected_bytes: int = 0,
                 workspace_floor_bytes: int | None = None, movable_bytes: int = 0, lost_bytes: int = 0,
                 doubt: str = ''):
        self.budget_bytes = budget_bytes
        self.floor_bytes = floor_bytes
        self.where = where
        self.expected_bytes = expected_bytes
        self.workspace_floor_bytes = workspace_floor_bytes
        self.movable_bytes = movable_bytes
        self.lost_bytes = lost_bytes
        self.doubt = doubt
        expected = (f', {format_bytes(expected_bytes)} of it for gradients and optimizer state to come'
                    if expected_bytes else '')
        what = 'needed as far as is known' if doubt else 'smallest that works for such iterations'
        why = f'; {doubt}' if doubt else ''
        self.finding = (f'budget too small for policy {policy!r} (budget {format_bytes(budget_bytes)}, {what} '
                        f'{format_enough(floor_bytes)}, set by {where}{expected}{self._within()}){why}')
        super().__init__(f'{self.finding}; raise chainer.config.ooc_budget, {self.other_step()}')

    def _within(self) -> str:
        if self.workspace_floor_bytes is None:
            return ''
        return f'; with a workspace of {WORKSPACE} about {format_enough(self.workspace_floor_bytes)}'

    def other_step(self, workspace_step: str = f"set chainer.config.ooc_workspace = '{WORKSPACE}'") -> str:
        """What else to do than to raise the budget; `workspace_step` says how a workspace is had."""
        workspace = f'{workspace_step}, ' if self.workspace_floor_bytes else ''
        on_file = (f"set chainer.config.ooc_parameters = 'file' ({format_bytes(self.movable_bytes)} are parameters and "
                   'optimizer state), ' if self.movable_bytes else '')
        return f'{workspace}{on_file}choose another policy or lower the batch size'


class DeviceMemoryError(OocError, MemoryError):
    """A device has no room for an array, and nothing more can be evicted for it.

    Attributes:
        floor_bytes: the limit at which it would have had room.
    """

    def __init__(self, message: str, floor_bytes: int):
        self.floor_bytes = floor_bytes
        super().__init__(message)


class SpillError(OocError, OSError):
    """A copy to or from far memory failed; the array is still whole in one of the two tiers."""


class ReentryError(OocError, RuntimeError):
    """A signal handler or a finalizer has interrupted chainer_ooc, and asks for what cannot be done within it."""


class LostMapError(OocError, RuntimeError):
    """A feature map was freed after its last known use in backward, to make room, and is read once more.

    Only a map that the policy kept on the device has no far copy to come from. The plan of the graph is dropped, so
    that the next iteration records the additional use.
    """


class RecomputeMismatchError(OocError, RuntimeError):
    """A function that ran again gave an array of another shape or dtype than at its first run.

    Attributes:
        recorded: (shape, dtype) of the first run.
        recomputed: (shape, dtype) of the second.
    """

    def __init__(self, label: str, recorded: tuple[object, object], recomputed: tuple[object, object]):
        self.recorded = recorded
        self.recomputed = recomputed
        super().__init__(
            f'{label} gave an array of shape {recorded[0]}, dtype {recorded[1]} at first, and of shape '
            f'{recomputed[0]}, dtype {recomputed[1]} when it was recomputed; set ooc_recompute = False on the class of '
            'a function whose result depends on anything but its inputs')


class ProfileError(OocError, TypeError):
    """What was given to be profiled is no training, has left no trace, or has changed what cannot be put back."""


class TraceFormatError(OocError, ValueError):
    """A text is no trace, or one that this release cannot read."""


class PlanFormatError(OocError, ValueError):
    """A text is no plan or no file of plans, or one that this release cannot read."""


class RunFormatError(OocError, ValueError):
    """A text is no run, or one that this release cannot read."""


class PlanMismatchError(OocError, ValueError):
    """A saved plan was made for something else than what it would be used for.

    Attributes:
        what: the thing that differs, such as 'machine'.
        saved: its value in the file.
        present: its value here.
        next_step: what to do about it.
    """

    def __init__(self, what: str, saved: str, present: str, next_step: str):
        self.what = what
        self.saved = saved
        self.present = present
        self.next_step = next_step
        super().__init__(f'the saved plan is for another {what}: made for {saved}, here it is {present}; {next_step}')
