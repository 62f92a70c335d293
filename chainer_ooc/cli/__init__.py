"""The command line: ``python -m chainer_ooc`` or ``chainer-ooc``.

One module for each command of `COMMANDS`. What several have in common:

    answer, arguments     what they answer and take; stage shows what they are busy with
    program, model        what a command line names as a training, or as a model; programs shows errors of its own code
    prediction, totals    what the simulator says of a trace, and sums over it
    gap                   how far that is from the best
    trial, ranks          what `doctor` tries, alone and under mpiexec

Each command has ``add_arguments(parser)`` and ``run(arguments) -> Answer``. What a command needs beyond
this package is imported when it runs, so that ``--help`` is quick and ``doctor`` runs in a broken environment.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib.util
import itertools
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TextIO

from chainer_ooc import __version__
from chainer_ooc.cli import compare, doctor, explain, plan, policies, profile, programs, recommend, report, simulate
from chainer_ooc.cli.answer import Answer, ProgramError, UsageError, message
from chainer_ooc.cli.arguments import unknown
from chainer_ooc.errors import OocError, PolicyError

COMMANDS = {'doctor': doctor, 'profile': profile, 'simulate': simulate, 'plan': plan, 'compare': compare,
            'explain': explain, 'report': report, 'recommend': recommend}
if importlib.util.find_spec('chainer_ooc.papers') is not None:  # a copy without that room has all other commands
    from chainer_ooc.cli import tables
    COMMANDS['tables'] = tables
COMMANDS['policies'] = policies

_ENDS_OPTIONS = ('--', '-h', '--h', '--he', '--hel', '--help')

__all__ = ['main']


class _Parser(argparse.ArgumentParser):
    """Wrong arguments get the form of all errors here; argparse would put the usage in front of it."""

    def _print_message(self, message: str, file: Any = None) -> None:
        """Writes help as answers are written: of errors Python's versions make a traceback, or nothing at all."""
        if file is sys.stderr:
            _complain(message.rstrip('\n'))
        elif not _print(message, end=''):
            sys.exit(1)

    def error(self, message: str) -> NoReturn:
        _complain(f'error: {message}; "{self.prog} --help" shows what can be written')
        sys.exit(2)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; without any, prints the help.

    Args:
        argv: the arguments, by default those of the process.

    Returns:
        The exit status: 0 when the command did its work (for ``doctor``: training can work), 1 when it could not, 2
        when an argument cannot be used, 130 when it was interrupted. Arguments that argparse refuses leave with
        SystemExit(2), ``--help`` and ``--version`` with SystemExit(0), or 1 where they cannot be written.
    """
    parser, commands = _parser()
    given = _bound(sys.argv[1:] if argv is None else argv)
    if given and not given[0].startswith('-') and given[0] not in COMMANDS:
        parser.error(unknown('command', given[0], COMMANDS))
    if given and given[0] in COMMANDS:  # first: argparse would name a required option and not what was written for it
        _check_options(given[1:], commands[given[0]])
    arguments, unread = parser.parse_known_args(given)
    if unread:
        _refuse(unread[0], parser if arguments.command is None else arguments.parser)
    if arguments.command is None:
        return 0 if _print(parser.format_help(), end='') else 1
    try:
        answer: Answer = COMMANDS[arguments.command].run(arguments)
        text = answer.json() if arguments.json else answer.text()
    except ProgramError as error:
        _complain(f'{error.report}error: {message(error)}')
        return error.status
    except OocError as error:
        cause = error.__cause__ if isinstance(error, PolicyError) else None  # of the policy's own code
        _complain(f'{"" if cause is None else programs.report(cause)}error: {message(error)}')
        return 2 if isinstance(error, UsageError) else 1
    except MemoryError:
        _complain('error: this needs more memory than there is; free some, or raise the limit (ulimit -d, the '
                  "container's)")
        return 1
    except KeyboardInterrupt:
        return 130
    return answer.status if answer.is_silent or _print(text) else 1


def _check_options(given: Sequence[str], parser: argparse.ArgumentParser) -> None:
    """Ends the process if an option is none of a command's, nor the beginning of one.

    As argparse has it, none stands behind `--`, nothing is looked at behind `--help`, and what has a space is a value.
    """
    for each in itertools.takewhile(lambda text: text not in _ENDS_OPTIONS, given):
        name = each.partition('=')[0]
        if name.startswith('--') and ' ' not in each and (
                not any(known.startswith(name) for known in parser._option_string_actions)):
            _refuse(each, parser)


def _refuse(text: str, parser: argparse.ArgumentParser) -> NoReturn:
    """Ends the process: there is no such option, or no place for such an argument."""
    if text.startswith('-'):
        parser.error(unknown('option', text, (name for name in parser._option_string_actions if name.startswith('--'))))
    parser.error(f'there is no place for {text!r}')


def _bound(argv: Sequence[str]) -> list[str]:
    """Ties values such as ``-5GB`` to the option before them: argparse would take them for options of their own."""
    bound: list[str] = []
    for each in argv:
        if re.match(r'-[\d.]', each) and bound and re.fullmatch('--[a-z-]+', bound[-1]):
            bound[-1] += f'={each}'
        else:
            bound.append(each)
    return bound


def _print(text: str, end: str = '\n') -> bool:
    """Writes to standard output, and says why if it cannot be done. Returns whether it was."""
    try:
        _write(sys.stdout, text + end)
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # else the reader, such as `head`, has seen enough
            _complain(f'error: cannot write to standard output: {error.strerror}; send it somewhere else')
        return False
    return True


def _complain(text: str) -> None:
    """Writes a line to standard error, if it can be done."""
    with contextlib.suppress(OSError):
        _write(sys.stderr, text + '\n')


def _write(stream: TextIO | None, text: str) -> None:
    """Writes, in the characters that the stream has.

    Raises:
        OSError: it is closed, or cannot be written to; nothing more is written to it then.
    """
    if stream is None:  # closed before Python began
        raise OSError(errno.EBADF, 'it is closed')
    try:
        try:
            stream.write(text)
        except UnicodeEncodeError:
            encoding = stream.encoding or 'ascii'
            stream.write(text.encode(encoding, 'backslashreplace').decode(encoding))
        stream.flush()
    except OSError:
        with open(os.devnull, 'wb') as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())  # Python flushes once more at exit
        raise


def _parser() -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """The parser, and those of its commands."""
    parser = _Parser(prog='chainer-ooc', description='Trains Chainer models that exceed the memory of the device.')
    parser.add_argument('--version', action='version', version=f'chainer-ooc {__version__}')
    commands = parser.add_subparsers(dest='command', metavar='COMMAND')
    for name, module in COMMANDS.items():
        command = commands.add_parser(name, help=module.HELP, description=module.HELP)
        command.set_defaults(parser=command)
        command.add_argument('--json', action='store_true', help='print one JSON object instead of tables')
        module.add_arguments(command)
    return parser, commands.choices
