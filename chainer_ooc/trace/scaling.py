"""A recorded iteration as it may be for inputs of another size: an estimate for a graph that was not recorded.

No figure shall be smaller than a recording would have it. For larger inputs, bytes and times grow with the first call's
input; what does not depend on it is then too large. For smaller ones they stay as they were recorded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from chainer_ooc.trace.model import Trace
from chainer_ooc.trace.rows import ArrayForm, Call


def scale(trace: Trace, factor: float) -> Trace:
    """Returns the iteration with all bytes and times multiplied by `factor`, 1 or more."""
    def larger(nbytes: int) -> int:
        return math.ceil(nbytes * factor)

    return replace(
        trace, others_bytes=larger(trace.others_bytes),
        maps=tuple(replace(each, nbytes=larger(each.nbytes)) for each in trace.maps),
        calls=tuple(replace(each, peak_bytes=larger(each.peak_bytes), seconds=each.seconds * factor,
                            other_bytes=larger(each.other_bytes)) for each in trace.calls),
        steps=tuple(replace(each, peak_bytes=larger(each.peak_bytes), seconds=each.seconds * factor,
                            other_bytes=larger(each.other_bytes)) for each in trace.steps))


def grown(call: Call, arguments: Iterable[ArrayForm]) -> Call:
    """Returns a call with room for what it may give if its outputs grow as the input does that has grown most."""
    factor = max((each.nbytes / max(1, known.nbytes)
                  for each, known in zip(arguments, call.arguments, strict=False)), default=1.0)
    more_bytes = math.ceil(sum(each.nbytes for each in call.results) * max(0.0, factor - 1))
    return replace(call, peak_bytes=call.peak_bytes + more_bytes)


def fill_in(trace: Trace, estimate: Trace) -> Trace:
    """Returns what an iteration did, with what only a recording tells taken from an estimate of its graph."""
    return replace(
        trace,
        maps=tuple(replace(each, written=like.written) for each, like in zip(trace.maps, estimate.maps, strict=True)),
        calls=tuple(replace(each, peak_bytes=like.peak_bytes, repeatable=like.repeatable, other_bytes=like.other_bytes,
                            path=like.path, line=like.line)
                    for each, like in zip(trace.calls, estimate.calls, strict=True)),
        steps=tuple(replace(each, peak_bytes=like.peak_bytes, other_bytes=like.other_bytes)
                    for each, like in zip(trace.steps, estimate.steps, strict=True)))
