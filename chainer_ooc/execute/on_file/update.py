"""Updates of parameters that lie in far memory: by a part at a time, with the bits of an update as a whole.

    far memory --read--> rows of the parameter, the gradient and the state --the rule, its hooks--> --write--> back

Rules and hooks of Chainer's own that treat each element by itself see a parameter of some rows. All others have the
whole one.
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


def update(blocks: FileBacked, rule: Any, parameter: Any) -> None:
    """Updates a parameter, with the hooks of its rule.

    Raises:
        SpillError: far memory cannot be read or written. Parts before that one are updated, those behind it are not.
    """
    state, hooks = rule.state or {}, _hooks_of(rule)
    whole = {'array': parameter.array, 'grad': parameter.grad, **state}
    is_by_element = _is_of(rule, 'chainer.optimizers.', _RULES) and all(
        _is_of(each, 'chainer.optimizer_hooks.', _HOOKS) for each in hooks)
    if not is_by_element or not _are_alike([*whole.values()]):
        rule._update_core_with_hooks(parameter)
        return

    def run(part: Any, own: Mapping[str, Any]) -> None:
        rule._state = {name: own[name] for name in state}
        rule._update_core_with_hooks(part)

    before = rule.state
    try:
        _run_in_parts(blocks, parameter, whole, run, ['array', *(['grad'] if hooks else []), *state])
    finally:
        rule._state = before


def call_hook(blocks: FileBacked, hook: Any, rule: Any, parameter: Any) -> None:
    """Calls an optimizer's hook for a parameter.

    Raises:
        SpillError: as `update`.
    """
    whole = {'array': parameter.array, 'grad': parameter.grad}
    if _is_of(hook, 'chainer.optimizer_hooks.', _HOOKS) and _are_alike([*whole.values()]):
        _run_in_parts(blocks, parameter, whole, lambda part, own: hook(rule, part), ['grad'])
    else:
        hook(rule, parameter)


def _run_in_parts(blocks: FileBacked, parameter: Any, whole: Mapping[str, Any],
                  run: Callable[[Any, Mapping[str, Any]], None], written: list[str]) -> None:
    """Runs with a parameter of some rows at a time, and with the arrays that it was made of."""
    import chainer

    rows = max(1, PART_BYTES // max(each.nbytes // len(each) for each in whole.values()))
    for first in range(0, len(parameter.array), rows):
        own = {name: np.empty_like(each[first:first + rows]) for name, each in whole.items()}
        for name, each in own.items():
            blocks.read(whole[name][first:first + rows], each)
        part = chainer.Parameter(own['array'], name=parameter.name)
        part.grad, part._loss_scale = own['grad'], parameter._loss_scale
        run(part, own)
        for name in written:
            blocks.write(whole[name][first:first + rows], own[name])


def _is_of(value: Any, package: str, names: tuple[str, ...]) -> bool:
    return type(value).__module__.startswith(package) and type(value).__name__ in names


def _are_alike(found: list[Any]) -> bool:
    """Whether all are arrays of one shape that has rows, without gaps."""
    return all(arrays.is_array(each) and each.ndim and each.size and each.shape == found[0].shape
               and each.flags.c_contiguous for each in found)


def _hooks_of(rule: Any) -> list[Any]:
    found = rule._hookable
    return [*found._pre_update_hooks.values(), *found._post_update_hooks.values()]
