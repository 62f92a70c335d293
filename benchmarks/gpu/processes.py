"""A process that rows run in, so that a crash or a hang costs its row and nothing else.

One process takes row after row, since starting one (imports, a CUDA context, cuDNN's plans, pinned memory) takes longer
than many a row. After a row that did not end well it is replaced: nobody knows what such a row left on the device. A
row that was refused for its budget, or did not fit its time, has ended well.

    parent   ask(row) ---- one line of JSON ----> stdin
             answer, death or time over  <------- one line of JSON on a pipe of its own (stdout is anybody's)

What a process prints is kept, in a file if one is named, and its end goes into the row of one that died. A process that
is given up is asked first where it stands: `faulthandler` then prints all its stacks.
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
LAST_CHARACTERS = 8000
LONGEST_REASON = 400
STACKS_SECONDS = 1.0
#: A row is told this much less time than it has before it is given up.
OWN_MARGIN_SECONDS = 3.0
#: How rows end whose process can be used again.
ENDED_WELL = ('done', 'refused', 'dropped', 'skipped')


class Worker:
    """Starts a process when a row needs one, and ends it when a row ended it or the caller does.

    Args:
        command: What to start; it reads rows from stdin and writes answers to the descriptor that its last argument
            names.
        log: a file that all which processes print is appended to; None for one that is thrown away.
    """

    def __init__(self, command: Sequence[str] = WORKER, log: pathlib.Path | None = None) -> None:
        self._command = tuple(command)
        self._log = log
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
            dict[str, Any]: Its figures with 'outcome': 'done'; or another 'outcome' and 'reason', a line. A process
            that died or was given up has 'last_words'. 'row_seconds' is what it took with the start of a process,
            'start_seconds', if it needed one, which 'fresh_process' says.
        """
        began = time.monotonic()
        fresh = self.starts(alone)
        if alone:
            self.close()
        self._start()
        end = began + most_seconds
        line = json.dumps({'kind': kind, 'asks': dict(asks), 'until': end - OWN_MARGIN_SECONDS})
        answer = self._answer(line, end)
        if isinstance(answer, str):
            if answer == 'time':
                self._ask_for_stacks()
            self.close()
            answer = {'outcome': 'failed', 'reason': self._reason(answer, most_seconds),
                      'last_words': self._last_words}
        elif alone or answer['outcome'] not in ENDED_WELL:
            self.close()
        seconds = time.monotonic() - began
        return {**answer, 'row_seconds': seconds, 'fresh_process': fresh,
                'start_seconds': max(0.0, seconds - answer.get('worker_seconds', seconds)) if fresh else 0.0}

    def starts(self, alone: bool) -> bool:
        """Whether the next row needs a process that is not there yet."""
        return alone or self._process is None

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
        self._errors.seek(self._errors_begin)
        self._last_words = self._errors.read().decode(errors='replace')[-LAST_CHARACTERS:]
        self._errors.close()

    def _start(self) -> None:
        if self._process is not None:
            return
        # close() closes it. The child and we write by the same descriptor, at the end.
        self._errors = tempfile.TemporaryFile('w+b') if self._log is None else self._log.open('a+b')  # noqa: SIM115
        self._errors_begin = self._errors.seek(0, os.SEEK_END)
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

    def _ask_for_stacks(self) -> None:
        """Has a process that hangs print where it does, and ends it a moment later."""
        assert self._process is not None
        self._process.send_signal(signal.SIGUSR1)
        time.sleep(STACKS_SECONDS)
        os.killpg(self._process.pid, signal.SIGKILL)  # nobody has waited for it: the number is still its own

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
