"""The command line: ``python -m chainer_ooc`` or ``chainer-ooc``.

One module a command, each with ``add_arguments(parser)`` and ``run(arguments) -> Answer``. What a command needs beyond
this package is imported when it runs, so that ``--help`` is quick and ``doctor`` runs in a broken environment.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from chainer_ooc.cli import compare, doctor, explain, plan, policies, profile, recommend, simulate
from chainer_ooc.cli.answer import Answer, message
from chainer_ooc.errors import OocError

COMMANDS = {'doctor': doctor, 'profile': profile, 'simulate': simulate, 'plan': plan, 'compare': compare,
            'explain': explain, 'recommend': recommend}
if importlib.util.find_spec('chainer_ooc.papers') is not None:  # a copy without that room has all other commands
    from chainer_ooc.cli import tables
    COMMANDS['tables'] = tables
COMMANDS['policies'] = policies

__all__ = ['main']


class _Parser(argparse.ArgumentParser):
    """Wrong arguments get the form of all errors here; argparse would put the usage in front of it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f'error: {message}; "{self.prog} --help" shows what can be written\n')


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: the arguments, by default those of the process.

    Returns:
        The exit status: 0 when the command did its work (for ``doctor``: training can work), 1 when it could not, 130
        when it was interrupted. Wrong arguments leave with SystemExit(2).
    """
    arguments = _parser().parse_args(argv)
    try:
        answer: Answer = COMMANDS[arguments.command].run(arguments)
        text = answer.json() if arguments.json else answer.text()
    except OocError as error:
        print(f'error: {message(error)}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    try:
        print(text, flush=True)
    except OSError as error:  # Python must not flush again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # else the reader, such as `head`, has seen enough
            print(f'error: cannot write to standard output: {error.strerror}', file=sys.stderr)
        return 1
    return answer.status


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog='chainer-ooc', description='Trains Chainer models that exceed the memory of the device.')
    commands = parser.add_subparsers(dest='command', required=True, metavar='COMMAND')
    for name, module in COMMANDS.items():
        command = commands.add_parser(name, help=module.HELP, description=module.HELP)
        command.add_argument('--json', action='store_true', help='print one JSON object instead of tables')
        module.add_arguments(command)
    return parser
