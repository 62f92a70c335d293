"""One training within a limit, in a process of its own and watched from outside: was it killed, what did it use?"""
from __future__ import annotations

import dataclasses
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from contained_worker import MEMORY_ERROR, REFUSED
from memory_groups import MemoryGroup, memory_group

WORKER = pathlib.Path(__file__).with_name('contained_worker.py')
SAMPLE_SECONDS = 0.01

#: What a limit can be: a container's, on private memory (`ulimit -d`), or on addresses (`ulimit -v`).
KINDS = ('group', 'data', 'as')
_RLIMITS = {'data': (resource.RLIMIT_DATA, 'VmData'), 'as': (resource.RLIMIT_AS, 'VmSize')}


@dataclasses.dataclass(frozen=True)
class Trial:
    """How one training went.

    Attributes:
        network, policy, kind, limit_bytes: what was tried.
        outcome: 'finished', 'refused' (InfeasibleBudgetError), 'MemoryError', 'killed' (by the kernel) or 'failed'.
        message: the error, or ''.
        iterations: that were finished.
        peak_bytes: the most that counted against the limit; of a group the page cache too.
        kept_bytes: the most that could not be taken back: of a group without the page cache.
        seconds: of an iteration, the median of those under a plan.
        budget_bytes, account_bytes: of the last iteration, and the most that its arrays took.
    """

    network: str
    policy: str | None
    kind: str
    limit_bytes: int
    outcome: str
    message: str
    iterations: int
    peak_bytes: int
    kept_bytes: int
    seconds: float | None
    budget_bytes: int | None
    account_bytes: int | None

    @property
    def used(self) -> float:
        """The share of the limit that could not be taken back."""
        return self.kept_bytes / self.limit_bytes


def run_contained(network: str, policy: str | None, kind: str, limit_bytes: int, more: list[str]) -> Trial:
    """Runs one training within a limit.

    Args:
        network: one of the worker's.
        policy: value of chainer.config.ooc; None is plain Chainer.
        kind: one of `KINDS`.
        limit_bytes: the limit.
        more: further arguments of the worker.

    Raises:
        OSError: memory groups cannot be made here.
    """
    command = [sys.executable, '-W', 'ignore', str(WORKER), network, *more]
    command += [] if policy is None else ['--policy', policy]
    with _limited(kind, limit_bytes) as (enter, peaks_of), tempfile.TemporaryFile('w+') as said:
        process = subprocess.Popen(command, preexec_fn=enter, stdout=subprocess.PIPE, stderr=said, text=True)
        try:
            peaks = _watch(process, peaks_of)
            lines = process.stdout.read().splitlines()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        said.seek(0)
        rows = [json.loads(line) for line in lines if line.endswith('}')]
        return make_trial((network, policy, kind, limit_bytes), process.returncode, rows, said.read(), peaks)


def make_trial(asked: tuple[Any, ...], status: int, rows: list[dict[str, Any]], errors: str,
               peaks: tuple[int, int]) -> Trial:
    """Puts together what the training said and what was seen from outside."""
    outcome = {0: 'finished', REFUSED: 'refused', MEMORY_ERROR: 'MemoryError', -9: 'killed'}.get(status, 'failed')
    done = [row for row in rows if 'seconds' in row]
    planned = [row for row in done if row.get('phase', 'run') == 'run'][-3:]
    last = done[-1] if done else {}
    message = next((row['error'] for row in rows if 'error' in row), '')
    if outcome == 'failed':
        message = ' '.join(errors.strip().splitlines()[-1:]) or f'exit status {status}'
    return Trial(*asked, outcome, message, len(done), *peaks,
                 statistics.median(row['seconds'] for row in planned) if planned else None,
                 last.get('budget_bytes'), last.get('account_bytes'))


@contextmanager
def _limited(kind: str, limit_bytes: int) -> Iterator[tuple[Callable[[], None], Callable[[int], tuple[int, int]]]]:
    """Yields what the child does before it begins, and what says how much it uses."""
    if kind == 'group':
        with memory_group(limit_bytes) as group:
            yield group.enter, lambda pid: _group_peaks(group)
        return
    number, field = _RLIMITS[kind]
    yield lambda: resource.setrlimit(number, (limit_bytes, limit_bytes)), lambda pid: _status_peaks(pid, field)


def _group_peaks(group: MemoryGroup) -> tuple[int, int]:
    used_bytes, stat = group.number('usage_in_bytes'), group.stat()
    return group.number('max_usage_in_bytes'), used_bytes - stat['total_cache']


def _status_peaks(pid: int, field: str) -> tuple[int, int]:
    try:
        text = pathlib.Path(f'/proc/{pid}/status').read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0, 0
    fields = dict(line.split(':', 1) for line in text.splitlines())
    used_bytes = int(fields[field].split()[0]) * 1024 if field in fields else 0
    return used_bytes, used_bytes


def _watch(process: subprocess.Popen[str], peaks_of: Callable[[int], tuple[int, int]]) -> tuple[int, int]:
    """Waits for the process; what it prints is little, so that the pipe holds it."""
    peak_bytes = kept_bytes = 0
    while process.poll() is None:
        peak, kept = peaks_of(process.pid)
        peak_bytes, kept_bytes = max(peak_bytes, peak), max(kept_bytes, kept)
        time.sleep(SAMPLE_SECONDS)
    return max(peak_bytes, peaks_of(process.pid)[0]), kept_bytes


def can_make_groups() -> str:
    """Why memory groups cannot be made here; '' where they can."""
    try:
        with memory_group(1 << 30) as group:
            subprocess.run(['true'], preexec_fn=group.enter, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f'no memory groups of version 1 here: {error}'
    return ''


