"""Damages JSON: valid texts whose values, rows, columns or keys are others than a program would have written."""
import copy
import json
import math

#: What a value of any kind is replaced by, and what stands beside every reasonable one.
STRANGE = (None, True, False, 0, -1, 1, 2, 7, 2**31, 2**60, 2**63, 2**64, -2**63, 10**30, 10**400, 0.5, -0.0, 1e-320,
           1e300, math.nan, math.inf, -math.inf, '', 'x', '\ud800', 'ä\n\x1b[31m', '9' * 50, [], [0], [-1], [[]],
           [2**63], {}, {'a': 1}, [['<f4', [2**40, 2**40]]], [['<f4', []]], [['|V8', [1]]], [['O', [1]]])


def mutate(draw, value):
    """Returns JSON text of a value after one to three changes, which `draw` (a `random.Random`) chooses."""
    changed = copy.deepcopy(value)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        _change(draw, changed)
    return json.dumps(changed)


def _change(draw, root):
    holder, key = _place(draw, root)
    act = draw.choice((_replace, _replace, _replace, _nudge, _nudge, _remove, _repeat, _swap))
    act(draw, holder, key)


def _place(draw, root):
    """A container somewhere below the root, and a key of it; every depth is as likely."""
    holder = root
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = draw.choice(keys)
        below = holder[key]
        if not isinstance(below, (dict, list)) or not below or draw.random() < 0.15:
            return holder, key
        holder = below


def _replace(draw, holder, key):
    holder[key] = copy.deepcopy(draw.choice(STRANGE))


def _nudge(draw, holder, key):
    """A number that may as well have been written there."""
    value = holder[key]
    if isinstance(value, (int, float)):
        holder[key] = draw.choice((value + 1, value - 1, -value, value * 2, value * 1000, value // 2))
    else:
        _replace(draw, holder, key)


def _remove(draw, holder, key):
    del holder[key]


def _repeat(draw, holder, key):
    if isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    else:
        holder[f'{key}2'] = holder[key]


def _swap(draw, holder, key):
    other = draw.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    holder[key], holder[other] = holder[other], holder[key]
