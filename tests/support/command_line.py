"""Runs a command of chainer_ooc within the test's own process, or where there is no Chainer."""
import json
import os

from chainer_ooc import cli

#: A program whose arguments are those of a command, and that can import neither Chainer nor CuPy.
BARE = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in ('chainer', 'chainerx', 'cupy', 'cupyx'):
            raise ModuleNotFoundError('made absent: ' + name)
import chainer_ooc
sys.meta_path.insert(0, Absent())
from chainer_ooc.cli import main
sys.exit(main(sys.argv[1:]))
"""


def run(capsys, *arguments):
    """Exit status, stdout and stderr of a command; 80 columns wide, whatever terminal the tests run in."""
    os.environ['COLUMNS'] = '80'
    try:
        status = cli.main(arguments)
    except SystemExit as exit_:
        status = exit_.code
    return status, *capsys.readouterr()


def run_json(capsys, *arguments):
    status, out, err = run(capsys, *arguments, '--json')
    assert (status, err) == (0, '')
    return json.loads(out)
