"""Which parameters, gradients and states of optimizers lie in far memory, and how long their bytes are near.

    a parameter            from the first computation on that reads it; its bytes are near while one reads it
    its gradient           from the end of the step that made it; near in that step and wherever the program reads it
    the optimizer's state  from its first update on; near in parts (`update`)

They are none of the account then, nor of what plans count: all that is near is what a computation in hand reads, or
what the program touches between computations.

Source: the idea of ZeRO-Infinity (Rajbhandari et al., 2021), with the addresses left as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from chainer_ooc import config
from chainer_ooc.backends import arrays
from chainer_ooc.backends.base import Backend
from chainer_ooc.backends.file_backed import FileBacked
from chainer_ooc.backends.metering import Meter
from chainer_ooc.errors import ConfigError
from chainer_ooc.execute.on_file import update
from chainer_ooc.execute.storage.account import storage_at
from chainer_ooc.execute.storage.slots import array_in_slot

#: Smaller arrays stay whatever `ooc_min_bytes` is: each that lies in far memory is a mapping of the process.
LEAST_BYTES = 64 << 10


class ParametersOnFile:
    """Those of one session."""

    def __init__(self, blocks: FileBacked, meter: Meter, min_bytes: int) -> None:
        self.is_on_file = blocks.is_backed
        self._blocks, self._meter = blocks, meter
        self._least_bytes = max(LEAST_BYTES, min_bytes)

    def after_call(self, inputs: Iterable[Any]) -> list[bool]:
        """A forward call has read these; for each parameter that left near memory, whether it had been metered."""
        left = []
        for each in inputs:
            array = array_in_slot(each)
            if hasattr(each, 'update_rule'):
                left += self._take(array)
            self._drop(array)
        return left

    def after_step(self, function: Any, gradients: Mapping[Any, Sequence[Any]]) -> None:
        """A function's backward has read its inputs, and added to these gradients, by their nodes."""
        for node in function.inputs:
            parameter = node.get_variable_or_none()
            if hasattr(parameter, 'update_rule'):
                self._drop(array_in_slot(parameter))
                for each in gradients.get(node, ()):
                    self._take(array_in_slot(each))

    def drop(self, inputs: Iterable[Any]) -> None:
        """A call within another computation has read these."""
        for each in inputs:
            self._drop(array_in_slot(each))

    def update(self, rule: Any, parameter: Any) -> None:
        """Updates a parameter, with the hooks of its rule.

        Raises:
            SpillError: far memory cannot be read or written.
        """
        self._take_all(rule, parameter)
        if self.is_on_file(arrays.root_of(parameter.array)):
            update.update(self._blocks, rule, parameter)
            self._take_all(rule, parameter)  # a rule may have made its state anew
        else:
            rule._update_core_with_hooks(parameter)

    def call_hook(self, hook: Any, rule: Any, parameter: Any) -> None:
        """Calls an optimizer's hook for a parameter.

        Raises:
            SpillError: as `update`.
        """
        if self.is_on_file(arrays.root_of(parameter.array)):
            update.call_hook(self._blocks, hook, rule, parameter)
            self._take_all(rule, parameter)
        else:
            hook(rule, parameter)

    def _take_all(self, rule: Any, parameter: Any) -> None:
        for each in (parameter.array, parameter.grad, *(rule.state or {}).values()):
            self._take(each)
            self._drop(each)

    def _take(self, array: Any) -> list[bool]:
        """Lays an array's block in far memory, unless it is a feature map; [whether it was metered], or [] if not."""
        if not arrays.is_array(array) or array.nbytes < self._least_bytes:
            return []
        root = arrays.root_of(array)
        if root is None or self.is_on_file(root) or storage_at(root) is not None or not self._blocks.back(root):
            return []
        return [self._meter.exclude(root)]

    def _drop(self, array: Any) -> None:
        if arrays.is_array(array) and array.nbytes >= self._least_bytes:
            self._blocks.drop(arrays.root_of(array))


def of(backend: Backend, meter: Meter, settings: config.Settings) -> ParametersOnFile | None:
    """Those that these settings want; None if they want none.

    Raises:
        ConfigError: the device has no such thing.
    """
    if settings.parameters is None:
        return None
    if backend.file_backed is None:
        raise ConfigError(
            f'chainer.config.ooc_parameters = {settings.parameters!r} cannot be used on this device ({backend.name}): '
            'parameters can lie on a file on the host alone, on Linux, and where there was a C compiler as chainer_ooc '
            'was installed; set it to None')
    return ParametersOnFile(backend.file_backed, meter, settings.min_bytes)
