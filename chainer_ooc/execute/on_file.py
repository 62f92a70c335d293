"""Parameters, gradients and the optimizer's state in far memory (`chainer.config.ooc_parameters`).

    a parameter            as it is made, or before the first computation that reads it; near while one reads it
    its gradient           from the end of the step that made it; near in that step and wherever the program reads it
    the optimizer's state  from its first update on; near in parts

They are none of the account then, nor of what plans count: all that is near is what a computation in hand reads, or
what the program touches between computations. Updates are by a part at a time, with the bits of an update as a whole::

    far memory --read--> some elements of the parameter, the gradient, the state --rule, hooks--> --write--> back

Rules and hooks of Chainer's own that treat each element by itself see a parameter of some elements, in one dimension.
All others have the whole one.

Source: the idea of ZeRO-Infinity (Rajbhandari et al., 2021), with the addresses left as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from chainer_ooc.backends import arrays
from chainer_ooc.backends.file_backed import FileBacked
from chainer_ooc.backends.metering import Meter
from chainer_ooc.errors import SpillError
from chainer_ooc.execute import log
from chainer_ooc.execute.recording.parameters import gradient_of, state_of
from chainer_ooc.execute.storage.account import storage_at
from chainer_ooc.execute.storage.reentry import LOCK
from chainer_ooc.execute.storage.slots import array_in_slot

#: Smaller arrays stay whatever `ooc_min_bytes` is: each that lies in far memory is a mapping of the process.
LEAST_BYTES = 64 << 10

#: Of each array that an update has near at once. Larger parts gain nothing: it is as many bytes of calls as of copies.
PART_BYTES = 4 << 20

#: Rules of Chainer's that treat each element by itself, change their arrays where they are, and nothing else. MSVAG has
#: a power of its own, and SMORMS3 makes its arrays anew.
_RULES = ('AdaDeltaRule', 'AdaGradRule', 'AdamRule', 'CorrectedMomentumSGDRule', 'MomentumSGDRule', 'NesterovAGRule',
          'RMSpropRule', 'RMSpropGravesRule', 'SGDRule')

#: Hooks of Chainer's that treat each element by itself, and change the gradient where it is.
_HOOKS = ('GradientHardClipping', 'Lasso', 'WeightDecay')


class ParametersOnFile:
    """Those of one session. Its caller holds the lock of all sessions, but for `run`."""

    def __init__(self, blocks: FileBacked, meter: Meter, min_bytes: int) -> None:
        self.is_on_file = blocks.is_backed
        self.close = blocks.close
        self._blocks, self._meter = blocks, meter
        self._least_bytes = max(LEAST_BYTES, min_bytes)
        self._is_told = self._is_full = False

    def take_from(self, min_bytes: int) -> None:
        """Has arrays from this size on go to far memory, if smaller ones do not by now.

        Where they do, their gradients and their state go on doing so: plans count on it.
        """
        self._least_bytes = max(LEAST_BYTES, min(self._least_bytes, min_bytes))

    def take(self, parameters: Iterable[Any]) -> list[bool]:
        """Lays parameters, and all that belongs to them, in far memory.

        Returns:
            For each block that was in near memory until now, whether it had been metered.

        Raises:
            SpillError: far memory takes no more.
        """
        self._is_full = False
        return [was_metered for parameter in parameters for each in _arrays_of(parameter, parameter.update_rule)
                for was_metered in self.take_array(each)]

    def take_array(self, array: Any) -> list[bool]:
        """Lays an array's block in far memory, unless it is a feature map; [whether it was metered], or [] if not."""
        if not arrays.is_array(array) or array.nbytes < self._least_bytes:
            return []
        root = arrays.root_of(array)
        if root is None or self.is_on_file(root) or storage_at(root) is not None or not self._blocks.back(root):
            if self._blocks.refusal and not self._is_told:
                self._is_told = True
                log.logger.warning('parameters stay in memory from now on, as the system refuses mappings of the spill '
                                   'file: %s', self._blocks.refusal)
            return []
        return [self._meter.exclude(root)]

    def before_call(self, inputs: Iterable[Any]) -> list[bool]:
        """A forward call is about to read these; see `take`."""
        return self.take(each for each in inputs if hasattr(each, 'update_rule'))

    def after_call(self, inputs: Iterable[Any]) -> None:
        """A call has read these."""
        for each in inputs:
            self._drop(array_in_slot(each))

    def after_step(self, function: Any, gradients: Mapping[Any, Sequence[Any]]) -> None:
        """A function's backward has read its inputs, and added to these gradients, by their nodes."""
        for node in function.inputs:
            parameter = node.get_variable_or_none()
            if hasattr(parameter, 'update_rule'):
                self._drop(array_in_slot(parameter))
                for each in gradients.get(node, ()):
                    self.take_array(array_in_slot(each))

    def run(self, rule: Any, parameter: Any, hook: Any) -> None:
        """Updates a parameter, or calls an optimizer's hook for it, see `run_whole`; in parts where that can be.

        What far memory has no room for stays in memory, or some parameters would be updated and others not.

        Raises:
            SpillError: far memory cannot be read or written. Parts before that one are updated, those behind are not.
        """
        self._take_all(rule, parameter)
        if not self.is_on_file(arrays.root_of(parameter.array)):
            run_whole(rule, parameter, hook)
            return
        if not _run_in_parts(self._blocks, rule, parameter, hook):
            with self._blocks.writing():
                run_whole(rule, parameter, hook)
            self._blocks.note_written(
                sum(each.nbytes for each in _arrays_of(parameter, rule) if arrays.is_array(each)))
        self._take_all(rule, parameter)  # a rule may have made its state anew

    def _take_all(self, rule: Any, parameter: Any) -> None:
        with LOCK:
            for each in _arrays_of(parameter, rule):
                try:
                    self.take_array(each)
                except SpillError as error:  # other parameters were updated: these have to be, too
                    if not self._is_full:
                        log.logger.warning('%s; what updates make stays in memory, and the next iteration is refused '
                                           'if it still has no room', str(error))
                    self._is_full = True
                    return
                self._drop(each)

    def _drop(self, array: Any) -> None:
        if arrays.is_array(array) and array.nbytes >= self._least_bytes:
            self._blocks.drop(arrays.root_of(array))


def _arrays_of(parameter: Any, rule: Any) -> list[Any]:
    """A parameter's array, its gradient, and what its rule keeps for it, as far as they are there."""
    return [array_in_slot(parameter), gradient_of(parameter), *state_of(rule)]


def run_whole(rule: Any, parameter: Any, hook: Any) -> None:
    """Updates a parameter, with the hooks of its rule, or calls an optimizer's `hook` for it alone, if there is one."""
    if hook is None:
        rule._update_core_with_hooks(parameter)
    else:
        hook(rule, parameter)


def _run_in_parts(blocks: FileBacked, rule: Any, parameter: Any, hook: Any) -> bool:
    """As `run_whole`, with some elements at a time; False, and nothing was done, if that cannot be.

    Raises:
        SpillError: see `ParametersOnFile.run`.
    """
    import chainer

    before = rule.state if hook is None else None
    state = before or {}
    hooks = _hooks_of(rule) if hook is None else [hook]
    whole = {'array': parameter.array, 'grad': parameter.grad, **state}
    written = [*(['array'] if hook is None else []), *(['grad'] if hooks else []), *state]
    if (not all(_is_of(each, 'chainer.optimizer_hooks.', _HOOKS) for each in hooks)
            or (hook is None and not _is_of(rule, 'chainer.optimizers.', _RULES))
            or not _can_be_in_parts(whole, written)):
        return False
    flat = {name: each.reshape(-1) for name, each in whole.items()}
    count = max(1, PART_BYTES // max(each.itemsize for each in flat.values()))
    try:
        for first in range(0, flat['array'].size, count):
            own = {name: np.empty_like(each[first:first + count]) for name, each in flat.items()}
            for name, each in own.items():
                blocks.read(flat[name][first:first + count], each)
            part = chainer.Parameter(own['array'], name=parameter.name)
            part.grad, part._loss_scale = own['grad'], parameter._loss_scale
            if hook is None:
                rule._state = {name: own[name] for name in state}
            run_whole(rule, part, hook)
            for name in written:
                blocks.write(flat[name][first:first + count], own[name])
    finally:
        if hook is None:
            rule._state = before
    return True


def _is_of(value: Any, package: str, names: tuple[str, ...]) -> bool:
    """Whether a rule or a hook is of one of these classes of Chainer's, with none of its methods replaced."""
    kind = type(value)
    return (kind.__module__.startswith(package) and kind.__name__ in names
            and not any(callable(getattr(kind, name, None)) for name in vars(value)))


def _can_be_in_parts(whole: Mapping[str, Any], written: list[str]) -> bool:
    """Whether all are arrays of one shape without gaps, and these can be written to."""
    shape = getattr(whole['array'], 'shape', None)
    return (all(arrays.is_array(each) and each.shape == shape and each.flags.c_contiguous for each in whole.values())
            and all(whole[name].flags.writeable for name in written))


def _hooks_of(rule: Any) -> list[Any]:
    found = rule._hookable
    return [*found._pre_update_hooks.values(), *found._post_update_hooks.values()]
