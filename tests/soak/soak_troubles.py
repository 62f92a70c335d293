"""What goes wrong while an iteration of the soak runs, and how it looks to the program.

A trouble is a context manager around an iteration. An exception that it explains is one that the program may get: the
iteration is then repeated, and must give the same bits. Everything else is a finding.
"""
from __future__ import annotations

import errno
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import chainer

import chainer_ooc
from chainer_ooc.errors import OocError, SpillError

CHILD_SECONDS = 60.0


class PlantedError(Exception):
    """What a hook of the soak raises."""


class Trouble:
    """Nothing goes wrong.

    Attributes:
        has_happened: whether it had its effect; a drawn moment may be after the iteration.
    """

    explained: tuple[type[BaseException], ...] = ()

    def __init__(self) -> None:
        self.has_happened = False

    def explains(self, error: BaseException) -> bool:
        """Whether the program may get this exception because of the trouble."""
        return self.has_happened and isinstance(error, self.explained)

    def aftermath(self) -> Trouble:
        """What is left of it when the iteration is repeated: copies of other sessions may have failed as well."""
        after = Trouble()
        after.has_happened = True
        after.explained = tuple(each for each in self.explained if each is SpillError)
        return after

    def between(self, loss: chainer.Variable) -> None:
        """Is called between forward and backward."""

    def __enter__(self) -> Trouble:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


class Interrupt(Trouble):
    """Another thread interrupts the main one, as Ctrl-C does.

    Args:
        seconds: after which, from the beginning of the iteration on.
    """

    explained = (KeyboardInterrupt,)

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._is_over = True
        self._seconds = seconds

    def _fire(self) -> None:
        with self._lock:
            if not self._is_over:
                self.has_happened = True
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    def __enter__(self) -> Trouble:
        self._is_over = False
        self._timer = threading.Timer(self._seconds, self._fire)
        # A process that was started in the background ignores interrupts.
        self._handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        self._timer.start()
        return self

    def __exit__(self, *exception: object) -> None:
        while True:  # an interrupt may come in here, too, as long as the timer may fire
            try:
                with self._lock:
                    self._is_over = True
                self._timer.cancel()
                self._timer.join()
                time.sleep(0)
                signal.signal(signal.SIGINT, self._handler)
                return
            except KeyboardInterrupt:
                if not self.has_happened:
                    raise


class HookError(Trouble):
    """A function hook raises at a call or at a step of backward.

    Args:
        number: of the call or step, from 0 on.
        backward: whether steps are counted.
    """

    explained = (PlantedError,)

    def __init__(self, number: int, backward: bool) -> None:
        super().__init__()
        self._left, self._moment = number, 'backward_preprocess' if backward else 'forward_postprocess'
        self._hook = chainer.FunctionHook()
        self._hook.name = 'soak'
        setattr(self._hook, self._moment, self._count)

    def _count(self, function: Any, *arguments: Any) -> None:
        self._left -= 1
        if self._left < 0 and not self.has_happened:
            self.has_happened = True
            raise PlantedError(f'{self._moment} of {function.label}')

    def __enter__(self) -> Trouble:
        self._hook.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._hook.__exit__(*exception)


class FileSizeLimit(Trouble):
    """No file of the process may grow beyond so many bytes (RLIMIT_FSIZE): the disk is full for it.

    Args:
        nbytes: the limit.
    """

    explained = (SpillError,)

    def __init__(self, nbytes: int) -> None:
        super().__init__()
        self.has_happened = True
        self._nbytes = nbytes
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def __enter__(self) -> Trouble:
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._nbytes, self._before[1]))
        return self

    def __exit__(self, *exception: object) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._before)


class SmallDisk(Trouble):
    """The file system of the spill file is full up to so many bytes.

    Args:
        folder: where a file system of our own is mounted.
        nbytes: what is left.
    """

    explained = (SpillError,)
    large_bytes = 512 << 20

    def __init__(self, folder: str, nbytes: int) -> None:
        super().__init__()
        self.has_happened = True
        self._folder, self._nbytes = folder, nbytes

    def __enter__(self) -> Trouble:
        chainer_ooc.reset()  # a spill file that has grown already would go on in the space that it has
        at = os.statvfs(self._folder)
        used_bytes = (at.f_blocks - at.f_bfree) * at.f_frsize
        resize(self._folder, used_bytes + self._nbytes)
        return self

    def __exit__(self, *exception: object) -> None:
        resize(self._folder, self.large_bytes)

    @classmethod
    def mount(cls, folder: str) -> bool:
        """Mounts a file system in memory; False where that is not allowed."""
        return _runs('mount', '-t', 'tmpfs', '-o', f'size={cls.large_bytes}', 'tmpfs', folder)

    @staticmethod
    def unmount(folder: str) -> None:
        """Takes it away again."""
        _runs('umount', '--lazy', folder)


def resize(folder: str, nbytes: int) -> None:
    """Gives the file system in memory another size."""
    if not _runs('mount', '-o', f'remount,size={max(4096, nbytes)}', folder):
        raise RuntimeError(f'the file system {folder!r} could not be resized to {nbytes} bytes')


def _runs(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


class BadDisk(Trouble):
    """Calls that write or read fail now and then, or move a part only, which they may.

    Args:
        seed: which of the calls.
        share: of them.
        way: 'write error', 'read error' or 'part'.
    """

    explained = (SpillError,)

    def __init__(self, seed: int, share: float, way: str) -> None:
        super().__init__()
        self._random, self._share, self._way = random.Random(seed), share, way
        self._name = 'preadv' if way == 'read error' else 'pwritev'
        self._original = getattr(os, self._name)
        self._patch = mock.patch.object(os, self._name, self._call)

    def _call(self, descriptor: int, buffers: list[memoryview], offset: int, *flags: int) -> int:
        if self._random.random() >= self._share:
            return int(self._original(descriptor, buffers, offset, *flags))
        if self._way == 'part':
            return int(self._original(descriptor, [buffers[0][:max(1, buffers[0].nbytes // 3)]], offset, *flags))
        self.has_happened = True
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def __enter__(self) -> Trouble:
        self._patch.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._patch.stop()


class Reset(Trouble):
    """The program calls chainer_ooc.reset() between forward and backward."""

    def between(self, loss: chainer.Variable) -> None:
        if not self.has_happened:
            self.has_happened = True
            chainer_ooc.reset()


class Fork(Trouble):
    """A child is forked between forward and backward, does something of its own, and ends; so does the parent.

    Args:
        act: what the child does with the loss; it returns what is wrong, or nothing.
    """

    def __init__(self, act: Callable[[chainer.Variable], str]) -> None:
        super().__init__()
        self._act = act

    def between(self, loss: chainer.Variable) -> None:
        if self.has_happened:
            return
        self.has_happened = True
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            self._be_the_child(loss, writing)
        os.close(writing)
        with open(reading, 'rb') as stream:
            status = _wait_for(child)
            wrong = stream.read().decode()
        if status or wrong:
            raise ChildError(f'the forked child ended with status {status}: {wrong or "it said nothing"}')

    def _be_the_child(self, loss: chainer.Variable, writing: int) -> None:
        status = 1
        try:
            wrong = self._act(loss)
            status = 0
        except BaseException:
            wrong = traceback.format_exc()
        finally:
            os.write(writing, wrong.encode()[-4000:])  # less than a pipe takes, as nobody reads until the end
            os._exit(status)


class ChildError(Exception):
    """A forked child did not do what it should."""


def finish_in_child(loss: chainer.Variable) -> str:
    """Goes on with backward in the child, which may be refused; then everything is reset, which may not."""
    try:
        loss.backward()
    except OocError:
        pass
    chainer_ooc.reset()
    return ''


def _wait_for(child: int) -> int:
    until = time.monotonic() + CHILD_SECONDS
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise ChildError(f'the forked child was not done after {CHILD_SECONDS:g} s')


def unraisable(counts: dict[str, int]) -> Callable[[Any], None]:
    """A hook that counts what Python cannot raise, such as an interrupt within a weak reference's callback."""
    def count(given: Any) -> None:
        if given.exc_type is not KeyboardInterrupt:
            sys.__unraisablehook__(given)
        name = f'unraisable {given.exc_type.__name__}'
        counts[name] = counts.get(name, 0) + 1
    return count


TROUBLES: Mapping[str, float] = {
    'interrupt': 4, 'hook': 2, 'file size': 2, 'small disk': 2, 'write error': 1, 'read error': 1, 'part': 1,
    'reset': 1, 'fork and train': 1, 'fork and finish': 1, 'fork and leave': 1}
