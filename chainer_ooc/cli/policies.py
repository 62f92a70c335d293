"""``chainer-ooc policies``: what chainer.config.ooc can be set to."""

from __future__ import annotations

import argparse

from chainer_ooc.cli.answer import Answer, listing

HELP = 'list the values that chainer.config.ooc can have'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds nothing: the command has no arguments of its own."""


def run(arguments: argparse.Namespace) -> Answer:
    """Lists every policy with its line."""
    import chainer_ooc

    found = chainer_ooc.policies()
    return Answer({'policies': found}, [listing('chainer.config.ooc', found)],
                  ['or module:attribute, for a policy of your own (docs/own-policies.md)'])
