"""One row of `calls.py`, in a process of its own so that it can be ended.

    python calls_worker.py '{"work": "chain", "size": {"calls": 100}, "policy": "pooch", "share": 0.25, ...}'

Each line written is a JSON object: `{"begin": PHASE}` as a phase begins, `{"phase": PHASE, ...}` with the figures of a
pair as it ends, `{"error": TEXT}` when nothing more comes. So what was measured is known however the process ends.

    peak      policy keep without a budget: the in-core peak, of which `share` is the budget
    recorded  plain beside the first iteration after chainer_ooc.reset(); the making of the trace is a figure of its own
    planned   iterations until one has run under a plan; planning is in the first of them
    run       plain beside an iteration under the plan
"""
from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from surroundings import ROOT  # noqa: F401  puts the examples on the path, and chainer_ooc before chainer

# isort: split
import chainer_ooc
from chainer_ooc.errors import InfeasibleBudgetError, OocError
from pairs import in_turns
from small_calls import WORKS, Size

MOST_REFUSALS = 10
MARGIN = 1.02  # above a floor that a refusal names
MOST_WARM_UPS = 8


class Row:
    """Measures one work under one policy and one budget.

    Args:
        row: As on the command line: `work`, `size`, `policy`, `share` (of the in-core peak, None for the default
            budget), `min_bytes`, `pairs`, `limit_seconds` (no pair is begun after half of it).
        say: Takes what becomes known.
        clock: Gives seconds.
    """

    def __init__(self, row: Mapping[str, Any], say: Callable[[dict[str, Any]], None],
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._work = WORKS[row['work']](Size(**row['size']))
        self._row, self._say, self._clock = row, say, clock
        self._entries = {'ooc': row['policy'], 'ooc_min_bytes': row['min_bytes'], 'ooc_budget': None}
        self._plain_digest = self._work.iterate({})[1]

    def measure(self) -> None:
        """Runs all phases."""
        self._say({'calls': self._work.calls})
        if self._row['share'] is not None:
            self._say({'begin': 'peak'})
            self._entries['ooc_budget'] = self._budget_bytes()
        self._pairs('recorded', self._recorded)
        self._warm_up()
        self._pairs('run', self._iterate)

    def _go_on(self) -> None:
        if self._work.go_on():
            self._plain_digest = self._work.iterate({})[1]

    def _budget_bytes(self) -> int:
        chainer_ooc.reset()
        for _ in range(3):
            self._work.iterate({**self._entries, 'ooc': 'keep'})
        peak_bytes = chainer_ooc.stats().peak_bytes
        chainer_ooc.reset()
        held, share = self._work.held_share, self._row['share']
        budget_bytes = int(peak_bytes * (held + (1 - held) * share))
        self._say({'phase': 'peak', 'peak_bytes': peak_bytes, 'budget_bytes': budget_bytes})
        return budget_bytes

    def _iterate(self) -> float:
        """An iteration under the policy; a refusal raises the budget."""
        for _ in range(MOST_REFUSALS):
            try:
                seconds, digest = self._work.iterate(self._entries)
            except InfeasibleBudgetError as error:
                self._entries['ooc_budget'] = int(error.floor_bytes * MARGIN)
                self._say({'refused_bytes': error.budget_bytes, 'budget_bytes': self._entries['ooc_budget']})
                continue
            if digest != self._plain_digest:
                self._say({'different': True})
            return seconds
        raise RuntimeError(f'refused {MOST_REFUSALS} times, each time at {MARGIN} times the floor named before')

    def _recorded(self) -> float:
        chainer_ooc.reset()
        seconds = self._iterate()
        began = time.perf_counter()
        if chainer_ooc.trace() is None or chainer_ooc.stats().phase != 'profile':
            raise RuntimeError('the iteration was not recorded')
        self._say({'trace_seconds': time.perf_counter() - began})
        return seconds

    def _warm_up(self) -> None:
        self._say({'begin': 'planned'})
        least = self._work.warm_ups
        for number in range(1, least + MOST_WARM_UPS):
            seconds = self._iterate()
            stats = chainer_ooc.stats()
            self._say({'planned_seconds': seconds})
            self._go_on()
            if number >= least and stats is not None and stats.phase == 'run':
                return
        raise RuntimeError(f'no iteration of {MOST_WARM_UPS} ran under a plan')

    def _pairs(self, phase: str, ooc: Callable[[], float]) -> None:
        self._say({'begin': phase})
        until = self._clock() + self._row['limit_seconds'] / 2

        def show(number: int, plain_seconds: float, ooc_seconds: float) -> None:
            self._say({'phase': phase, 'plain_seconds': plain_seconds, 'ooc_seconds': ooc_seconds,
                       'warm_up': number == 1})
            self._go_on()
            if self._clock() > until:
                raise _NoTimeLeftError

        with contextlib.suppress(_NoTimeLeftError):
            in_turns(lambda: self._work.iterate({})[0], ooc, 1 + self._row['pairs'], show)


class _NoTimeLeftError(Exception):
    """Half of a phase's time is over."""


def say(line: Mapping[str, Any]) -> None:
    """Writes a line for `calls.py`."""
    print(json.dumps(line), flush=True)


def main() -> None:
    try:
        Row(json.loads(sys.argv[1]), say).measure()
    except (OocError, RuntimeError) as error:
        say({'error': f'{type(error).__name__}: {error}'})
    finally:
        chainer_ooc.reset()


if __name__ == '__main__':
    main()
