"""chainer.config.ooc_log: what the logger 'chainer_ooc' says, and to whom.

A program that has set logging up gets the records through its own handlers; for one that has not, they go to stderr.
"""

from __future__ import annotations

import logging

logger = logging.getLogger('chainer_ooc')


def set_level(level: int | None) -> None:
    """Lets records from `level` on through; None leaves the logger to the program."""
    if level is None:
        return
    logger.setLevel(level)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter('%(name)s: %(message)s'))
        logger.addHandler(handler)
