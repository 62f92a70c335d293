"""A thread that makes one direction's copies, one after the other.

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

#: Makes one copy: the space in the spill file, and the near side, an array or what holds one.
Copy = Callable[[Space, Any], None]


class CopyTask:
    """One copy between `space` and `near`, which is held until the thread takes it; `after` must end well before."""

    __slots__ = ('_handed_over', 'after', 'space', 'transfer')

    def __init__(self, space: Space, near: Any, transfer: HostTransfer, after: HostTransfer | None) -> None:
        self.space = space
        self._handed_over = [near]
        self.transfer = transfer
        self.after = after

    def take(self) -> Any:
        """Returns the near side and forgets it."""
        return self._handed_over.pop()


class SwapThread:
    """A daemon thread with a queue, started by the first task, or before.

    Args:
        name: Of the thread.
        copy: Makes one copy; raises SpillError if it fails.
        ended: Called after each task, well or not, before its transfer is done.
        stack_bytes: Of the thread.
    """

    def __init__(self, name: str, copy: Copy, ended: Callable[[Space], None], stack_bytes: int = STACK_BYTES) -> None:
        self._name = name
        self._stack_bytes = stack_bytes
        self._copy = copy
        self._ended = ended
        self._tasks: queue.SimpleQueue[CopyTask | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._may_run = False  # whether a thread runs or, after an interrupt, may still begin
        self._stopped = self._is_stuck = False
        self._launching = threading.Lock()  # never taken by the main thread, hence never left taken by an interrupt
        self._last = HostTransfer(0)  # ends with the thread

    def submit(self, task: CopyTask) -> None:
        """Queues a task; first in, first out.

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
            self._thread.join()
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
        while True:
            task = self._tasks.get()
            if task is None:
                self._last.end(0.0, None)
                return
            self._perform(task)

    def _perform(self, task: CopyTask) -> None:
        """Makes the copy and reports it. Everything that refers to the array lives in ``_attempt``'s frame."""
        failure = None if task.after is None else _failure_of(task.after)
        started = time.perf_counter()
        if failure is None:
            failure = self._attempt(task)
        else:
            task.take()
        self._ended(task.space)
        task.transfer.end(time.perf_counter() - started, failure)

    def _attempt(self, task: CopyTask) -> SpillError | None:
        """Returns None, or the failure without its traceback, whose frames would keep the array alive."""
        try:
            self._copy(task.space, task.take())
        except SpillError as error:
            return SpillError(*error.args)
        except MemoryError:  # no traceback either: there is no memory to write it with
            return SpillError(f'no memory for a copy in the thread {self._name!r}; raise the limit of memory')
        except BaseException:  # a fault of ours: the caller must not wait for ever
            return SpillError(f'a fault in the thread {self._name!r}; please report it:\n{traceback.format_exc()}')
        return None


def _failure_of(transfer: HostTransfer) -> SpillError | None:
    """Waits for the transfer; returns how it failed, or None."""
    try:
        transfer.wait()
    except SpillError as error:
        return SpillError(*error.args)
    return None
