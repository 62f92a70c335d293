"""What near memory holds at each position of a simulated iteration, by kind.

    parameters | gradients | maps of block 1 | maps of block 2 | ... | other maps | scratch

Together they are what the timeline holds there. A block is a part of the model: what a link of the first level below
the root has within it, or below the one link that everything else is in, such as a Classifier's predictor. Scratch is
what the computation at the position allocates, without the maps that it makes, and what runs again before it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from chainer_ooc.problem import Problem
from chainer_ooc.schedule.schedule import Bytes, Schedule, add_intervals, residency
from chainer_ooc.simulate.timeline import Timeline
from chainer_ooc.trace import Trace

PARAMETERS, GRADIENTS, OTHERS, SCRATCH = 'parameters and optimizer state', 'gradients', 'other maps', 'scratch'
#: A picture has room for so many blocks, and shows those with at least this share of all bytes; the maps of the others
#: are `OTHERS`.
MOST_BLOCKS, LEAST_SHARE = 7, 0.01


@dataclass(frozen=True)
class ModelBlocks:
    """The parts of a model.

    Attributes:
        names: in the order in which their maps are made, `OTHERS` last if any map is there.
        of_map: for each map, the number of its block.
    """

    names: tuple[str, ...]
    of_map: tuple[int, ...]


@dataclass(frozen=True)
class Kind:
    """One kind of what near memory holds.

    Attributes:
        name: `PARAMETERS`, `GRADIENTS`, `SCRATCH`, or the name of a block.
        nbytes: at each position.
    """

    name: str
    nbytes: tuple[int, ...]


def find_blocks(trace: Trace) -> ModelBlocks:
    """Puts each map to the part of the model that makes it."""
    paths = [_parts(trace, each.id) for each in trace.maps]
    while len({path[0] for path in paths if path}) == 1 and any(len(path) > 1 for path in paths):
        paths = [path[1:] for path in paths]
    sizes: Counter[str] = Counter()
    for path, each in zip(paths, trace.maps, strict=True):
        if path:
            sizes[path[0]] += each.nbytes
    least_bytes = LEAST_SHARE * sum(each.nbytes for each in trace.maps)
    largest = {name for name, nbytes in sizes.most_common(MOST_BLOCKS) if nbytes >= least_bytes}
    names = [name for name in sizes if name in largest]
    found = [path[0] if path and path[0] in largest else OTHERS for path in paths]
    names += [OTHERS] if OTHERS in found else []
    return ModelBlocks(tuple(names), tuple(map(names.index, found)))


def _parts(trace: Trace, map_id: int) -> list[str]:
    maker = trace.maker_of(map_id)
    return [] if maker is None else [part for part in maker.path.split('/') if part]


def by_kind(problem: Problem, schedule: Schedule, timeline: Timeline, blocks: ModelBlocks) -> tuple[Kind, ...]:
    """Divides what near memory holds at each position."""
    trace, standing, start = problem.trace, problem.standing, problem.trace.backward_start
    parameters, gradients = np.zeros((2, trace.positions), np.int64)
    parameters[:start] = min(standing.forward_bytes, standing.backward_bytes)
    parameters[start:] = standing.backward_bytes
    gradients[:start] = max(0, standing.forward_bytes - standing.backward_bytes)
    gradients[start:] = [each.other_bytes for each in trace.steps]
    maps = _maps(problem, schedule, timeline, blocks)
    scratch = np.array(timeline.near_bytes, np.int64) - parameters - gradients - maps.sum(axis=0, dtype=np.int64)
    rows = [(PARAMETERS, parameters), (GRADIENTS, gradients), *zip(blocks.names, maps, strict=True), (SCRATCH, scratch)]
    return tuple(Kind(name, tuple(nbytes.tolist())) for name, nbytes in rows)


def _maps(problem: Problem, schedule: Schedule, timeline: Timeline, blocks: ModelBlocks) -> Bytes:
    """Bytes of maps, int64, shape (blocks, positions)."""
    trace = problem.trace
    change = np.zeros((len(blocks.names), trace.positions + 1), np.int64)
    for each, verdict, leave in zip(trace.maps, schedule.verdicts, schedule.leaves, strict=True):
        there = residency(trace, each, verdict, problem.min_bytes, schedule.chains, leave, schedule.mapped)
        add_intervals(change[blocks.of_map[each.id]], there, each.nbytes)
    maps = np.cumsum(change, axis=1)[:, :-1]
    for position, moving in enumerate(timeline.moving):
        for map_id in moving:
            maps[blocks.of_map[map_id], position] += trace.maps[map_id].nbytes
    for call in trace.calls:
        made = trace.made_by(call.index)
        if sum(trace.maps[each].nbytes for each in made) <= call.peak_bytes:  # which has them in it
            for map_id in made:
                maps[blocks.of_map[map_id], call.index] += trace.maps[map_id].nbytes
    return maps
