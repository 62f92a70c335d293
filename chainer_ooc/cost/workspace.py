"""An iteration as its memory would be with ``ooc_workspace``, from one that was recorded without.

What a call allocates beside the arrays that it makes is scratch. Of the functions that the setting bounds
(`kernels.tiled`) the scratch is taken to be the workspace where it was more. One tile is an image or a row of it at
least, which no workspace makes smaller; that is far below the sizes that matter here, and left out. So are times: cut
calls take others, which only a run can tell.
"""

from __future__ import annotations

import re
from dataclasses import replace

from chainer_ooc.cost.analytic import made_bytes
from chainer_ooc.cost.gradients import follow_gradients
from chainer_ooc.errors import WORKSPACE
from chainer_ooc.quantities import parse_bytes
from chainer_ooc.trace import Trace

#: What refusals name, in bytes.
WORKSPACE_BYTES = parse_bytes(WORKSPACE)
#: The functions that the setting bounds, by the names of their classes.
_BOUNDED = re.compile('convolution|pooling|upsampling|batchnormalization|localresponsenormalization', re.IGNORECASE)


def could_have(trace: Trace) -> bool:
    """Whether the setting would change anything: on the host, for what was recorded without one as small.

    A trace without the forms of its arrays does not tell what is scratch.
    """
    is_larger = trace.workspace_bytes is None or trace.workspace_bytes > WORKSPACE_BYTES
    return trace.device == 'host' and is_larger and all(
        len(each.arguments) == len(each.inputs) for each in trace.calls)


def with_workspace(trace: Trace) -> Trace:
    """Returns an iteration, recorded on the host, with as much scratch as the workspace leaves to each call."""
    def bounded(label: str, peak_bytes: int, made: int) -> int:
        if not _BOUNDED.search(label):
            return peak_bytes
        return min(peak_bytes, made + WORKSPACE_BYTES)

    made_in_backward = follow_gradients(trace, adds_in_place=False).made_bytes
    calls = tuple(replace(each, peak_bytes=bounded(each.label, each.peak_bytes, made_bytes(trace, each)))
                  for each in trace.calls)
    steps = tuple(replace(each, peak_bytes=bounded(trace.calls[each.call].label, each.peak_bytes, made))
                  if each.call >= 0 else each for each, made in zip(trace.steps, made_in_backward, strict=True))
    return replace(trace, calls=calls, steps=steps, workspace_bytes=WORKSPACE_BYTES)
