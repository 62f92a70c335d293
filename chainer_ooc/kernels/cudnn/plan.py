"""Which of cuDNN's engines serves an operation under what settings."""

from __future__ import annotations

from typing import Any

import numpy as np

from chainer_ooc.kernels.cudnn.execution import ExecutionPlan, TimedPlan
from chainer_ooc.kernels.cudnn.operations import BatchNormalization, Convolution, Operation, Port
from chainer_ooc.kernels.cudnn.settings import PlanSettings

#: Kernels of the Python package itself: for newer GPUs only, compiled for seconds, and without the notes below.
_PYTHON_ENGINES = ['frost', 'norm_fprop', 'norm_bprop']


def make(library: Any, handle: Any, operation: Operation, settings: PlanSettings) -> ExecutionPlan | None:
    """Returns a plan for `operation` under `settings`, or None where cuDNN has none.

    Raises:
        RuntimeError: the device failed, or cuDNN did.
    """
    if isinstance(operation, BatchNormalization):
        return _batch_normalization(library, handle, operation, settings)
    return _convolution(library, handle, operation, settings)


def _convolution(library: Any, handle: Any, operation: Convolution, settings: PlanSettings) -> ExecutionPlan | None:
    """The first of cuDNN's suggestions that keeps to the settings, which it thinks is fastest, or the fastest by time.

    Where none is within the workspace limit, cuDNN's fallbacks are asked without one: they take little (some hundred
    bytes mostly), and what Chainer would do instead, im2col, takes more than any.
    """
    modes = library.heur_mode
    suggestions = [modes.A, modes.B] if settings.timed else [modes.A]
    within_bytes = _limit_bytes(operation, settings)
    for candidates, limit_bytes in (([*suggestions, modes.FALLBACK], within_bytes), ([modes.FALLBACK], None)):
        try:
            graph = _planned(library, handle, operation, settings, candidates, limit_bytes)
        except library.cudnnGraphNotSupportedError:
            continue
        return TimedPlan(library, graph, (operation, settings)) if settings.timed else ExecutionPlan(graph, {})
    return None


def _batch_normalization(
        library: Any, handle: Any, operation: BatchNormalization, settings: PlanSettings) -> ExecutionPlan | None:
    """The first suggestion, if it is within the limit: the others need the same, and each is compiled to be asked."""
    limit_bytes = _limit_bytes(operation, settings)
    if operation.is_hopeless(limit_bytes):
        return None
    modes = library.heur_mode
    try:
        graph = _planned(library, handle, operation, settings, [modes.A, modes.FALLBACK], None)
    except library.cudnnGraphNotSupportedError:
        return None
    plan = ExecutionPlan(graph, _scalars(operation))
    return plan if plan.workspace_bytes <= limit_bytes else None


def _limit_bytes(operation: Operation, settings: PlanSettings) -> int:
    return operation.usual_workspace_bytes() if settings.workspace_bytes is None else settings.workspace_bytes


def _scalars(operation: BatchNormalization) -> dict[int, np.ndarray[Any, np.dtype[np.float32]]]:
    if operation.eps is None:
        return {}
    return {int(port): np.array([value], np.float32)
            for port, value in ((Port.EPSILON, operation.eps), (Port.MOMENTUM, 1.0))}


def _planned(library: Any, handle: Any, operation: Operation, settings: PlanSettings, modes: list[Any],
             limit_bytes: int | None) -> Any:
    graph = suggested(library, operation, settings, modes, handle=handle)
    if limit_bytes is not None:
        graph.deselect_workspace_greater_than(limit_bytes)
    graph.check_support()
    graph.build_plans()
    return graph


def suggested(library: Any, operation: Operation, settings: PlanSettings, modes: list[Any], **device: Any) -> Any:
    """Returns the operation's graph with cuDNN's engines in order, of those that the settings allow.

    Their workspaces are not looked at. `device` says for which one: ``handle``, or ``device_property``.
    """
    graph = library.pygraph(
        name='chainer', io_data_type=library.data_type.FLOAT, intermediate_data_type=library.data_type.FLOAT,
        compute_data_type=library.data_type.FLOAT, **device)
    operation.describe(library, graph)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans(modes)
    graph.deselect_engines(_PYTHON_ENGINES)
    graph.deselect_numeric_notes(_refused_notes(library, operation, settings))
    return graph


def _refused_notes(library: Any, operation: Operation, settings: PlanSettings) -> list[Any]:
    """What cuDNN says of an engine that rules it out.

    TF32 has no note of its own: an engine for float32 that uses tensor cores rounds its factors to it.
    """
    notes = library.numerical_note
    refused = []
    if settings.deterministic:
        refused.append(notes.NONDETERMINISTIC)
    if not settings.tensor_cores:
        refused.append(notes.TENSOR_CORE)
    if operation.dtype == 'float32':
        refused.append(notes.DOWN_CONVERT_INPUTS)
    return refused
