"""Runs a command of chainer_ooc within the test's own process."""
import json

from chainer_ooc import cli


def run(capsys, *arguments):
    """Exit status, stdout and stderr of a command."""
    try:
        status = cli.main(arguments)
    except SystemExit as exit_:
        status = exit_.code
    return status, *capsys.readouterr()


def run_json(capsys, *arguments):
    status, out, err = run(capsys, *arguments, '--json')
    assert (status, err) == (0, '')
    return json.loads(out)
