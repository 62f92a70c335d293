"""The parameters that functions were given: what stands in near memory through an iteration, and is no feature map."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Any

from chainer_ooc.backends import arrays
from chainer_ooc.execute.recording.expected import Expected, Used
from chainer_ooc.execute.storage.slots import array_of
from chainer_ooc.problem import Standing


@dataclass(frozen=True)
class Beside:
    """Bytes that live beside feature maps.

    Attributes:
        steady_bytes: of parameters and the optimizer's state, which stay from one iteration to the next.
        gradient_bytes: of the gradients of those that the graph uses, or of all while that is not known.
        others_bytes: of the gradients of others, which stay as they are in backward.
        counted_bytes: of these, what is counted elsewhere too: some were allocated since recording began.
        with_gradients: the numbers of those that have gradients which count here.
    """

    steady_bytes: int = 0
    gradient_bytes: int = 0
    others_bytes: int = 0
    counted_bytes: int = 0
    with_gradients: frozenset[int] = frozenset()

    @functools.cached_property  # each computation asks
    def total_bytes(self) -> int:
        """All of them."""
        return self.steady_bytes + self.gradient_bytes + self.others_bytes


class Parameters:
    """The parameters that functions were given, by numbers.

    Blocks for which `is_on_file` holds, by their roots, need no near memory; None: all others do.

    Attributes:
        expected: what they will take that they do not yet.
    """

    def __init__(self, is_on_file: Callable[[Any], bool] | None = None) -> None:
        self._is_on_file = is_on_file
        self._parameters: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._numbers = itertools.count()
        self._roots: dict[int, weakref.ref[Any]] = {}
        self.expected = Expected()

    def __len__(self) -> int:
        """How many are known; some may be gone."""
        return len(self._parameters)

    def add(self, parameter: Any) -> int:
        """Adds a parameter, whose array is no feature map (P5), and gives its number, which no other ever gets."""
        ref, number = self._parameters.get(id(parameter), (None, 0))
        if ref is None or ref() is not parameter:
            number = next(self._numbers)
            self._parameters[id(parameter)] = weakref.ref(parameter), number
        root = arrays.root_of(array_of(parameter))
        if root is not None and not self.own(root):
            self._roots[id(root)] = weakref.ref(root)
        return number

    def number_of(self, parameter: Any) -> int | None:
        """The number of a parameter; None if no function was given it yet."""
        ref, number = self._parameters.get(id(parameter), (None, None))
        return number if ref is not None and ref() is parameter else None

    def own(self, root: Any) -> bool:
        """Whether a block, by its root, is a parameter's."""
        ref = self._roots.get(id(root))
        return ref is not None and ref() is root

    def beside(self, is_counted: Callable[[Any], bool] | None = None, own: Container[int] | None = None) -> Beside:
        """Bytes of the arrays, of the gradients and of the optimizer's state.

        Args:
            is_counted: whether a block, by its root, is counted elsewhere and so, but for gradients of others, does not
                count here; None if no block is.
            own: the numbers of those that the graph uses, or None while that is not known.
        """
        steady_bytes = own_bytes = others_bytes = counted_bytes = 0
        with_gradients = []
        for number, parameter in self._alive():
            steady_bytes += self._nbytes(array_of(parameter), is_counted)
            for each in state_of(parameter.update_rule):
                steady_bytes += self._nbytes(each, is_counted)
            is_own, gradient = own is None or number in own, gradient_of(parameter)
            nbytes = self._nbytes(gradient, is_counted if is_own else None)
            if nbytes or self._is_far(gradient):
                with_gradients.append(number)
            if is_own:
                own_bytes += nbytes
            else:
                others_bytes += nbytes
                counted_bytes += nbytes - self._nbytes(gradient, is_counted)
        return Beside(steady_bytes, own_bytes, others_bytes, counted_bytes, frozenset(with_gradients))

    def gradient_bytes(self) -> int:
        """Bytes of all gradients; alone, as each step of an unknown graph asks."""
        return sum(self._nbytes(gradient_of(each), None) for _, each in self._alive())

    def new_bytes(self, is_counted: Callable[[Any], bool]) -> tuple[int, int]:
        """Bytes of the arrays that are counted elsewhere, since they were made meanwhile; of what optimizers keep."""
        def counted(found: Iterable[Any]) -> int:
            return sum(each.nbytes for each in found if arrays.is_array(each) and is_counted(arrays.root_of(each)))
        alive = self.alive()
        return counted(map(array_of, alive)), counted(kept for each in alive for kept in state_of(each.update_rule))

    def standing(self, used: Used | None, left_bytes: int, added_to: Container[int] | None = None) -> Standing:
        """What lives through an iteration beside its feature maps, as far as it is known when it begins.

        Gradients of other parameters than its own stand in backward for certain if they did the last time.

        Args:
            used: what the graph did with parameters when it ran last, or None if that is not known.
            left_bytes: what earlier iterations have left.
            added_to: see `Models`.
        """
        beside, certain_bytes, forward_bytes, backward_bytes, most_bytes = self.beside(), 0, 0, 0, 0
        for number, parameter in self._alive():
            gradient = gradient_of(parameter)
            gradient_bytes, is_recorded = self._nbytes(gradient, None), added_to is not None and number in added_to
            if used is None or number in used.own:
                like = array_of(parameter) if gradient is None else gradient
                nbytes = self._nbytes(like, None)
                if gradient is None and used is not None and number in used.stood:
                    forward_bytes += nbytes
                    backward_bytes -= nbytes
                is_added_to = used is not None and number in used.added_to
                if not is_recorded and (is_added_to or (
                        gradient is not None and self.expected.is_unused(parameter))):
                    backward_bytes += nbytes
                    most_bytes = max(most_bytes, int(like.nbytes))  # a sum is made in near memory
            elif gradient_bytes and number in used.beside:
                certain_bytes += gradient_bytes
            elif gradient_bytes and number not in used.cleared:
                backward_bytes += gradient_bytes
            elif number in used.beside:
                forward_bytes += self._nbytes(array_of(parameter), None)
        forward_bytes += self.expected.nbytes(self.alive(), self._lies_on_file)
        backward_bytes += 0 if added_to is None else most_bytes
        steady_bytes = beside.steady_bytes + left_bytes
        return Standing(steady_bytes + beside.gradient_bytes, steady_bytes + certain_bytes, left_bytes,
                        forward_bytes, forward_bytes + backward_bytes)

    def _lies_on_file(self, parameter: Any) -> bool:
        return self._is_far(array_of(parameter))

    def _is_far(self, array: Any) -> bool:
        return self._is_on_file is not None and arrays.is_array(array) and self._is_on_file(arrays.root_of(array))

    def gradients(self, own: Container[int] | None = None) -> dict[int, Any]:
        """The gradients that parameters with these numbers have, or all, in near memory or on the file."""
        return {number: gradient for number, each in self._alive()
                if (own is None or number in own) and (gradient := gradient_of(each)) is not None and gradient.nbytes}

    def near(self, gradients: Iterable[Any]) -> list[Any]:
        """Those of some gradients that near memory holds."""
        return [each for each in gradients if not self._is_far(each)]

    def alive(self) -> list[Any]:
        """Those that functions were given, and that are there still."""
        return [each for _, each in self._alive()]

    def begin_backward(self) -> None:
        self.expected.begin_backward(self.alive())

    def _nbytes(self, array: Any, is_counted: Callable[[Any], bool] | None) -> int:
        if self._is_on_file is not None or is_counted is not None:  # else it is nobody's
            root = arrays.root_of(array) if arrays.is_array(array) else None
            if root is not None and ((self._is_on_file is not None and self._is_on_file(root))
                                     or (is_counted is not None and is_counted(root))):
                return 0
        return getattr(array, 'nbytes', 0) or 0

    def _alive(self) -> list[tuple[int, Any]]:
        """Those that are alive, with their numbers."""
        alive = [(number, each) for ref, number in self._parameters.values() if (each := ref()) is not None]
        if len(alive) < len(self._parameters) or len(self._roots) > len(alive):
            self._parameters = {key: entry for key, entry in self._parameters.items() if entry[0]() is not None}
            self._roots = {key: ref for key, ref in self._roots.items() if ref() is not None}
        return alive


def gradient_of(parameter: Any) -> Any:
    """The array of its gradient, or None; Chainer's own property takes five functions for it."""
    variable = parameter._grad_var
    return parameter._grad if variable is None else array_of(variable)


def state_of(rule: Any) -> list[Any]:
    """What an optimizer keeps for a parameter: its state, and the float32 copy of one of float16; rule may be None."""
    state = getattr(rule, 'state', None) or {}
    copy = getattr(rule, '_fp32_param', None)
    return list(state.values()) if copy is None else [*state.values(), copy.array]
