"""chainer.config.ooc_log: what the logger 'chainer_ooc' says, and to whom.

A program that has set logging up gets the records through its own handlers. For one that has not, they go to stderr
if `ooc_log` names a level; else nowhere, where Python's handler of last resort would print the warnings.
"""

from __future__ import annotations

import logging

logger = logging.getLogger('chainer_ooc')
logger.addHandler(logging.NullHandler())


def set_level(level: int | None) -> None:
    """Lets records from `level` on through; None leaves the logger to the program."""
    if level is None:
        return
    logger.setLevel(level)
    if all(isinstance(each, logging.NullHandler) for each in (*logger.handlers, *logging.getLogger().handlers)):
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter('%(name)s: %(message)s'))
        logger.addHandler(handler)
