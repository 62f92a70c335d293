"""A row with all that ``chainer_ooc doctor`` finds, so that a file of figures says what they were measured with."""
from __future__ import annotations

import argparse
from typing import Any

import here  # noqa: F401  chainer_ooc before chainer, and the examples on the path

# isort: split
from chainer_ooc.cli import doctor


def examine(device: str) -> dict[str, Any]:
    """What it says; a doctor who finds that training cannot work is an answer too."""
    answer = doctor.run(argparse.Namespace(spill_dir=None))
    facts = dict(answer.facts)
    return {'can_train': facts['can_train'], 'problems': '; '.join(facts['problems']),
            'doctor_warnings': '; '.join(facts['warnings']), 'facts': facts}
