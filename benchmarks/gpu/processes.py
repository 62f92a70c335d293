"""A process that rows run in, so that a crash or a hang costs its row and nothing else.

One process takes row after row, since starting one (imports, a CUDA context, cuDNN's plans) takes longer than many a
row. After a row that did not end well it is replaced: nobody knows what such a row left on the device.

    parent   ask(row) ---- one line of JSON ----> stdin
             answer, death or time over  <------- one line of JSON on a pipe of its own (stdout is anybody's)
"""
from __future__ import annotations

import contextlib
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

WORKER = (sys.executable, str(pathlib.Path(__file__).with_name('worker.py')))
LAST_CHARACTERS = 2000
LONGEST_REASON = 400


class Worker:
    """Starts a process when a row needs one, and ends it when a row ended it or the caller does.

    Args:
        command: What to start; it reads rows from stdin and writes answers to the descriptor that its last argument
            names.
    """

    def __init__(self, command: Sequence[str] = WORKER) -> None:
        self._command = tuple(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._answers = -1
        self._errors: Any = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, kind: str, asks: Mapping[str, Any], most_seconds: float, *, alone: bool = False) -> dict[str, Any]:
        """Has a row measured.

        Returns:
            dict[str, Any]: Its figures with 'outcome': 'done'; or 'outcome': 'failed' and 'reason', a line.
            'row_seconds' is what it took, the start of a process included.
        """
        began = time.monotonic()
        if alone:
            self.close()
        self._start()
        answer = self._answer(json.dumps({'kind': kind, 'asks': dict(asks)}), began + most_seconds)
        if isinstance(answer, str):
            self.close()
            answer = {'outcome': 'failed', 'reason': self._reason(answer, most_seconds)}
        elif alone or answer['outcome'] != 'done':
            self.close()
        return {**answer, 'row_seconds': time.monotonic() - began}

    def close(self) -> None:
        """Ends the process and whatever it started; without one it does nothing."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:  # a process that has been waited for has given its number back
            os.killpg(process.pid, signal.SIGKILL)
        self._status = process.wait()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        os.close(self._answers)
        self._errors.seek(0)
        self._last_words = self._errors.read()[-LAST_CHARACTERS:]
        self._errors.close()

    def _start(self) -> None:
        if self._process is not None:
            return
        self._errors = tempfile.TemporaryFile('w+', errors='replace')  # noqa: SIM115 - close() closes it
        self._answers, theirs = os.pipe()
        try:
            self._process = subprocess.Popen(
                [*self._command, str(theirs)], stdin=subprocess.PIPE, stdout=self._errors, stderr=self._errors,
                pass_fds=(theirs,), start_new_session=True)
        except BaseException:
            os.close(self._answers)
            self._errors.close()
            raise
        finally:
            os.close(theirs)

    def _answer(self, line: str, deadline: float) -> dict[str, Any] | str:
        """The answer, or 'time' or 'death'."""
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b'\n')
            self._process.stdin.flush()
        except BrokenPipeError:
            return 'death'
        found = b''
        while not found.endswith(b'\n'):
            ready, _, _ = select.select([self._answers], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                return 'time'
            more = os.read(self._answers, 65536)
            if not more:
                # The pipe closes a moment before the process has a status; killing it then would hide why it died.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(5)
                return 'death'
            found += more
        answer: dict[str, Any] = json.loads(found)
        return answer

    def _reason(self, answer: str, most_seconds: float) -> str:
        if answer == 'time':
            return f'given up after {most_seconds:.0f} s'
        status = self._status
        how = signal.Signals(-status).name if status < 0 else f'exit status {status}'
        lines = [line.strip() for line in self._last_words.splitlines() if line.strip()]
        return f'the process died ({how}){": " + lines[-1] if lines else ""}'[:LONGEST_REASON]
