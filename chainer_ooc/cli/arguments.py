"""Arguments that several commands take, and how their texts are read."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from chainer_ooc.classify.policies import policy_of
from chainer_ooc.cost.machine import Machine, machine_names, read_machine
from chainer_ooc.cost.network import Interconnect, parse_network
from chainer_ooc.errors import did_you_mean
from chainer_ooc.quantities import parse_bytes

#: The default of chainer.config.ooc_min_bytes, which cannot be asked where Chainer is absent.
MIN_BYTES = 1000000
#: More than there is of anything that is counted here.
_MOST = 2**31 - 1
#: The machine that the trace was recorded on.
MEASURED = 'measured'
_Read = TypeVar('_Read')


def add_trace(parser: argparse.ArgumentParser, run: bool = False) -> None:
    """Adds the trace, in whose place there may be a run, and the size below which its maps stay."""
    parser.add_argument('trace', type=Path, metavar='TRACE|RUN' if run else 'TRACE', help=(
        'file of a trace, as "profile MODEL --save FILE" writes it; it carries the bytes that parameters and gradients '
        "take, and the optimizer's state if there was an optimizer"
        + ('; or of a run, chainer_ooc.last_run().to_json() of a training' if run else '')))
    add_min_bytes(parser)


def add_min_bytes(parser: argparse.ArgumentParser) -> None:
    """Adds the size below which maps stay."""
    parser.add_argument('--min-bytes', type=size, default=MIN_BYTES, metavar='BYTES',
                        help='smaller feature maps stay, as with chainer.config.ooc_min_bytes (%(default)s)')


def add_machine_and_batch(parser: argparse.ArgumentParser, batch: str = "the trace's own") -> None:
    """Adds what a recording is worked out for; `batch` says which one it is by default."""
    parser.add_argument('--machine', type=machine, default=MEASURED, metavar='MACHINE', help=(
        f'whose times: those that were recorded ({MEASURED}, by default), or the roofline of '
        f'{", ".join(machine_names())}, or of a file like theirs in chainer_ooc/cost/machines'))
    parser.add_argument('--batch', '--batchsize', type=positive, metavar='N', help=(
        f'images per iteration ({batch}): a larger batch than was recorded scales its bytes and times'))


def machine_of(arguments: argparse.Namespace) -> Machine | None:
    """The machine that is named; None for the one that recorded.

    Raises:
        MachineError: its description cannot be read.
    """
    return None if arguments.machine == MEASURED else read_machine(arguments.machine)


def add_policy_and_budget(parser: argparse.ArgumentParser) -> None:
    """Adds what a plan is made with."""
    parser.add_argument('--policy', type=policy, required=True, metavar='POLICY',
                        help='a value of chainer.config.ooc; "policies" lists them')
    parser.add_argument('--budget', type=budget, required=True, metavar='BYTES',
                        help="near memory for all arrays, such as 800MB or 1.5GiB")


def positive(text: str) -> int:
    """Reads a whole number of at least 1."""
    digits = text.strip()
    if not digits.isdecimal() or not digits.strip('0'):
        raise argparse.ArgumentTypeError(f'{text!r} is no whole number of at least 1')
    if len(digits) > len(str(_MOST)) or int(digits) > _MOST:
        raise argparse.ArgumentTypeError(f'{text!r} is too large; write at most {_MOST}')
    return int(digits)


def size(text: str) -> int:
    """Reads an amount of bytes."""
    return _read(parse_bytes, text)


def budget(text: str) -> int:
    """Reads an amount of bytes of at least 1."""
    if text.strip().endswith('%'):
        raise argparse.ArgumentTypeError(
            f'{text!r} is a share, and a budget is an amount of bytes, such as 800MB; "compare TRACE" begins with the '
            'peak that it would be a share of')
    return _positive_size(text, 'budget')


def workspace(text: str) -> int:
    """Reads an amount of bytes of at least 1, for buffers."""
    return _positive_size(text, 'workspace')


def _positive_size(text: str, what: str) -> int:
    nbytes = size(text)
    if nbytes < 1:
        raise argparse.ArgumentTypeError(f'{text!r} is no {what}; it must be at least 1 byte')
    return nbytes


def network(text: str) -> Interconnect:
    """Reads the speed of a network."""
    return _read(parse_network, text)


def policy(text: str) -> str:
    """Reads the name of a policy; one of the user's own is imported, from the current folder too."""
    search_here()
    _read(policy_of, text)
    return text


def _read(parse: Callable[[str], _Read], text: str) -> _Read:
    """Reads with a function of ours; argparse shows the message of errors of its own class only."""
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def search_here() -> None:
    """Has imports look into the current folder as well: `python -m` does, the entry point does not."""
    if '' not in sys.path:
        sys.path.insert(0, '')


def machine(text: str) -> str:
    """Reads the name of a machine, or the path of a file with the description of one."""
    if text == MEASURED or os.path.isfile(text):
        return text
    try:
        return one_of('machine', text, [MEASURED, *machine_names()])
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f'{error}; or name a file like theirs in chainer_ooc/cost/machines') from None


def one_of(kind: str, text: str, names: Iterable[str]) -> str:
    """Reads one of some names; for another, the nearest one is named first."""
    known = list(names)
    if text not in known:
        raise argparse.ArgumentTypeError(unknown(kind, text, known))
    return text


def unknown(kind: str, text: str, names: Iterable[str]) -> str:
    """What is said of a name that is none: which one may have been meant, and which there are."""
    known = sorted({*names})
    return f'there is no {kind} {text!r}; {did_you_mean(text, known)}there are: {", ".join(known)}'


def several(read: Callable[[str], _Read]) -> Callable[[str], list[_Read]]:
    """Reads what commas separate."""
    return lambda text: [read(part.strip()) for part in text.split(',')]
