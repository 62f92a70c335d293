"""A thread that runs one task after the other, such as the copies of one direction.

Two such threads serve a backend, so that reading and writing run beside each other and beside the computation; within
``pwritev`` and ``preadv`` the interpreter's lock is free. ``concurrent.futures`` is of no use here: its work item holds
the array, which then cannot be freed, until the worker fetches the next one. Here the array is handed over in a list of
one element, which the thread empties, and the only frame that holds it has returned before the transfer counts as done
(C5).
"""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from chainer_ooc.backends.spill.starting import start_beside
from chainer_ooc.backends.spill.transfer import HostTransfer, Space
from chainer_ooc.errors import SpillError

STACK_BYTES = 256 << 10
#: For threads that call a device's driver, which knows nothing of small stacks.
DRIVER_STACK_BYTES = 8 << 20

#: A thread that has not begun after so long will not.
LONGEST_START_SECONDS = 10.0

#: One whose work is over is waited for so long: an interrupt may have left the lock taken that Python ends it with.
LONGEST_END_SECONDS = 2.0


class CopyTask:
    """One copy between a space of the spill file and near memory, made by the thread that calls it.

    Args:
        copy: makes it, of the space and the near side, an array or what holds one; raises SpillError if it fails.
        ended: called with the space afterwards, well or not, before the transfer is done.
        space: its place in the file.
        near: the near side, which is held until the copy begins.
        transfer: ends with it.
        after: must end well before, or None.
    """

    __slots__ = ('_after', '_copy', '_ended', '_handed_over', '_space', '_transfer')

    def __init__(self, copy: Callable[[Space, Any], None], ended: Callable[[Space], None], space: Space, near: Any,
                 transfer: HostTransfer, after: HostTransfer | None) -> None:
        self._copy, self._ended, self._space = copy, ended, space
        self._handed_over = [near]
        self._transfer, self._after = transfer, after

    def __call__(self) -> None:
        """Makes the copy and reports it. Everything that refers to the array lives in ``_attempt``'s frame."""
        failure = None if self._after is None else self._after.outcome()
        started = time.perf_counter()
        if failure is None:
            failure = self._attempt()
        else:
            self._handed_over.clear()
        self._ended(self._space)
        self._transfer.end(time.perf_counter() - started, failure)

    def _attempt(self) -> SpillError | None:
        """Returns None, or the failure without its traceback, whose frames would keep the array alive."""
        try:
            self._copy(self._space, self._handed_over.pop())
        except SpillError as error:
            return SpillError(*error.args)
        except MemoryError:  # no traceback either: there is no memory to write it with
            return SpillError(f'no memory for a copy in the thread {_own_name()!r}; raise the limit of memory')
        except BaseException:  # a fault of ours: the caller must not wait for ever
            return SpillError(f'a fault in the thread {_own_name()!r}; please report it:\n{traceback.format_exc()}')
        return None


class SwapThread:
    """A daemon thread with a queue, started by the first task, or before."""

    def __init__(self, name: str, stack_bytes: int) -> None:
        self._name = name
        self._stack_bytes = stack_bytes
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._may_run = False  # whether a thread runs or, after an interrupt, may still begin
        self._stopped = self._is_stuck = False
        self._launching = threading.Lock()  # never taken by the main thread, hence never left taken by an interrupt
        self._last = HostTransfer(0)  # ends with the thread

    def submit(self, task: Callable[[], None]) -> None:
        """Queues a task, which raises nothing; first in, first out.

        Raises:
            SpillError: The thread cannot be started. The task is not queued.
        """
        if self._thread is None:
            self.start()
        self._tasks.put(task)

    def stop(self) -> None:
        """Waits until all queued tasks are done and the thread has ended. Idempotent.

        If this fails: a KeyboardInterrupt may pass through; call it again.
        """
        if not self._may_run:
            return
        try:
            self.start()  # after an interrupt only this tells that no thread is still to begin
        except SpillError:
            return
        self._stopped = True
        self._tasks.put(None)
        self._last.wait()  # a join that is interrupted takes the thread for ended (Python 3.11 and 3.12)
        if self._thread is not None:
            self._thread.join(LONGEST_END_SECONDS)
        self._may_run = False

    def start(self) -> None:
        """Starts the thread unless it runs; after an interrupt it may be called again.

        Raises:
            SpillError: The thread cannot be started, or does not begin.
        """
        if self._thread is not None:
            return
        if self._is_stuck:
            raise self._no_thread('it did not begin before')
        self._may_run = True
        try:
            self._is_stuck = not start_beside(self._launch, self._stack_bytes, LONGEST_START_SECONDS)
        except (MemoryError, RuntimeError) as error:
            self._may_run = False
            raise self._no_thread(error) from error
        if self._is_stuck:  # it may begin after all
            raise self._no_thread(f'it did not begin within {LONGEST_START_SECONDS:g} s')

    def _launch(self) -> None:
        with self._launching:
            if self._thread is None and not self._stopped:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread

    def _no_thread(self, why: Exception | str) -> SpillError:
        said = str(why) or type(why).__name__
        return SpillError(f'cannot start the thread {self._name!r}: {said}; raise the limit of processes (ulimit -u) '
                          'or of memory')

    def _run(self) -> None:
        try:
            while (task := self._tasks.get()) is not None:
                task()
        finally:
            self._last.end(0.0, None)


def _own_name() -> str:
    return threading.current_thread().name
