"""What parameters will take that do not yet: the floor that a refusal names counts it, so that it holds later too.

    recorded iterations              | what comes                              | foreseen by
    before the first update          | the optimizer's state                   | an update rule without state
    backward, and no update since    | gradients that stand in backward        | the update rule has not counted since
    calls of another model, without  | that model's training: its parameters,  | an update rule of a parameter that was
    backprop                         | their gradients, its optimizer's state  | only seen in such calls

Whether a budget is refused depends on none of this, but on what stands in memory at the time.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from chainer_ooc.execute.places import array_of


class Expected:
    """Of the parameters of one session."""

    def __init__(self) -> None:
        self._evaluated: dict[int, weakref.ref[Any]] = {}
        self._updates: dict[int, int] = {}  # of each parameter, when a gradient was about to be made for it

    def see(self, inputs: Sequence[Any]) -> None:
        """A function was given these without backprop."""
        import chainer

        for each in inputs:
            if isinstance(each, chainer.Parameter):
                self._evaluated[id(each)] = weakref.ref(each)

    def begin_backward(self, parameters: Iterable[Any]) -> None:
        """A backward pass makes gradients for those that have none, and adds to those that were there at first."""
        for each in parameters:
            rule = _rule_of(each)
            if rule is not None and (each.grad is None or id(each) not in self._updates):
                self._updates[id(each)] = rule.t

    def nbytes(self, parameters: Iterable[Any]) -> int:
        """What is to come.

        Args:
            parameters: those that are counted already, as far as they have something.
        """
        known = {id(each): each for each in parameters}
        self._updates = {key: count for key, count in self._updates.items() if key in known}
        self._evaluated = {key: ref for key, ref in self._evaluated.items() if key not in known and ref() is not None}
        others = [each for ref in self._evaluated.values() if (each := ref()) is not None]
        return sum(map(self._of_known, known.values())) + sum(map(_of_other, others))

    def _of_known(self, parameter: Any) -> int:
        rule = _rule_of(parameter)
        if rule is None:
            return 0
        is_unused = parameter.grad is not None and self._updates.get(id(parameter)) == rule.t
        return (int(parameter.grad.nbytes) if is_unused else 0) + (_state_bytes(parameter) if rule.state is None else 0)


def _of_other(parameter: Any) -> int:
    """Itself, its gradient and its optimizer's state."""
    return 0 if _rule_of(parameter) is None else 2 * int(array_of(parameter).nbytes) + _state_bytes(parameter)


def _rule_of(parameter: Any) -> Any:
    """What updates it, or None."""
    rule = parameter.update_rule
    return rule if rule is not None and rule.enabled and array_of(parameter) is not None else None


def _state_bytes(parameter: Any) -> int:
    """What a rule's state takes: asked for with a parameter of one element, as Chainer's own `serialize` does."""
    import chainer

    array, rule = array_of(parameter), copy.copy(parameter.update_rule)
    one = np.zeros(1, array.dtype)
    rule._state = {}
    try:
        rule.init_state(chainer.Variable(one, grad=one))
    except Exception:  # a rule of the program's that wants more than a parameter; nobody must hear of it here
        return 0
    return int(sum(getattr(each, 'size', 0) * each.dtype.itemsize for each in rule.state.values()
                   if hasattr(each, 'dtype')) * array.size)
