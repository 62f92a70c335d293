"""One line on a terminal that is written over again and again; in a log, a line every few seconds."""
from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

LOG_SECONDS = 10.0


class StatusLine:
    """Shows the state of something long.

    Args:
        out: Where it goes.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = sys.stdout if out is None else out
        self._terminal = self._out.isatty()
        self._last_seconds = time.monotonic()

    def show(self, text: str) -> None:
        """Shows a new state; a log gets only one every 10 seconds."""
        if self._terminal:
            self._write('\r' + text[:shutil.get_terminal_size().columns - 1] + '\033[K')
        elif time.monotonic() - self._last_seconds > LOG_SECONDS:
            self._last_seconds = time.monotonic()
            self._write(f'  {text}\n')

    def say(self, text: str) -> None:
        """Leaves a line that stays."""
        self._write(('\r\033[K' if self._terminal else '') + text + '\n')
        self._last_seconds = time.monotonic()

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
