"""A picture of memory over an iteration, drawn while a training goes on, as PlotReport draws losses."""

from __future__ import annotations

import os
from typing import Any

from chainer import training

from chainer_ooc.execute import sessions
from chainer_ooc.report import still
from chainer_ooc.report.contents import report_of
from chainer_ooc.report.figure import new_figure


class MemoryPlot(training.Extension):  # type: ignore[misc]
    """Draws what near memory holds over the last iteration: by kind as planned, as measured, and the budget.

        trainer.extend(chainer_ooc.extensions.MemoryPlot())                      # each epoch: result/memory.png
        trainer.extend(chainer_ooc.extensions.MemoryPlot('memory-{.updater.iteration}.png'), trigger=(100, 'iteration'))

    Below it are the lanes of computations and copies, predicted and measured. Nothing is drawn of an iteration that
    followed no plan to its end, as the recorded one. A training that ends before the trigger has fired is drawn at its
    end. A picture takes a second or so. `python -m chainer_ooc report` makes a page of `chainer_ooc.last_run()`, which
    shows more.

    Args:
        file_name: in the trainer's folder; its suffix (``.png``, ``.svg``, ``.pdf``) is the format. It may have fields
            of the trainer, as those of chainer.training.extensions.snapshot.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: the file's suffix is no format that it draws.
    """

    trigger = 1, 'epoch'
    priority = training.PRIORITY_READER

    def __init__(self, file_name: str = 'memory.png'):
        known = new_figure(1, 1).canvas.get_supported_filetypes()  # says now, not after an epoch, what is missing
        suffix = os.path.splitext(file_name)[1].removeprefix('.')
        if suffix not in known:
            raise ValueError(f'a picture cannot be drawn into {file_name!r}: give it one of the suffixes '
                             f'{", ".join(sorted(known))}')
        self._file_name = file_name
        self._undrawn: Any = None  # the trainer, until there is a picture of it

    def initialize(self, trainer: Any) -> None:
        self._undrawn = trainer

    def finalize(self) -> None:
        trainer, self._undrawn = self._undrawn, None
        if trainer is not None:
            self(trainer)

    def __call__(self, trainer: Any) -> None:
        session = sessions.current()
        run = None if session is None or session.finished is None else session.finished.run
        if run is not None:
            report = report_of(f'iteration {trainer.updater.iteration}', run)
            still.draw(report, os.path.join(trainer.out, self._file_name.format(trainer)))
            self._undrawn = None
