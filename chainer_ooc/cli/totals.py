"""Sums over a trace: what an iteration keeps, how long it takes, and the call that needs most at once.

Bytes kept for backward and the largest working set leave out parameters and the optimizer's state, which no policy
moves. The peak and the smallest budget have them.
"""

from __future__ import annotations

from dataclasses import dataclass

from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.plans.making import floor_of
from chainer_ooc.problem import Standing, Verdict, everything, problem_of
from chainer_ooc.schedule.schedule import demand
from chainer_ooc.trace import Trace


@dataclass(frozen=True)
class Totals:
    """What `profile` says about a whole iteration.

    Attributes:
        maps, retained_maps: numbers of feature maps: of all, and of those that a function keeps for backward.
        retained_bytes, retained_bytes_per_image: of the latter; the second is None if the batch size is not known.
        calls, steps: numbers of forward calls and of steps in backward.
        forward_seconds, backward_seconds: their durations.
        kept_bytes: peak of an iteration in which every map stays until its last use, with what the recording had of
            parameters, gradients and optimizer state.
        working_set_bytes: peak when every map that can leave is away whenever it is not read: no policy needs less.
        working_set_at: the call or step that sets it.
    """

    maps: int
    retained_maps: int
    retained_bytes: int
    retained_bytes_per_image: float | None
    calls: int
    steps: int
    forward_seconds: float
    backward_seconds: float
    kept_bytes: int
    working_set_bytes: int
    working_set_at: str


def least_of(trace: Trace, min_bytes: int) -> InfeasibleBudgetError:
    """How `swap-all`, which needs the least of all policies that keep within a budget, refuses one byte.

    Its floor is with what the recording had of parameters, gradients and optimizer state.
    """
    refused = floor_of(POLICIES['swap-all'], problem_of(trace, 1, min_bytes))
    assert refused is not None, 'a whole iteration needs more than a byte'
    return refused


def totals(trace: Trace, batchsize: int | None, min_bytes: int) -> Totals:
    """Sums up a trace of `batchsize` images, None if that is not known; maps smaller than `min_bytes` always stay."""
    retained = [each for each in trace.maps if each.retained]
    retained_bytes = sum(each.nbytes for each in retained)
    kept = demand(trace, (Verdict.KEEP,) * len(trace.maps), problem_of(trace, 1, min_bytes).standing, min_bytes)
    swapped = demand(trace, everything(trace, min_bytes), Standing(0, 0), min_bytes)
    return Totals(
        maps=len(trace.maps), retained_maps=len(retained), retained_bytes=retained_bytes,
        retained_bytes_per_image=retained_bytes / batchsize if batchsize else None,
        calls=len(trace.calls), steps=len(trace.steps),
        forward_seconds=sum(call.seconds for call in trace.calls),
        backward_seconds=sum(step.seconds for step in trace.steps),
        kept_bytes=int(kept.max()), working_set_bytes=int(swapped.max()),
        working_set_at=trace.name_of(int(swapped.argmax())))
