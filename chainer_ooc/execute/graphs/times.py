"""What the iterations of one graph really took, and when a plan that expected something else is made anew.

The recorded iteration is not like later ones: its memory is new, its calls are metered, and its copies follow no plan.
So each later iteration is timed too, and where prediction and measurement differ by more than `PART_FACTOR`, the plan
is made again from the medians of the latest iterations::

    recorded --plan--> run, run  (predicted / measured = 1.2) --plan--> run, run, ...  (1.02)

The first iteration under a plan does not count: its memory is new again. Plans are made again after 2 others, then
after 4, 8, 16 ..., so that noise does not cause planning for ever, and a change of the machine is followed.

Source: PoocH 4.2 profiles "several" iterations once; planning again is ours.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from chainer_ooc.cost.costs import Costs
from chainer_ooc.execute.recording.recorder import Recorder
from chainer_ooc.execute.tally import Tally
from chainer_ooc.simulate.timeline import Stream
from chainer_ooc.trace import Trace

#: A plan is made again when its predicted time is off by more than this factor, either way.
PART_FACTOR = 1.1

#: The medians are over so many iterations at most.
LOOKED_AT = 8


@dataclass(frozen=True)
class Timing:
    """One iteration that followed its plan.

    Attributes:
        seconds: of each position's computation.
        total_seconds: of the whole iteration.
        predicted_seconds: what the plan had expected.
        waited_seconds: for copies.
        recomputed_seconds: of calls that ran again.
        written_bytes, write_seconds: swap-outs that ended, and the time of the copies themselves.
        read_bytes, read_seconds: the same of swap-ins.
    """

    seconds: tuple[float, ...]
    total_seconds: float
    predicted_seconds: float
    waited_seconds: float
    recomputed_seconds: float
    written_bytes: int
    write_seconds: float
    read_bytes: int
    read_seconds: float


def timing_of(recorder: Recorder, tally: Tally, predicted_seconds: float) -> Timing:
    """Sums up an iteration that has ended; waits until the device has come to its end."""
    return Timing(tuple(recorder.seconds(tally.device)), tally.seconds, predicted_seconds, tally.stall_seconds,
                  tally.recomputed_seconds, *_sums(tally, Stream.COPY_OUT), *_sums(tally, Stream.COPY_IN))


def _sums(tally: Tally, direction: Stream) -> tuple[int, float]:
    """Bytes and seconds of the copies in a direction, as far as their duration is known."""
    copies = [copy for stream, _, copy in tally.copies if stream is direction]
    known = [(each.nbytes, each.seconds) for each in copies if each.seconds > 0]
    return sum(nbytes for nbytes, _ in known), sum(seconds for _, seconds in known)


class Times:
    """The timings of one graph.

    Attributes:
        costs: what plans are made from.
    """

    def __init__(self, costs: Costs):
        self.costs = costs
        self._latest: deque[Timing] = deque(maxlen=LOOKED_AT)
        self._wait = 2
        self._since_plan = 0
        self._exchange_bytes = 0
        self._exchanges: deque[Callable[[], float]] = deque(maxlen=LOOKED_AT)

    def note_exchange(self, nbytes: int, seconds: Callable[[], float]) -> None:
        """Adds an exchange of so much with other ranks; its duration is asked for when it is needed."""
        self._exchange_bytes = nbytes
        self._exchanges.append(seconds)

    def with_exchange(self, trace: Trace) -> Trace:
        """The graph's trace with the exchange that follows it; waits for the device."""
        if not self._exchanges:
            return trace
        return replace(trace, exchange_bytes=self._exchange_bytes,
                       exchange_seconds=statistics.median(each() for each in self._exchanges))

    def note(self, timing: Timing) -> bool:
        """Adds an iteration; True if the costs have changed, so that plans have to be made anew."""
        self._latest.append(timing)
        self._since_plan += 1
        if self._since_plan < self._wait:
            return False
        recent = list(self._latest)[-self._wait:]
        ratio = statistics.median(each.predicted_seconds / max(each.total_seconds, 1e-9) for each in recent)
        if 1 / PART_FACTOR <= ratio <= PART_FACTOR:
            return False
        self.costs = _costs_of(recent, self.costs)
        self._since_plan = 0
        self._wait = min(2 * self._wait, 1 << 20)
        return True


def _costs_of(timings: list[Timing], before: Costs) -> Costs:
    """Medians by position; what lies between the computations is spread over them evenly.

    The simulator adds what copies cost computations, so what they cost these ones is subtracted: from all alike, as it
    is not known which copy ran beside which computation.
    """
    positions = max(1, len(timings[0].seconds))
    between = statistics.median(
        max(0.0, each.total_seconds - each.waited_seconds - each.recomputed_seconds - sum(each.seconds))
        for each in timings) / positions
    alone = statistics.median(_share_alone(each, before.slowdown) for each in timings)
    return Costs(
        tuple(alone * statistics.median(column) + between
              for column in zip(*(each.seconds for each in timings), strict=True)),
        _speed([(each.written_bytes, each.write_seconds) for each in timings], before.write_bytes_per_second),
        _speed([(each.read_bytes, each.read_seconds) for each in timings], before.read_bytes_per_second),
        before.latency_seconds, before.slowdown)


def _share_alone(timing: Timing, slowdown: float) -> float:
    """What the computations would have taken without copies beside them, as a share of what they took."""
    computed_seconds = sum(timing.seconds) + timing.recomputed_seconds
    if not computed_seconds:
        return 1.0
    copying_seconds = max(0.0, timing.write_seconds + timing.read_seconds - timing.waited_seconds)
    return 1 - min(copying_seconds / computed_seconds, 1.0) * slowdown / (1 + slowdown)


def _speed(copies: list[tuple[int, float]], before: float) -> float:
    nbytes, seconds = sum(each for each, _ in copies), sum(each for _, each in copies)
    return nbytes / seconds if nbytes and seconds > 0 else before
