"""From the rows of an iteration to its trace, with what the recorder cannot know: the machine and what stands on it."""

from __future__ import annotations

from dataclasses import replace

from chainer_ooc.backends.base import Backend, Bandwidth
from chainer_ooc.execute import log
from chainer_ooc.execute.memory.residency import Residency
from chainer_ooc.execute.recording.parameters import Parameters
from chainer_ooc.execute.recording.recorder import Recorder
from chainer_ooc.trace import Trace


def freeze_trace(recorder: Recorder, memory: Residency, parameters: Parameters, others_bytes: int,
                 workspace_bytes: int | None) -> Trace:
    """Makes the trace of an iteration that has ended.

    Args:
        recorder: its rows.
        memory: of the device that it ran on.
        parameters: those that it read.
        others_bytes: what gradients of others took while it ran backward.
        workspace_bytes: what one call had for scratch, or None.
    """
    beside = parameters.beside()
    trace = recorder.trace(memory.backend, memory.tally.seconds, _bandwidth(memory.backend))
    return replace(
        trace, machine=memory.backend.machine(), workspace_bytes=workspace_bytes,
        standing_forward_bytes=beside.total_bytes, standing_backward_bytes=beside.steady_bytes + others_bytes)


def _bandwidth(backend: Backend) -> Bandwidth:
    try:
        return backend.bandwidth()
    except (MemoryError, OSError) as error:
        log.logger.warning('the bandwidth of far memory could not be measured: %s', str(error))
        return Bandwidth(0.0, 0.0, 0.0)
