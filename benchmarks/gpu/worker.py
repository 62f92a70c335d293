"""The process that rows run in: reads a row from stdin, answers with one line on the descriptor that it is given.

    python worker.py DESCRIPTOR
"""
from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from typing import Any

from evidence import Evidence
from pace import row_ends

LONGEST_REASON = 400


def main() -> None:
    descriptor = int(sys.argv[1])
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    for line in sys.stdin:
        row = json.loads(line)
        row_ends(row['until'])
        answer = json.dumps(measured(row['kind'], row['asks']), default=str).encode() + b'\n'
        while answer:
            answer = answer[os.write(descriptor, answer):]


def measured(kind: str, asks: dict[str, Any]) -> dict[str, Any]:
    """The figures of one row, or why there are none; what was seen on the way either way."""
    began = time.monotonic()
    print(f'row: {kind} {json.dumps(asks)}', file=sys.stderr, flush=True)
    with Evidence() as evidence:
        try:
            from kinds import KINDS

            found = {'outcome': 'done', **KINDS[kind](**asks)}
        except Exception as error:
            found = failure(error)
    print(f'  {found["outcome"]} {found.get("reason", "")}', file=sys.stderr, flush=True)
    return {**evidence.noted, **found, 'evidence': evidence.found(), 'worker_seconds': time.monotonic() - began}


def failure(error: Exception) -> dict[str, Any]:
    """What an error says: its class may name the outcome, such as 'refused' for a budget that is too small."""
    traceback.print_exc()
    text = ' '.join(str(error).split())
    floor_bytes = getattr(error, 'floor_bytes', None)
    outcome = getattr(error, 'outcome', 'failed' if type(error).__name__ != 'InfeasibleBudgetError' else 'refused')
    found = {'outcome': outcome, 'reason': f'{type(error).__name__}: {text}'[:LONGEST_REASON],
             'traceback': traceback.format_exc()}
    return found if floor_bytes is None else {**found, 'floor_bytes': floor_bytes}


if __name__ == '__main__':
    main()
