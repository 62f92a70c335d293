"""Extensions of Chainer's Trainer.

    out_of_core      what out-of-core does, in the log, and a line about it at the end
"""

from chainer_ooc.extensions.out_of_core import OutOfCore, report_to

__all__ = ['OutOfCore', 'report_to']
