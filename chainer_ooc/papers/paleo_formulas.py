"""What an iteration takes out of core, by the formulas of OOC-Paleo: vDNN-like, and capacity-based.

The paper's symbols and ours::

    T_proc(l), T_swap(l)    Pass.seconds[l], Pass.swap_seconds[l]
    Num_buffer(l)           the data of a layer
    ProcTh(l), SwapTh       the throughput of its computation, and of transfers
    Tcatch                  when processing catches up with swap-in, see `catching_layer`

Backward is divided into *sections*. One begins when a layer begins, and ends when the layer after it may begin::

    compute    [ layer l+1 ]..[ layer l ]...      . idle
    copy-in    [ data of l   ][ data of l-1]
               | section l+1  | section l

The layers of a backward pass are counted here in the order in which it meets them, so that what the paper calls layer
l-1 is the next one.

The simulator is the judge of these formulas (tests/papers): they are exact where their assumptions hold, and bounds
where not. What they leave out: computations run again, branches (a layer needs no data but its own), scratch memory,
and that copies slow a computation down.

Source: OOC-Paleo 3.4 (equations 7 to 9), 3.5 (10 to 12), 3.6.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import accumulate, pairwise

from chainer_ooc.cost.costs import Costs
from chainer_ooc.trace import Trace


@dataclass(frozen=True)
class Pass:
    """One way through the layers, in the order of the pass.

    Attributes:
        seconds: T_proc(l), the computation of each layer: Num_buffer(l) / ProcTh(l).
        swap_seconds: T_swap(l), the transfer of its data: Num_buffer(l) / SwapTh; 0 for a layer that stays. Forward
            swaps out what a layer was the last to use, backward swaps in what it is the first to read.
    """

    seconds: tuple[float, ...]
    swap_seconds: tuple[float, ...]

    @property
    def in_core_seconds(self) -> float:
        """If no transfer is waited for."""
        return sum(self.seconds)


@dataclass(frozen=True)
class Sections:
    """A pass with its waits.

    Attributes:
        lead_seconds: the wait before the first section.
        seconds: of each section.
    """

    lead_seconds: float
    seconds: tuple[float, ...]

    @property
    def total_seconds(self) -> float:
        """Of the whole pass."""
        return self.lead_seconds + sum(self.seconds)


def passes_of(trace: Trace, costs: Costs, swapped: Collection[int]) -> tuple[Pass, Pass]:
    """Forward and backward of an iteration, a call or a step being a layer, from which the maps `swapped` leave.

    T_swap has the latency of each transfer in it, which the paper lists and leaves out.
    """
    swap_seconds = [0.0] * trace.positions
    for each in swapped:
        feature_map = trace.maps[each]
        swap_seconds[feature_map.last_forward_use] += costs.write_seconds(feature_map.nbytes)
        if feature_map.backward_uses:
            swap_seconds[feature_map.backward_uses[0]] += costs.read_seconds(feature_map.nbytes)
    start = trace.backward_start
    return (Pass(costs.seconds[:start], tuple(swap_seconds[:start])),
            Pass(costs.seconds[start:], tuple(swap_seconds[start:])))


def section_seconds(work_seconds: float, next_swap_seconds: float) -> float:
    """T = max(T_proc(l), T_swap(l-1)): a layer works while the next one's data comes, and both end (equation 7)."""
    return max(work_seconds, next_swap_seconds)


def vdnn_backward(backward: Pass) -> Sections:
    """Sections of equation 7, behind the wait for the first layer's data, beside which nothing runs (figure 3)."""
    return Sections(backward.swap_seconds[0], _in_step(backward, 0))


def vdnn_forward(forward: Pass) -> Sections:
    """Forward with a swap-out beside each layer, and a wait for both.

    The paper has no formula for it. What it tells (2.1, 3.5) is the mirror of equation 7: a layer's swap-out begins
    when the layer ends, all is waited for at the end of the next, and backward waits for the last layer's::

        compute    [ layer 1 ][ layer 2 ]..[ layer 3 ]......| backward
        copy-out              [ data of 1 ][ data of 2][ 3  ]
    """
    before = (0.0, *forward.swap_seconds)
    seconds = [section_seconds(work, swap) for work, swap in zip(forward.seconds, before[:-1], strict=True)]
    return Sections(0.0, (*seconds, before[-1]))


def _in_step(backward: Pass, first: int) -> tuple[float, ...]:
    """Sections from a layer on, if each layer's swap-in begins with the layer before it."""
    swaps = (*backward.swap_seconds[first:], 0.0)
    return tuple(section_seconds(work, swap) for work, (_, swap) in zip(
        backward.seconds[first:], pairwise(swaps), strict=True))


def catching_layer(backward: Pass) -> int | None:
    """The first layer that has to wait for its data if swap-in never pauses; None if Tcatch is not in this backward.

    Equation 10 says what has been worked on at Tcatch: all that was in near memory and all that has come. The paper
    sums it over the layers that near memory holds. But these are no more than its capacity, and Tcatch would never be
    above 0. The sum is meant up to the layer that has to wait, the first whose data is there (equation 11) after the
    layers before it have ended.
    """
    ended = accumulate(backward.seconds, initial=0.0)
    arrived = accumulate(backward.swap_seconds)
    waits = (arrival > end for arrival, end in zip(arrived, ended, strict=False))
    return next((layer for layer, waits_for_data in enumerate(waits) if waits_for_data), None)


def capacity_backward(backward: Pass) -> Sections:
    """Full utilisation until Tcatch, then as vDNN (equation 12).

    The fluid of equation 10 knows no wait at Tcatch itself. Layers come whole: what the catching layer waits for
    belongs to the section before it, or leads if it is the first. T_swap is 0 for layers that are kept.
    """
    caught = catching_layer(backward)
    if caught is None:
        return Sections(0.0, backward.seconds)
    wait_seconds = sum(backward.swap_seconds[:caught + 1]) - sum(backward.seconds[:caught])
    later = _in_step(backward, caught)
    if not caught:
        return Sections(wait_seconds, later)
    last_seconds = backward.seconds[caught - 1] + wait_seconds
    return Sections(0.0, (*backward.seconds[:caught - 1], last_seconds, *later))


def capacity_forward_seconds(forward: Pass) -> float:
    """What forward takes: it computes all layers, and what is not kept has left before the last of them begins.

    The paper has no formula for it; its figure 4 draws a forward pass that never waits. By its own strategy near memory
    is full at the end of forward, of layers that stay, so that the last one finds its place only when every swap-out
    has ended. Swap-outs run one after the other, each when its layer has ended. T_swap is 0 for layers that are kept.
    """
    ended_seconds = gone_seconds = 0.0
    for seconds, swap_seconds in zip(forward.seconds, forward.swap_seconds, strict=True):
        ended_seconds += seconds
        if swap_seconds:
            gone_seconds = max(gone_seconds, ended_seconds) + swap_seconds
    return max(ended_seconds, gone_seconds + forward.seconds[-1] if gone_seconds else 0.0)


@dataclass(frozen=True)
class PaleoIteration:
    """What a strategy makes of an iteration, waits included (3.6)."""

    forward_seconds: float
    backward_seconds: float

    @property
    def seconds(self) -> float:
        """Of the whole iteration."""
        return self.forward_seconds + self.backward_seconds


def vdnn_iteration(forward: Pass, backward: Pass) -> PaleoIteration:
    """An iteration of the vDNN-like strategy: everything leaves and comes back, in step with the layers."""
    return PaleoIteration(vdnn_forward(forward).total_seconds, vdnn_backward(backward).total_seconds)


def capacity_iteration(forward: Pass, backward: Pass) -> PaleoIteration:
    """An iteration of the capacity-based strategy: what near memory holds stays, and swap-in does not pause."""
    return PaleoIteration(capacity_forward_seconds(forward), capacity_backward(backward).total_seconds)


def on_demand_iteration(forward: Pass, backward: Pass) -> PaleoIteration:
    """As capacity-based, without prefetching (4.3): a section is T_swap(l) + T_proc(l).

    A swap-in begins when its layer would, with nothing beside it. The paper measures this and has no formula for it.
    """
    return PaleoIteration(capacity_forward_seconds(forward), sum(backward.swap_seconds) + sum(backward.seconds))
