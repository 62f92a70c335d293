"""Updates of parameters that lie in far memory: by a part at a time, with the bits of an update as a whole.

    far memory --read--> some elements of the parameter, the gradient, the state --rule, hooks--> --write--> back

Rules and hooks of Chainer's own that treat each element by itself see a parameter of some elements, in one dimension.
All others have the whole one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from chainer_ooc.backends import arrays
from chainer_ooc.backends.file_backed import FileBacked

#: Of each array that an update has near at once. Larger parts gain nothing: it is as many bytes of calls as of copies.
PART_BYTES = 4 << 20

#: Rules of Chainer's that treat each element by itself, change their arrays where they are, and nothing else. MSVAG has
#: a power of its own, and SMORMS3 makes its arrays anew.
_RULES = ('AdaDeltaRule', 'AdaGradRule', 'AdamRule', 'CorrectedMomentumSGDRule', 'MomentumSGDRule', 'NesterovAGRule',
          'RMSpropRule', 'RMSpropGravesRule', 'SGDRule')

#: Hooks of Chainer's that treat each element by itself, and change the gradient where it is.
_HOOKS = ('GradientHardClipping', 'Lasso', 'WeightDecay')


def update(blocks: FileBacked, rule: Any, parameter: Any) -> bool:
    """Updates a parameter in parts, with the hooks of its rule; False, and nothing was done, if that cannot be.

    Raises:
        SpillError: far memory cannot be read or written. Parts before that one are updated, those behind it are not.
    """
    before, hooks = rule.state, _hooks_of(rule)
    state = before or {}
    whole = {'array': parameter.array, 'grad': parameter.grad, **state}
    written = ['array', *(['grad'] if hooks else []), *state]
    is_by_element = _is_of(rule, 'chainer.optimizers.', _RULES) and all(
        _is_of(each, 'chainer.optimizer_hooks.', _HOOKS) for each in hooks)
    if not is_by_element or not _can_be_in_parts(whole, written):
        return False

    def run(part: Any, own: Mapping[str, Any]) -> None:
        rule._state = {name: own[name] for name in state}
        rule._update_core_with_hooks(part)

    try:
        _run_in_parts(blocks, parameter, whole, run, written)
    finally:
        rule._state = before
    return True


def call_hook(blocks: FileBacked, hook: Any, rule: Any, parameter: Any) -> bool:
    """Calls an optimizer's hook for a parameter, as `update`.

    Raises:
        SpillError: as `update`.
    """
    whole = {'array': parameter.array, 'grad': parameter.grad}
    if not _is_of(hook, 'chainer.optimizer_hooks.', _HOOKS) or not _can_be_in_parts(whole, ['grad']):
        return False
    _run_in_parts(blocks, parameter, whole, lambda part, own: hook(rule, part), ['grad'])
    return True


def _run_in_parts(blocks: FileBacked, parameter: Any, whole: Mapping[str, Any],
                  run: Callable[[Any, Mapping[str, Any]], None], written: list[str]) -> None:
    """Runs with a parameter of some elements at a time, and with the arrays that it was made of."""
    import chainer

    flat = {name: each.reshape(-1) for name, each in whole.items()}
    count = max(1, PART_BYTES // max(each.itemsize for each in flat.values()))
    for first in range(0, flat['array'].size, count):
        own = {name: np.empty_like(each[first:first + count]) for name, each in flat.items()}
        for name, each in own.items():
            blocks.read(flat[name][first:first + count], each)
        part = chainer.Parameter(own['array'], name=parameter.name)
        part.grad, part._loss_scale = own['grad'], parameter._loss_scale
        run(part, own)
        for name in written:
            blocks.write(flat[name][first:first + count], own[name])


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
