"""One training with Chainer's Trainer: what any Chainer program does, and the lines that make it out-of-core.

Those lines are in `use_out_of_core`; the rest, models included, would be the same without. `train` also puts up the
wall: a limit on private memory (RLIMIT_DATA) under which an array that does not fit raises MemoryError, as a small
machine or a container would. Left out: validation, learning-rate schedules, several devices.
"""
from __future__ import annotations

import contextlib
import random
import re
import resource
import sys
from collections.abc import Iterator
from typing import Any, TextIO

import chainer
import numpy
from chainer.training import extensions

from journal import Journal, parameter_digest
from models import ARCHITECTURES
from options import Options
from photographs import RandomCrops, bundled_photographs, folder_photographs

EPOCH = 12800  # crops that Chainer counts as one epoch


class OutOfMemoryError(MemoryError):
    """A training did not fit; the message is one line that says where and what to do."""


@contextlib.contextmanager
def use_out_of_core(options: Options) -> Iterator[None]:
    """Sets the config entries for the time of a training; without a policy Chainer stays as it is."""
    with contextlib.ExitStack() as stack:
        for name, value in options.config_entries.items():
            stack.enter_context(chainer.using_config(name, value))
        yield


@contextlib.contextmanager
def wall(nbytes: int | None) -> Iterator[None]:
    """Limits the private memory of this process, or does nothing for None.

    BLAS is called once before: it takes its own buffers at the first call, and ends the process if it cannot.
    """
    if nbytes is None:
        yield
        return
    square = numpy.ones((512, 512), dtype=numpy.float32)
    square.dot(square)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def train(options: Options, out: TextIO = sys.stdout) -> None:
    """Runs one training and shows its progress.

    Args:
        options: What to train and how.
        out: Where progress goes.

    Raises:
        OutOfMemoryError: The training does not fit in memory, or behind its wall.
    """
    random.seed(options.seed)
    numpy.random.seed(options.seed)
    journal = Journal(options.journal) if options.journal else None
    trainer = None
    try:
        with use_out_of_core(options), wall(options.wall_bytes):
            trainer = make_trainer(options, out, journal)
            trainer.run(show_loop_exception_msg=False)
            if journal:
                journal.end(parameter_digest(trainer.updater.get_optimizer('main').target))
    except MemoryError as error:
        finished = trainer.updater.iteration if trainer else None
        raise OutOfMemoryError(explain_memory_error(options, str(error), finished)) from error
    finally:
        if journal:
            journal.close()


def make_trainer(options: Options, out: TextIO, journal: Journal | None = None) -> chainer.training.Trainer:
    """Puts together data, model, optimizer and extensions; goes on from a snapshot where one is given."""
    architecture = ARCHITECTURES[options.arch]
    device = get_device(options.device)
    model = architecture.build()
    model.to_device(device)
    optimizer = chainer.optimizers.MomentumSGD(lr=options.learning_rate or architecture.learning_rate)
    optimizer.setup(model)
    photographs = folder_photographs(options.images) if options.images else bundled_photographs()
    crops = RandomCrops(photographs, options.crop, EPOCH, options.seed)
    iterator = chainer.iterators.SerialIterator(crops, options.images_per_iteration, shuffle=False)
    updater = chainer.training.StandardUpdater(iterator, optimizer, device=device)
    trainer = chainer.training.Trainer(updater, (options.iterations, 'iteration'), str(options.out))
    if journal:
        trainer.extend(journal)
    add_reports(trainer, options, out)
    if options.resume:
        chainer.serializers.load_npz(str(options.resume), trainer)
    return trainer


def get_device(name: str) -> Any:
    """Finds a device and makes it the current one.

    Raises:
        ValueError: There is none of this name here.
    """
    try:
        device = chainer.get_device(name)
        device.use()
    except Exception as error:  # CuPy's errors have no class where CuPy is missing
        why = str(error).strip().splitlines()[0]
        raise ValueError(f'--device {name} cannot be used: {why}; write @numpy, or a GPU as @cupy:0; `python -m '
                         'chainer_ooc doctor` tells what is missing for one') from None
    return device


def add_reports(trainer: chainer.training.Trainer, options: Options, out: TextIO) -> None:
    """Adds the snapshot, the log, the printed lines, and on a terminal the progress bar."""
    trainer.extend(RandomStream())
    if options.snapshot_every:
        trainer.extend(extensions.snapshot(), trigger=(options.snapshot_every, 'iteration'))
    trainer.extend(extensions.LogReport(trigger=(1, 'iteration')))
    shown = out if out.isatty() else WithoutControlCodes(out)
    columns = ['iteration', 'main/loss', 'main/accuracy', 'elapsed_time']
    trainer.extend(extensions.PrintReport(columns, out=shown), trigger=(1, 'iteration'))
    if out.isatty():
        trainer.extend(extensions.ProgressBar(update_interval=1, out=out))


class RandomStream(chainer.training.Extension):
    """Keeps the state of NumPy's global random stream in snapshots: dropout draws from it, so a resume needs it."""

    name = 'RandomStream'

    def __call__(self, trainer: Any) -> None:
        pass

    def serialize(self, serializer: Any) -> None:
        kind, keys, position, has_gauss, gauss = numpy.random.get_state()
        keys = serializer('keys', keys)
        position = int(serializer('position', position))
        has_gauss = int(serializer('has_gauss', has_gauss))
        gauss = float(serializer('gauss', gauss))
        numpy.random.set_state((kind, keys, position, has_gauss, gauss))


class WithoutControlCodes:
    """A text stream that drops the terminal codes that PrintReport writes, for logs and pipes."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, text: str) -> None:
        self._out.write(re.sub('\033\\[[0-9]*[A-Za-z]', '', text))

    def flush(self) -> None:
        self._out.flush()


def explain_memory_error(options: Options, why: str, finished: int | None) -> str:
    """One line for the user: what did not fit where, whether that is to be expected, and what to do.

    Args:
        options: Of the training.
        why: The error's own words.
        finished: Iterations that went through; None while the network was still being made.
    """
    when = 'while the network was made' if finished is None else f'in iteration {finished + 1}'
    where = f'a wall of {options.wall_bytes / 1e6:,.0f} MB' if options.wall_bytes else 'the memory of this machine'
    told = f'MemoryError {when} ({why or "no memory left"}): {options.title} does not fit behind {where}'
    if options.policy is None:
        return f'{told} in plain Chainer. That is the expected outcome; out-of-core it trains: add --policy auto'
    return f'{told} with policy {options.policy}; allow more memory, or lower --batchsize or --workspace'
