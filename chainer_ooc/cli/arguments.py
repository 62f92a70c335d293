"""Arguments that several commands take, and how their texts are read."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.quantities import parse_bytes

#: The default of chainer.config.ooc_min_bytes, which cannot be asked where Chainer is absent.
MIN_BYTES = 1000000
_Read = TypeVar('_Read')


def add_trace(parser: argparse.ArgumentParser) -> None:
    """Adds the trace, and the size below which its maps stay."""
    parser.add_argument('trace', type=Path, metavar='TRACE', help=(
        'file of a trace, as "profile MODEL --save FILE" writes it; it carries the bytes that parameters and gradients '
        "take, and the optimizer's state if there was an optimizer"))
    parser.add_argument('--min-bytes', type=size, default=MIN_BYTES, metavar='BYTES',
                        help='smaller feature maps stay, as with chainer.config.ooc_min_bytes (%(default)s)')


def add_policy_and_budget(parser: argparse.ArgumentParser) -> None:
    """Adds what a plan is made with."""
    parser.add_argument('--policy', type=policy, required=True, metavar='POLICY',
                        help='a value of chainer.config.ooc; "policies" lists them')
    parser.add_argument('--budget', type=budget, required=True, metavar='BYTES',
                        help="near memory for all arrays, such as 800MB or 1.5GiB")


def positive(text: str) -> int:
    """Reads a whole number of at least 1."""
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f'{text!r} is no whole number of at least 1')
    return value


def size(text: str) -> int:
    """Reads an amount of bytes."""
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def budget(text: str) -> int:
    """Reads an amount of bytes of at least 1."""
    nbytes = size(text)
    if nbytes < 1:
        raise argparse.ArgumentTypeError(f'{text!r} is no budget; it must be at least 1 byte')
    return nbytes


def policy(text: str) -> str:
    """Reads the name of a policy."""
    if text not in POLICIES:
        raise argparse.ArgumentTypeError(f'there is no policy {text!r}; there are: {", ".join(sorted(POLICIES))}')
    return text


def several(read: Callable[[str], _Read]) -> Callable[[str], list[_Read]]:
    """Reads what commas separate."""
    return lambda text: [read(part.strip()) for part in text.split(',')]
