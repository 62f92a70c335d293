"""What a training writes down while it runs: one JSON line per event, flushed at once.

The process that watches a training reads these lines, also after the training died. Times are `time.monotonic`, which
on Linux is one clock for all processes. Events: ``begin`` (the first iteration is about to start), ``iteration``,
``end``.
"""
from __future__ import annotations

import hashlib
import json
import pathlib
import time
from typing import Any

import chainer
import numpy

import chainer_ooc


class Journal(chainer.training.Extension):
    """Trainer extension that writes an iteration's times, loss and out-of-core figures to a file.

    Args:
        path: The file; an old one is replaced.
    """

    trigger = 1, 'iteration'
    priority = chainer.training.PRIORITY_READER + 1
    name = 'Journal'

    def __init__(self, path: pathlib.Path) -> None:
        self._file = path.open('w', encoding='utf-8')
        self._start = 0.0

    def initialize(self, trainer: Any) -> None:
        self._start = time.monotonic()
        self.write({'event': 'begin', 'at': self._start})

    def __call__(self, trainer: Any) -> None:
        end = time.monotonic()
        self.write({
            'event': 'iteration', 'start': self._start, 'end': end, 'iteration': trainer.updater.iteration,
            'loss': float(trainer.observation['main/loss'].array).hex(), **out_of_core_figures(),
        })
        self._start = time.monotonic()

    def end(self, parameters: str) -> None:
        """Writes down that the training finished, with the digest of its parameters."""
        self.write({'event': 'end', 'parameters': parameters})

    def write(self, event: dict[str, Any]) -> None:
        """Writes one event."""
        self._file.write(json.dumps(event) + '\n')
        self._file.flush()

    def close(self) -> None:
        """Ends the journal."""
        self._file.close()


def out_of_core_figures() -> dict[str, int]:
    """The figures of the iteration that just ended; zeros in-core."""
    stats = chainer_ooc.stats()
    names = ('swapped_out_bytes', 'swapped_in_bytes', 'faults')
    return {name: 0 if stats is None else int(getattr(stats, name)) for name in names}


def parameter_digest(chain: chainer.Chain) -> str:
    """Hashes all parameters and persistent values of a chain, to the last bit.

    Returns:
        str: SHA-256 in hexadecimal, over names and values in the order of their names.
    """
    digest = hashlib.sha256()
    saved = chainer.serializers.DictionarySerializer()
    saved.save(chain)
    for name in sorted(saved.target):
        digest.update(name.encode())
        digest.update(numpy.ascontiguousarray(saved.target[name]).data)
    return digest.hexdigest()
