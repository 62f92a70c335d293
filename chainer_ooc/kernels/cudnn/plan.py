"""A cuDNN graph with the kernel that was chosen for it: made once, run many times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from chainer_ooc.kernels.cudnn.operations import BatchNormalization, Convolution, Operation, Port
from chainer_ooc.kernels.cudnn.settings import PlanSettings

#: Kernels of the Python package itself: for newer GPUs only, compiled for seconds, and without the notes below.
_PYTHON_ENGINES = ['frost', 'norm_fprop', 'norm_bprop']


class ExecutionPlan:
    """How one operation runs.

    Attributes:
        workspace_bytes: scratch of one run.
    """

    def __init__(self, graph: Any, scalars: dict[int, np.ndarray[Any, np.dtype[np.float32]]]) -> None:
        self._graph = graph
        self._scalars = scalars  # read on the host at each run
        self._constants = {port: int(value.ctypes.data) for port, value in scalars.items()}
        self.workspace_bytes = int(graph.get_workspace_size())

    def run(self, device: Any, handle: Any, arrays: Mapping[Port, Any]) -> None:
        """Queues the kernels on the handle's stream.

        Args:
            device: where the arrays are; see `CupyDevice`.
            handle: cuDNN's, of the calling thread and the arrays' device.
            arrays: the tensors that the operation names, laid out as it says.
        """
        addresses = {int(port): device.address(array) for port, array in arrays.items()}
        scratch = device.scratch(self.workspace_bytes) if self.workspace_bytes else None
        self._graph.execute({**addresses, **self._constants},
                            None if scratch is None else device.address(scratch), handle=handle)


def make(library: Any, handle: Any, operation: Operation, settings: PlanSettings) -> ExecutionPlan | None:
    """Returns a plan for `operation` under `settings`, or None where cuDNN has none.

    Raises:
        RuntimeError: the device failed, or cuDNN did.
    """
    if isinstance(operation, BatchNormalization):
        return _batch_normalization(library, handle, operation, settings)
    return _convolution(library, handle, operation, settings)


def _convolution(library: Any, handle: Any, operation: Convolution, settings: PlanSettings) -> ExecutionPlan | None:
    """The first of cuDNN's suggestions that keeps to the settings, which is the one that cuDNN thinks fastest.

    Where none is within the workspace limit, cuDNN's fallbacks are asked without one: they take little (some hundred
    bytes mostly), and what Chainer would do instead, im2col, takes more than any.
    """
    modes = library.heur_mode
    tuned = [modes.B, modes.A] if settings.thorough else [modes.A]
    within_bytes = _limit_bytes(operation, settings)
    for candidates, limit_bytes in (([*tuned, modes.FALLBACK], within_bytes), ([modes.FALLBACK], None)):
        try:
            return ExecutionPlan(_planned(library, handle, operation, settings, candidates, limit_bytes), {})
        except library.cudnnGraphNotSupportedError:
            continue
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
