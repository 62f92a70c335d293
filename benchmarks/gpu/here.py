"""Puts the benchmarks and the examples within reach, and chainer_ooc before chainer. Only workers import this."""
from __future__ import annotations

import pathlib
import sys

BENCHMARKS = pathlib.Path(__file__).resolve().parent.parent

for folder in (BENCHMARKS, BENCHMARKS.parent / 'examples'):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
import surroundings  # noqa: E402, F401  imports chainer_ooc, then chainer
