"""Processes that stay alive and train in turns: one at a time, so that they share the machine's good and bad moments.

    round 1   a a' | b b' | c c'      each starts anew where it stopped; a is not timed, a' is
    round 2   c c' | b b' | a a'      every second round goes backwards,
    round 3   b b' | c c' | a a'      and who begins moves on

The first iteration of a turn finds memory and caches as the others left them; `turn_worker.py` is the other end of the
pipe. While a worker gets ready its memory is read 20 times a second, and while it is timed nothing here runs.
"""
from __future__ import annotations

import contextlib
import json
import select
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from watched_run import memory_of

SAMPLE_SECONDS = 0.05


class WorkerDiedError(RuntimeError):
    """A worker ended, or took too long; the message has its last words."""


class Worker:
    """A process that trains when told to.

    Args:
        name: What messages call it.
        command: What starts it.
        environment: Its environment.
        patience_seconds: What it may take to get ready, and for each turn.

    Attributes:
        about: What it said when it was ready.
        anon_peak_bytes: The highest private memory (RssAnon) seen until then.
    """

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str],
                 patience_seconds: float = 1800.0) -> None:
        self.name = name
        self.about: dict[str, Any] = {}
        self.anon_peak_bytes = 0
        self._patience_seconds = patience_seconds
        self._log = tempfile.TemporaryFile('w+', errors='replace')  # noqa: SIM115  closed by close
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
                                         env=environment, text=True)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self) -> None:
        """Waits until it is ready.

        Raises:
            WorkerDiedError: It did not get there.
        """
        self.about = self._read(self._sample)

    def go(self) -> dict[str, Any]:
        """Has it take a turn; returns what the timed iteration took.

        Raises:
            WorkerDiedError: It ended meanwhile.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write('go\n')
            self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """Ends it."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _read(self, sample: Callable[[], None] | None = None) -> dict[str, Any]:
        assert self._process.stdout is not None
        until = time.monotonic() + self._patience_seconds
        while (left := until - time.monotonic()) > 0:
            if select.select([self._process.stdout], [], [], SAMPLE_SECONDS if sample else left)[0]:
                line = self._process.stdout.readline()
                if not line:
                    raise WorkerDiedError(f'{self.name} ended: {self._last_words()}')
                return json.loads(line)
            if sample:
                sample()
        self._process.kill()
        raise WorkerDiedError(f'{self.name} took more than {self._patience_seconds:g} s')

    def _sample(self) -> None:
        self.anon_peak_bytes = max(self.anon_peak_bytes, memory_of(self._process.pid).get('RssAnon', 0))

    def _last_words(self) -> str:
        status = self._process.wait()
        self._log.seek(0)
        lines = [line for line in self._log.read().splitlines() if line.strip()]
        return f'{lines[-1].strip() if lines else "no message"} (exit status {status})'


def order_of(names: Sequence[str], number: int) -> list[str]:
    """Who takes turns after whom in a round, counted from 0."""
    start = number % len(names)
    order = [*names[start:], *names[:start]]
    return order[::-1] if number % 2 else order


def take_turns(workers: Mapping[str, Worker], rounds: int,
               show: Callable[[int, str, Mapping[str, Any]], None] | None = None) -> dict[str, list[dict[str, Any]]]:
    """Runs the rounds; returns what each worker's turns took, in the order of the rounds.

    Args:
        workers: By name, all ready.
        rounds: How many.
        show: Called after each turn with the round from 1, the name, and what the worker said.
    """
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in workers}
    for number in range(rounds):
        for name in order_of(list(workers), number):
            turns[name].append(workers[name].go())
            if show:
                show(number + 1, name, turns[name][-1])
    return turns
