"""chainer.config.ooc_log: where the records of the logger 'chainer_ooc' go.

A program that has set logging up gets them through its own handlers. For one that has not, they go to stderr if
`ooc_log` names a level, and else nowhere: without a handler of ours Python's own would print the warnings.
"""

from __future__ import annotations

import logging

from chainer_ooc.quantities import format_bytes

logger = logging.getLogger('chainer_ooc')
logger.addHandler(logging.NullHandler())
_ours: list[logging.Handler] = []  # for a program that has none
_before: int | None = None  # the program's level, while ours is set


def set_level(level: int | None) -> None:
    """Shows records from `level` on; None leaves the logger to the program, without our handler, as it was."""
    global _before
    if level is None:
        while _ours:
            logger.removeHandler(_ours.pop())
        if _before is not None:
            logger.setLevel(_before)
            _before = None
        return
    if _before is None:
        _before = logger.level
    logger.setLevel(level)
    if all(isinstance(each, logging.NullHandler) for each in (*logger.handlers, *logging.getLogger().handlers)):
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter('%(name)s: %(message)s'))
        _ours.append(handler)
        logger.addHandler(handler)


def warn_of_excess(needed_bytes: int, budget_bytes: int) -> None:
    """Says that an iteration passed its budget."""
    logger.warning(
        'an iteration needed %s, %s more than a budget of %s has: what its calls allocate was not known yet; the next '
        'ones keep within it, or are refused',
        format_bytes(needed_bytes), format_bytes(needed_bytes - budget_bytes), format_bytes(budget_bytes))
