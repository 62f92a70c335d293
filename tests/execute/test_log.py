"""chainer.config.ooc_log: silent if it is None, stderr or the program's handlers if it is a level."""
import logging
import subprocess
import sys

import chainer
import chainer.functions as F
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.backends.host.backend import HostBackend
from chainer_ooc.errors import SpillError
from chainer_ooc.execute import log
from support.trainings.ooc_training import ooc

PROGRAM = '''
import chainer_ooc, logging, sys
from chainer_ooc.execute import log
if {program_has_logging}:
    logging.basicConfig(level=logging.DEBUG, format='program: %(message)s')
for _ in range(2):
    log.set_level({level})
log.logger.info('an info'); log.logger.warning('a warning')
'''


@pytest.mark.parametrize(('level', 'program_has_logging', 'printed'), [
    (None, False, []),
    (None, True, ['program: an info', 'program: a warning']),
    (20, False, ['chainer_ooc: an info', 'chainer_ooc: a warning']),
    (30, False, ['chainer_ooc: a warning']),
    (20, True, ['program: an info', 'program: a warning']),
])
def test_records_go_where_they_should(level, program_has_logging, printed):
    program = PROGRAM.format(level=level, program_has_logging=program_has_logging)
    ended = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, timeout=120, check=True)
    assert ended.stderr.splitlines() == printed


def test_none_is_silent_after_a_level():
    program = PROGRAM.format(level=30, program_has_logging=False) + (
        "log.set_level(None); log.logger.warning('another'); print(log.logger.handlers, log.logger.level)")
    ended = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, timeout=120, check=True)
    assert ended.stderr.splitlines() == ['chainer_ooc: a warning']
    assert ended.stdout == '[<NullHandler (NOTSET)>] 0\n'


def test_a_record_that_somebody_keeps_keeps_no_frames(monkeypatch, caplog):
    """An error's traceback refers to the functions that ran, and these to their arrays."""
    def refuse(self):
        raise SpillError('no copies today')

    monkeypatch.setattr(HostBackend, 'bandwidth', refuse)
    chainer_ooc.reset()
    with caplog.at_level('WARNING', 'chainer_ooc'), ooc('swap-all'):
        for _ in range(2):
            F.sum(F.tanh(chainer.Parameter(np.ones((4, 4), 'f4')) * 2)).backward()
    chainer_ooc.reset()
    assert any('no copies today' in record.getMessage() for record in caplog.records)
    assert not [each for record in caplog.records for each in record.args if isinstance(each, BaseException)]


def test_a_program_with_logging_of_its_own_has_its_level_again(caplog):
    caplog.set_level(logging.WARNING, 'chainer_ooc')
    caplog.handler.setLevel(logging.DEBUG)  # the program's
    log.set_level(logging.INFO)
    log.set_level(logging.DEBUG)
    log.logger.debug('shown')
    log.set_level(None)
    log.logger.info('hidden')
    assert (caplog.messages, log.logger.level) == (['shown'], logging.WARNING)
