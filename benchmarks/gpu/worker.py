"""The process that rows run in: reads a row from stdin, answers with one line on the descriptor that it is given.

    python worker.py DESCRIPTOR
"""
from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any


def main() -> None:
    descriptor = int(sys.argv[1])
    for line in sys.stdin:
        row = json.loads(line)
        os.write(descriptor, json.dumps(measured(row['kind'], row['asks'])).encode() + b'\n')


def measured(kind: str, asks: dict[str, Any]) -> dict[str, Any]:
    """The figures of one row, or why there are none."""
    try:
        from kinds import KINDS

        return {'outcome': 'done', **KINDS[kind](**asks)}
    except Exception as error:
        traceback.print_exc()
        text = ' '.join(str(error).split())
        found = {'outcome': 'failed', 'reason': f'{type(error).__name__}: {text}'[:400]}
        floor_bytes = getattr(error, 'floor_bytes', None)
        return found if floor_bytes is None else {**found, 'floor_bytes': floor_bytes}


if __name__ == '__main__':
    main()
