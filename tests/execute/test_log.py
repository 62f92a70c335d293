"""chainer.config.ooc_log: silent if it is None, stderr or the program's handlers if it is a level."""
import subprocess
import sys

import pytest

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
