"""A cuDNN graph with the engine that was chosen for it, or that is chosen by time: made once, run many times."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from chainer_ooc.backends.cuda import preparations
from chainer_ooc.kernels.cudnn import launch
from chainer_ooc.kernels.cudnn.launch import Launch
from chainer_ooc.kernels.cudnn.operations import Operation, Port
from chainer_ooc.kernels.cudnn.settings import PlanSettings

#: Engines of one operation that are timed at most, in the order of cuDNN's heuristics. Building one takes some ten
#: milliseconds, and those of a network are built for each of its convolutions.
MOST_TIMED = 8
#: Runs of an engine that are timed; of one that the first shows to be slower by `HOPELESS` times, no more.
TIMED_RUNS = 3
HOPELESS = 1.5

_LOG = logging.getLogger('chainer_ooc')


class ExecutionPlan:
    """How one operation runs.

    Attributes:
        workspace_bytes: scratch of one run.
    """

    def __init__(self, graph: Any, scalars: dict[int, np.ndarray[Any, np.dtype[np.float32]]]) -> None:
        self._graph = graph
        self._scalars = scalars  # read on the host at each run
        self._constants = {port: int(value.ctypes.data) for port, value in scalars.items()}
        self._launch: Launch | None = None
        self._has_run = False
        self.workspace_bytes = int(graph.get_workspace_size())

    def run(self, device: Any, handle: Any, addresses: Mapping[Port, int]) -> None:
        """Queues the kernels on the handle's stream.

        Args:
            device: where the arrays are; see `CupyDevice`.
            handle: cuDNN's, of the calling thread and the arrays' device.
            addresses: of the arrays that the operation names, laid out as it says.
        """
        scratch, at = device.scratch(self.workspace_bytes) if self.workspace_bytes else (None, None)
        if self._launch is None:
            self._execute(handle, addresses, at)
        else:
            self._launch.run(addresses, at, handle)
        del scratch  # not before the kernel is queued

    def _execute(self, handle: Any, addresses: Mapping[Port, int], scratch_address: int | None) -> None:
        """The public way, which the first run takes; see `launch`."""
        pack = {**{int(port): address for port, address in addresses.items()}, **self._constants}
        self._graph.execute(pack, scratch_address, handle=handle)
        if not self._has_run:
            self._has_run = True
            self._launch = launch.direct(self._graph, handle, sorted(pack), self._constants)


class TimedPlan(ExecutionPlan):
    """Runs with the engine that took the least time, once the first arrays have come; it is timed with these.

    Which that is is kept for the process: plans that other threads make, or that are made again, take the same, so that
    a function has the same bits whenever it runs again.

    Args:
        library: the module of NVIDIA's Python package.
        graph: of the operation, with the engines that its settings allow.
        asked: the operation and its settings.
    """

    def __init__(self, library: Any, graph: Any, asked: tuple[Operation, PlanSettings]) -> None:
        super().__init__(graph, {})
        self._library = library
        self._asked = asked
        self._is_chosen = False

    def run(self, device: Any, handle: Any, addresses: Mapping[Port, int]) -> None:
        """Queues the kernels on the handle's stream; the first time it waits for the device while it times engines.

        Raises:
            RuntimeError: no engine ran.
            MemoryError: none had the scratch that it needs.
        """
        if not self._is_chosen:
            self._choose(device, handle, addresses)
        super().run(device, handle, addresses)

    def _choose(self, device: Any, handle: Any, addresses: Mapping[Port, int]) -> None:
        preparations.note()
        key = (device.number(), *self._asked)
        name = _fastest.get(key)
        if name is None:
            name = _fastest.setdefault(key, self._name_of_fastest(device, handle, addresses))
        self._select(self._names().index(name))
        self._is_chosen = True

    def _name_of_fastest(self, device: Any, handle: Any, addresses: Mapping[Port, int]) -> str:
        seconds: dict[str, float] = {}
        failure: Exception | None = None
        for index, name in enumerate(self._names()):
            if name in seconds or len(seconds) == MOST_TIMED:
                continue
            try:
                self._select(index)
                seconds[name] = self._seconds(device, handle, addresses, min(seconds.values(), default=math.inf))
            except self._library.cudnnGraphNotSupportedError:  # the settings rule it out, or it cannot be built here
                continue
            except (RuntimeError, MemoryError) as error:
                failure = error
        if not seconds:
            raise failure or RuntimeError(f'no engine of cuDNN runs {self._asked[0]}')
        _LOG.debug('cuDNN engines for %s, seconds: %s', self._asked[0], seconds)
        return min(seconds, key=seconds.__getitem__)

    def _seconds(self, device: Any, handle: Any, addresses: Mapping[Port, int], best_seconds: float) -> float:
        """The fewest of a few runs, after one that is not timed: it may load the kernel."""
        run = functools.partial(super().run, device, handle, addresses)
        run()
        seconds = device.seconds_of(run)
        for _ in range(TIMED_RUNS - 1 if seconds < HOPELESS * best_seconds else 0):
            seconds = min(seconds, device.seconds_of(run))
        return float(seconds)

    def _names(self) -> list[str]:
        return [self._graph.get_plan_name_at_index(index) for index in range(self._graph.get_execution_plan_count())]

    def _select(self, index: int) -> None:
        self._graph.build_plan_at_index(index)
        self._launch, self._has_run = None, False
        self.workspace_bytes = int(self._graph.get_workspace_size())


#: The name of the fastest engine by device, operation and settings.
_fastest: dict[tuple[int, Operation, PlanSettings], str] = {}
