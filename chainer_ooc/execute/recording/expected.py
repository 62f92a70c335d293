"""What parameters will take later: the floor that a refusal names counts it, so that it is enough then too.

    recorded iterations              | what comes                              | foreseen by
    before the first update          | the optimizer's state                   | an update rule without state
    backward, and no update since    | gradients that stand in backward, and   | the update rule has not counted since
                                     | one of their sums with the new ones     |
    right after an update, where     | gradients that stand when later         | they stood when the iteration before
    gradients add up over iterations | iterations begin                        | began
    of another graph since then      | gradients that stand beside its own     | they stand, and it does not use them
    the first update of several      | buffers for what ranks exchange, which  | an optimizer over several ranks whose
    ranks, and their first exchange  | communicators keep on a GPU             | communicator has not allocated them
    calls of another model, without  | that model's training: its parameters,  | an update rule of a parameter that was
    backprop                         | their gradients, its optimizer's state  | only seen in such calls

Whether a budget is refused depends only on what stands in memory at the time. Of ranks' exchanges that is::

    communicator    keeps on a GPU                                              allocated by
    naive           nothing; MPI has buffers of its own on the host
    flat            two buffers of all gradients, in float32                    the first exchange
    pure_nccl       one of all parameters in chainer.config.dtype;              the first update, which sends them
                    two of all gradients in allreduce_grad_dtype, or the same   the first exchange

With double buffering the first update also copies the model with its gradients. What is allocated already is counted
with all else on the device. Left out: NCCL's own buffers, which CuPy does not see.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chainer_ooc.execute.storage.slots import array_of

#: Of so many models that one graph has run it is known which parameters are theirs.
MODELS = 8

#: Gradients that stood when any of so many iterations began are expected to do so again: a program may add up those of
#: several batches.
ADDED_UP = 8

#: Of an element that a `flat` communicator exchanges, whatever the gradients are.
_FLAT_ITEMSIZE = 4


@dataclass(frozen=True)
class Used:
    """What the last iteration of a graph did with parameters, by the numbers that `Parameters` gives them.

    Attributes:
        own: its functions were given them.
        beside: of the others, those whose gradients stood while it ran backward.
        cleared: of the others, those whose gradients stood when it began, and did not in backward.
        stood: of its own, those whose gradients stood when it began.
        added_to: of its own, those whose gradients stood when backward began, which has added to them.
    """

    own: frozenset[int]
    beside: frozenset[int]
    cleared: frozenset[int]
    stood: frozenset[int]
    added_to: frozenset[int]


class Models:
    """What the last iterations of a graph did with parameters, of each model that it has run.

    Attributes:
        added_to: the parameters whose gradients stood in the graph's recording, which has them and the sums with them;
            None if that was not measured.
    """

    def __init__(self) -> None:
        self.added_to: frozenset[int] | None = None
        self._used: dict[int | None, Used] = {}
        self._stood: dict[int | None, deque[tuple[frozenset[int], frozenset[int]]]] = {}

    @property
    def adds_up(self) -> bool:
        """Whether the recording has sums of gradients, as far as is known."""
        return self.added_to is None or bool(self.added_to)

    def of(self, model: int | None) -> Used | None:
        """That of a model, by the number of its first parameter, or else of the one that ran last, if any did.

        What is said to have stood, or to have been added to, was in any of its latest iterations.
        """
        found = model if model in self._used else next(reversed(self._used), None)
        if found not in self._used:
            return None
        stood, added_to = zip(*self._stood[found], strict=True)
        return replace(self._used[found], stood=frozenset().union(*stood), added_to=frozenset().union(*added_to))

    def lacks(self, model: int | None) -> bool:
        """Whether others have run the graph, and this one has not."""
        return model is None or (model not in self._used and 0 < len(self._used) < MODELS)

    def note(self, model: int | None, used: Used) -> None:
        """Adds what an iteration of a model did."""
        self._used.pop(model, None)
        self._used[model] = used
        self._stood.setdefault(model, deque(maxlen=ADDED_UP)).append((used.stood, used.added_to))
        if len(self._used) > MODELS:
            first = next(iter(self._used))
            del self._used[first], self._stood[first]

    def note_stood(self, model: int | None, stood: frozenset[int], added_to: frozenset[int]) -> None:
        """Adds whose gradients stood when an iteration of a known model began, and when its backward did."""
        if model in self._used:
            own = self._used[model].own
            self._stood[model].append((stood & own, added_to & own))


class Expected:
    """Of the parameters of one session."""

    def __init__(self) -> None:
        self._evaluated: dict[int, weakref.ref[Any]] = {}
        self._updates: dict[int, int] = {}  # of each parameter, when a gradient was about to be made for it

    def see(self, inputs: Sequence[Any]) -> None:
        """Notes the parameters among what a function was given without backprop."""
        import chainer

        for each in inputs:
            if isinstance(each, chainer.Parameter):
                self._evaluated[id(each)] = weakref.ref(each)

    def begin_backward(self, parameters: Iterable[Any]) -> None:
        """Notes the updates so far of parameters that a backward pass makes, or at first adds to, a gradient of."""
        for each in parameters:
            rule = _rule_of(each)
            if rule is not None and (each.grad is None or id(each) not in self._updates):
                self._updates[id(each)] = rule.t

    def note_sent(self, parameters: Iterable[Any]) -> None:
        """Notes that parameters were sent to other ranks in place of an update, which uses no gradients either."""
        for each in parameters:
            self._updates.pop(id(each), None)

    def nbytes(self, parameters: Iterable[Any], lies_on_file: Callable[[Any], bool]) -> int:
        """Bytes to come whichever graph runs: state of optimizers, buffers for exchanges, models only evaluated so far.

        What `parameters` have already is counted elsewhere, and what will lie on the file with one of them nowhere.
        """
        known = {id(each): each for each in parameters}
        self._updates = {key: count for key, count in self._updates.items() if key in known}
        self._evaluated = {key: ref for key, ref in self._evaluated.items() if key not in known and ref() is not None}
        others = [each for ref in self._evaluated.values() if (each := ref()) is not None and not lies_on_file(each)]
        return (sum(_of_known(each) for each in known.values() if not lies_on_file(each)) + sum(map(_of_other, others))
                + to_come_bytes(list(known.values())))

    def is_unused(self, parameter: Any) -> bool:
        """Whether no update has used its gradient, so that backward adds to it if it is not cleared."""
        rule = _rule_of(parameter)
        return rule is not None and self._updates.get(id(parameter)) == rule.t


def _of_known(parameter: Any) -> int:
    rule = _rule_of(parameter)
    return _state_bytes(parameter) if rule is not None and rule.state is None else 0


def _of_other(parameter: Any) -> int:
    """Itself, its gradient and its optimizer's state."""
    return 0 if _rule_of(parameter) is None else 2 * int(array_of(parameter).nbytes) + _state_bytes(parameter)


def _rule_of(parameter: Any) -> Any:
    """What updates it, or None."""
    rule = parameter.update_rule
    return rule if rule is not None and rule.enabled and array_of(parameter) is not None else None


def _state_bytes(parameter: Any) -> int:
    """Bytes of a rule's state: it is made for a parameter of one element, as in Chainer's own `serialize`."""
    import chainer

    array, rule = array_of(parameter), copy.copy(parameter.update_rule)
    in_float32 = rule._use_fp32_update and array.dtype == np.float16  # by a copy, which stays
    one = np.zeros(1, np.float32 if in_float32 else array.dtype)
    rule._state = {'copy': one} if in_float32 else {}
    try:
        rule.init_state(chainer.Variable(one, grad=one))
    except Exception:  # a rule of the program's that needs more than a parameter; that is no error here
        return 0
    return int(sum(getattr(each, 'size', 0) * each.dtype.itemsize for each in rule.state.values()
                   if hasattr(each, 'dtype')) * array.size)


def to_come_bytes(parameters: Sequence[Any]) -> int:
    """Bytes that optimizers over several ranks will have their communicators keep, and do not yet.

    Args:
        parameters: those of the training; an optimizer with none of them does not count.
    """
    seam = sys.modules.get('chainer._ooc')
    if seam is None or not seam.exchanging:
        return 0
    known = {id(each) for each in parameters}
    optimizers = [each for ref in seam.exchanging if (each := ref()) is not None]
    return sum(_of_optimizer(each, known) for each in optimizers)


def _of_optimizer(optimizer: Any, known: set[int]) -> int:
    target = optimizer.target
    own = [] if target is None else [each for each in target.params() if each.array is not None]
    if not known.intersection(map(id, own)):
        return 0
    elements = sum(int(each.size) for each in own)
    nbytes = sum(max(0, itemsize * elements - int(buffer.size))
                 for buffer, itemsize in _buffers(optimizer.communicator))
    is_doubled = 'communicated_target' in vars(optimizer)
    if is_doubled and optimizer.communicated_target is None:
        nbytes += 2 * sum(int(each.array.nbytes) for each in own)
    return nbytes


def _buffers(communicator: Any) -> Iterator[tuple[Any, int]]:
    """The buffers that a communicator has, and the bytes that each will hold for an element."""
    import chainer

    found = {name: buffer for name in ('gpu_tmp_buffer', 'gpu_buffer_a', 'gpu_buffer_b')
             if isinstance(getattr(buffer := getattr(communicator, name, None), 'size', None), int)}
    exchanged = _FLAT_ITEMSIZE
    if 'gpu_tmp_buffer' in found:
        itemsize = np.dtype(chainer.get_dtype()).itemsize
        exchanged_dtype = communicator.allreduce_grad_dtype
        exchanged = itemsize if exchanged_dtype is None else np.dtype(exchanged_dtype).itemsize
        yield found.pop('gpu_tmp_buffer'), itemsize
    for each in found.values():
        yield each, exchanged
