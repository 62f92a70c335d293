"""One thread's cuDNN on one device: its handle, and the plans that it has made.

cuDNN allows one thread at a time on a handle, so each thread has its own, and the plans with it: nothing here needs a
lock. What a thread has when it ends the next one takes over: a program may make a thread for each iteration, and plans
take seconds. `forget` lets go of them.

Source: PyTorch's pool of handles (aten/src/ATen/cuda/detail/DeviceThreadHandles.h).
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

from chainer_ooc.backends.cuda import preparations
from chainer_ooc.kernels.cudnn import library, plan
from chainer_ooc.kernels.cudnn.execution import ExecutionPlan
from chainer_ooc.kernels.cudnn.operations import Operation, Port, Shape
from chainer_ooc.kernels.cudnn.settings import PlanSettings
from chainer_ooc.warning import warn

#: Plans of one handle; ResNet-152 takes some 100. A plan that is used again after it went is made again.
MOST_PLANS = 1024

_LOG = logging.getLogger('chainer_ooc')
_of_thread = threading.local()
#: Those of threads that have ended, by device.
_idle: dict[int, deque[Handle]] = defaultdict(deque)


class CupyDevice:
    """The current GPU of the calling thread, in the few CuPy calls that running a plan takes; tests put a host here."""

    def number(self) -> int:
        """Returns the number of the current device."""
        import cupy

        return int(cupy.cuda.runtime.getDevice())

    def stream(self) -> int:
        """Returns the address of the stream that the calling thread computes on."""
        import cupy

        return int(cupy.cuda.get_current_stream().ptr)

    def address(self, array: Any) -> int:
        """Returns where the first element of `array` is on the device."""
        return int(array.data.ptr)

    def scratch(self, nbytes: int) -> tuple[Any, int]:
        """Returns `nbytes` of device memory from CuPy's allocator, so that it counts in the budget, and its address.

        The memory may go back as soon as the kernel is queued: what CuPy hands out next is used on the same stream.
        """
        import cupy

        memory = cupy.cuda.alloc(nbytes)
        return memory, int(memory.ptr)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Returns a new array from CuPy's allocator; its content is undefined."""
        import cupy

        return cupy.empty(shape, dtype)

    def seconds_of(self, call: Callable[[], object]) -> float:
        """Returns how long the device takes for what `call` queues on the thread's stream, and waits for it."""
        import cupy

        began, over = cupy.cuda.Event(), cupy.cuda.Event()
        began.record()
        call()
        over.record()
        over.synchronize()
        return float(cupy.cuda.get_elapsed_time(began, over)) / 1000


_DEVICE = CupyDevice()


class Answer(NamedTuple):
    """How cuDNN runs an operation under these settings: its plan, or None where cuDNN has no kernel."""

    operation: Operation
    settings: PlanSettings
    plan: ExecutionPlan | None


class Handle:
    """A handle, and the least recently used plans of it.

    A call asks by what it was called with (`recall`), which costs little, and describes its operation only where that
    is not known (`answer`).

    Args:
        cudnn: the module of NVIDIA's Python package.
        device: where arrays are; see `CupyDevice`.
    """

    def __init__(self, cudnn: Any, device: Any) -> None:
        self._cudnn = cudnn
        self._device = device
        self._process = os.getpid()
        self._handle = cudnn.create_handle()
        self._stream: int | None = None
        self._answers: dict[Hashable, Answer] = {}  # by calls; the one that was last asked for is the last

    def find(self, operation: Operation, settings: PlanSettings) -> ExecutionPlan | None:
        """Returns the plan for `operation` under `settings`, made at the first call; None where cuDNN has none."""
        call = operation, settings
        return (self.recall(call) or self.answer(call, operation, settings)).plan

    def recall(self, call: Hashable) -> Answer | None:
        """Returns what was said of a call, or None where that is not known (any more)."""
        answer = self._answers.pop(call, None)
        if answer is not None:
            self._answers[call] = answer
        return answer

    def answer(self, call: Hashable, operation: Operation, settings: PlanSettings) -> Answer:
        """Makes a plan, and keeps it for the next `recall`.

        Args:
            call: equal only for calls with the same operation and settings.
            operation: what it computes.
            settings: that it is done under.
        """
        answer = self._answers[call] = Answer(operation, settings, self._make(operation, settings))
        if len(self._answers) > MOST_PLANS:
            del self._answers[next(iter(self._answers))]
        return answer

    def run(self, found: ExecutionPlan, arrays: Mapping[Port, Any]) -> None:
        """Queues a plan on the stream that the thread computes on now."""
        self.launch(found, {port: self._device.address(array) for port, array in arrays.items()})

    def launch(self, found: ExecutionPlan, addresses: Mapping[Port, int]) -> None:
        """As `run`, by where the arrays are; the caller keeps them until it returns."""
        self._follow()
        found.run(self._device, self._handle, addresses)

    def empty(self, shape: Shape, dtype: Any) -> Any:
        """Returns a new array on the device; its content is undefined."""
        return self._device.empty(shape, dtype)

    def empty_like(self, array: Any) -> Any:
        """Returns a new array of the shape and dtype of `array`."""
        return self._device.empty(array.shape, array.dtype)

    def asked(self) -> list[tuple[Operation, PlanSettings, int | None]]:
        """Returns what plans were asked for, and the bytes of scratch of each; None where cuDNN has none.

        The one that was last asked for is the last.
        """
        return [(operation, settings, None if plan is None else plan.workspace_bytes)
                for operation, settings, plan in self._answers.values()]

    def close(self) -> None:
        """Drops the plans and the handle."""
        self._answers.clear()
        handle, self._handle = self._handle, None
        if handle is not None and self._process == os.getpid():  # of a forked child's parent it is the parent's
            self._cudnn.destroy_handle(handle)

    def rest(self) -> None:
        """Its thread has ended; another one has another stream, if perhaps at the same address."""
        self._stream = None

    def __del__(self) -> None:
        if not sys.is_finalizing() and hasattr(self, '_answers'):  # the package itself lets go of no handle
            self.close()

    def _follow(self) -> None:
        """The handle's stream is the thread's."""
        stream = self._device.stream()
        if stream != self._stream:
            self._cudnn.set_stream(handle=self._handle, stream=stream)
            self._stream = stream

    def _make(self, operation: Operation, settings: PlanSettings) -> ExecutionPlan | None:
        preparations.note()
        self._follow()
        try:
            made = plan.make(self._cudnn, self._handle, operation, settings)
        except (RuntimeError, ValueError) as error:
            warn(f'cuDNN failed to plan {operation} ({type(error).__name__}: {error}); it runs on Chainer\'s own '
                 'kernels, which may need several times the memory of its arrays', RuntimeWarning)
            return None
        chosen = 'none' if made is None else f'{made.workspace_bytes} bytes of scratch'
        _LOG.debug('cuDNN plan for %s under %s: %s', operation, settings, chosen)
        return made


class _Handles(dict[int, Handle | None]):
    """A thread's handles by device, None where there can be none. When the thread ends they are idle."""

    def __del__(self) -> None:
        if not sys.is_finalizing():
            for number, handle in self.items():
                if handle is not None:
                    handle.rest()
                    _idle[number].append(handle)


def current() -> Handle | None:
    """Returns the calling thread's handle on its current device, or None where cuDNN cannot be used."""
    cudnn = library.load()
    if cudnn is None:
        return None
    try:
        handles: _Handles = _of_thread.handles
    except AttributeError:
        handles = _of_thread.handles = _Handles()
    number = _DEVICE.number()
    if number not in handles:
        try:
            handles[number] = _idle[number].pop()
        except IndexError:
            handles[number] = _opened(cudnn, _DEVICE)
    return handles[number]


def _opened(cudnn: Any, device: CupyDevice) -> Handle | None:
    try:
        return Handle(cudnn, device)
    except RuntimeError as error:  # such as a library that is too new for the driver
        library.warn_unusable(error)
        return None


def asked() -> list[tuple[Operation, PlanSettings, int | None]]:
    """Returns `Handle.asked` of the calling thread's handles; it opens none."""
    handles = _of_thread.__dict__.get('handles', {}).values()
    return [each for handle in handles if handle is not None for each in handle.asked()]


def forget() -> None:
    """Drops the handles and plans of the calling thread, and of those that have ended."""
    _of_thread.__dict__.pop('handles', None)
    for idle in [*_idle.values()]:
        while idle:
            idle.pop().close()
