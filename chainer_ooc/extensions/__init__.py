"""Extensions of Chainer's Trainer.

    out_of_core      what out-of-core does, in the log, and a line about it at the end
    memory_plot      a picture of memory over an iteration
"""

from chainer_ooc.extensions.memory_plot import MemoryPlot
from chainer_ooc.extensions.out_of_core import OutOfCore, report_to

__all__ = ['MemoryPlot', 'OutOfCore', 'report_to']
