"""Updates of parameters that lie in far memory: by a part at a time, with the bits of an update as a whole.

    far memory --read--> rows of the parameter, the gradient and the state --the rule, with its hooks--> --write--> back

Rules and hooks of Chainer's own that treat each element by itself see a parameter of some rows. All others have the
whole one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from chainer_ooc.backends import arrays
from chainer_ooc.backends.file_backed import FileBacked

#: Of each array that an update has near at once. Larger parts gain nothing: it is as many bytes of calls as of copies.
PART_BYTES = 4 << 20

#: Rules of Chainer's that treat each element by itself, change their arrays where they are, and nothing else. MSVAG has
#: a power of its own, and SMORMS3 makes its arrays anew.
_BY_ELEMENT = ('AdaDeltaRule', 'AdaGradRule', 'AdamRule', 'CorrectedMomentumSGDRule', 'MomentumSGDRule',
               'NesterovAGRule', 'RMSpropRule', 'RMSpropGravesRule', 'SGDRule')


def update_in_parts(blocks: FileBacked, rule: Any, parameter: Any) -> None:
    """Updates a parameter with the hooks of its rule; as a whole if that cannot be done in parts.

    Raises:
        SpillError: far memory cannot be read or written. Parts before that one are updated, those behind it are not.
    """
    import chainer

    state = rule.state or {}
    whole = {'array': parameter.array, 'grad': parameter.grad, **state}
    if not _can_be_in_parts(rule, list(whole.values())):
        rule._update_core_with_hooks(parameter)
        return
    hooks = _hooks_of(rule)
    row_bytes = max(each.nbytes // len(each) for each in whole.values())
    rows = max(1, PART_BYTES // row_bytes)
    try:
        for first in range(0, len(parameter.array), rows):
            own = {name: np.empty_like(each[first:first + rows]) for name, each in whole.items()}
            for name, each in own.items():
                blocks.read(whole[name][first:first + rows], each)
            part = chainer.Parameter(own['array'], name=parameter.name)
            part.grad, part._loss_scale = own['grad'], parameter._loss_scale
            rule._state = {name: own[name] for name in state}
            rule._update_core_with_hooks(part)
            for name in ('array', *(['grad'] if hooks else []), *state):
                blocks.write(whole[name][first:first + rows], own[name])
    finally:
        rule._state = state


def _can_be_in_parts(rule: Any, whole: list[Any]) -> bool:
    from chainer import optimizer_hooks as hooks

    first = whole[0]
    return (_is_by_element(rule)
            and all(type(each) in (hooks.WeightDecay, hooks.Lasso, hooks.GradientHardClipping)
                    for each in _hooks_of(rule))
            and all(arrays.is_array(each) and each.shape == first.shape and each.flags.c_contiguous for each in whole)
            and first.ndim > 0)


def _is_by_element(rule: Any) -> bool:
    import chainer

    kind = type(rule)
    return kind.__module__.startswith('chainer.optimizers.') and kind.__name__ in _BY_ELEMENT and (
        issubclass(kind, chainer.UpdateRule) and 'update_core' not in vars(rule))


def _hooks_of(rule: Any) -> list[Any]:
    found = rule._hookable
    return [*found._pre_update_hooks.values(), *found._post_update_hooks.values()]
