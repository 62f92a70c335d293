"""What a worker of `turns.py` does: told to go, it runs an iteration, and one more that is timed.

Standard library alone, as it also runs under a Python that has nothing of ours. A worker says one line of JSON when it
is ready, and one for each turn. All else that it prints goes to its standard error.

`RLIMIT_DATA` has to be set before the first import that allocates much: `limit_memory` comes first.
"""
from __future__ import annotations

import json
import math
import os
import pathlib
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

#: Iterations before a worker is ready, at least.
SETTLE = 4


class Voice:
    """The worker's end of the pipe; made first, before a library can print there."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), 'w')
        os.dup2(2, 1)

    def say(self, line: dict[str, Any]) -> None:
        """Writes one line."""
        self._out.write(json.dumps(line) + '\n')
        self._out.flush()

    def serve(self, iterate: Callable[[], float], mark: Callable[[], Any] = lambda: None) -> None:
        """Takes turns until there is nothing to read any more.

        Args:
            iterate: Runs one iteration and returns its loss.
            mark: Gives a value whose change during the timed iteration is told as `planned`.

        Raises:
            RuntimeError: A loss is not finite: such a training is no measure.
        """
        for _ in sys.stdin:
            iterate()
            marked, before, began = mark(), resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
            loss = iterate()
            seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
            if not math.isfinite(loss):
                raise RuntimeError(f'the loss is {loss}')
            self.say({
                'seconds': seconds, 'user_seconds': after.ru_utime - before.ru_utime,
                'system_seconds': after.ru_stime - before.ru_stime, 'faults': after.ru_minflt - before.ru_minflt,
                'planned': mark() is not marked, 'loss': loss, 'peak_bytes': memory_bytes('VmHWM')})


def limit_memory(nbytes: int | None) -> None:
    """Limits the private memory of this process, or does nothing for None."""
    if nbytes is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (nbytes, hard))


def memory_bytes(field: str) -> int:
    """A field of `/proc/self/status`, such as VmHWM, the highest resident memory."""
    lines = pathlib.Path('/proc/self/status').read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f'{field}:'))
