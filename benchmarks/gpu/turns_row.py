"""A row in which plain Chainer and `keep` take turns in one process: what the manager costs where nothing has to move.

    round    plain: settle, timed   |   keep: settle (recorded, planned), timed   |   ratio of the two

A rented machine's processor is up to 1.7 times as fast in one row as in the next, and the program's share of an
iteration with it; so rows of their own do not tell. The manager is closed after each turn: plain Chainer has CuPy's own
pool.
"""
from __future__ import annotations

import statistics
from typing import Any

import here  # noqa: F401  chainer_ooc before chainer, and the examples on the path

# isort: split
import near
from training_row import TF32, Training, configured, planned_for_good

#: Iterations of a turn: before those that count, and those.
SETTLE, TIMED = 4, 3


def take_turns(*, device: str, network: str, batch: int, min_bytes: int, image_side: int | None, tf32: bool,
               rounds: int, workspace: str | None = None) -> dict[str, Any]:
    """Trains in turns; seconds are the medians of all rounds, ratios of each round are `keep` over plain Chainer."""
    on = near.of(device)
    entries = {'ooc_workspace': workspace, **(TF32 if tf32 else {})}
    training = Training(network, batch, image_side, on)
    found: dict[str, list[tuple[float, float]]] = {'plain': [], 'keep': []}
    for _ in range(rounds):
        for policy, turns in found.items():
            with configured(policy, None, min_bytes=min_bytes, **entries):
                for _ in range(SETTLE):
                    training.iterate()
                with planned_for_good():
                    seconds = [training.iterate() for _ in range(TIMED)]
            turns.append((statistics.median(seconds), statistics.median(training.host_seconds[-TIMED:])))
    on.trim()
    return {f'{policy}_{what}': statistics.median(turn[index] for turn in turns)
            for policy, turns in found.items() for index, what in enumerate(('seconds', 'host_seconds'))} | {
        name: [keep[index] / plain[index] for plain, keep in zip(found['plain'], found['keep'], strict=True)]
        for index, name in enumerate(('ratios', 'host_ratios'))}
