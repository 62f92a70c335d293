"""A recorded iteration as it may be for inputs of another size: an estimate for a graph that was not recorded.

No figure shall be smaller than a recording would have it. For larger inputs, bytes and times grow with the first call's
input; what does not depend on it is then too large. For smaller ones they stay as they were recorded.
"""

from __future__ import annotations

import math
from dataclasses import replace

from chainer_ooc.trace.model import Trace


def scale(trace: Trace, factor: float) -> Trace:
    """Returns the iteration with all bytes and times multiplied by `factor`, 1 or more."""
    def grown(nbytes: int) -> int:
        return math.ceil(nbytes * factor)

    return replace(
        trace, others_bytes=grown(trace.others_bytes),
        maps=tuple(replace(each, nbytes=grown(each.nbytes)) for each in trace.maps),
        calls=tuple(replace(each, peak_bytes=grown(each.peak_bytes), seconds=each.seconds * factor,
                            other_bytes=grown(each.other_bytes)) for each in trace.calls),
        steps=tuple(replace(each, peak_bytes=grown(each.peak_bytes), seconds=each.seconds * factor,
                            other_bytes=grown(each.other_bytes)) for each in trace.steps))


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
