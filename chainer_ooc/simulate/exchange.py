"""How long an iteration of several ranks takes: gradients are added up beside backward, or after it.

A step's gradients of parameters are there when it ends. While ranks add up some, those of further steps gather, and go
together next: many small arrays would take a latency each. Where latencies are all that counts, one exchange after
backward is faster than these::

    backward  | step | step | step | step |
    exchange         | 1st  |  2nd, 3rd   | 4th |         iteration ends here

Source: Horovod's tensor fusion, without its limit of bytes. Left out: what the exchange takes from computations and
from copies to far memory, which pass the same bus; ranks that are slower than others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chainer_ooc.cost.gradients import arguments_of
from chainer_ooc.cost.network import Interconnect
from chainer_ooc.simulate.timeline import Stream, Timeline
from chainer_ooc.trace import Trace


@dataclass(frozen=True)
class Ranks:
    """An iteration of several ranks.

    Attributes:
        exchange_seconds: of all gradients at once.
        beside_seconds: of the iteration, if gradients are added up beside backward.
        after_seconds: of the iteration, if they are added up at once after it, as ChainerMN does.
    """

    exchange_seconds: float
    beside_seconds: float
    after_seconds: float


def with_ranks(trace: Trace, timeline: Timeline, ranks: int, network: Interconnect) -> Ranks:
    """Works out an iteration of so many ranks, of which `timeline` is what each one does alone.

    Raises:
        OocError: the trace has no shapes.
    """
    ends = {each.subject: each.end_seconds for each in timeline.of(Stream.COMPUTE)}
    ready = [(ends[step.position], nbytes) for step, nbytes in zip(trace.steps, gradient_bytes(trace), strict=True)
             if nbytes]
    whole_seconds = network.allreduce_seconds(sum(nbytes for _, nbytes in ready), ranks)
    return Ranks(whole_seconds, max(timeline.seconds, _last_exchanged(ready, ranks, network)),
                 timeline.seconds + whole_seconds)


def gradient_bytes(trace: Trace) -> list[int]:
    """Of the parameters whose gradients each step makes; one that two functions share counts twice.

    Raises:
        OocError: the trace has no shapes.
    """
    def of_call(call: int) -> int:
        own = trace.calls[call]
        return sum(array.nbytes for map_id, array in zip(own.inputs, arguments_of(own), strict=True)
                   if map_id < 0 and 'f' in array.dtype)
    return [of_call(each.call) if each.call >= 0 else 0 for each in trace.steps]


def _last_exchanged(ready: Iterable[tuple[float, int]], ranks: int, network: Interconnect) -> float:
    """When the last of these gradients, by the moment at which they are there and in its order, are added up."""
    end, waiting_bytes, began = 0.0, 0, 0.0
    for moment, nbytes in ready:
        if waiting_bytes and moment > began:
            end = began + network.allreduce_seconds(waiting_bytes, ranks)
            waiting_bytes = 0
        if not waiting_bytes:
            began = max(end, moment)
        waiting_bytes += nbytes
    return began + network.allreduce_seconds(waiting_bytes, ranks) if waiting_bytes else end
