"""What every benchmark says beside its figures: the machine, the versions, and where the figures went.

Importing this module puts the examples on the path and imports `chainer_ooc` before chainer.
"""
from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import platform
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / 'examples'))
sys.path.append(str(ROOT))  # for an environment without chainer_ooc installed, as off.py needs

import chainer_ooc  # noqa: E402, F401  before chainer, which it patches as it is imported

# isort: split
import chainer  # noqa: E402
import numpy  # noqa: E402

from chainer_ooc.report.table import Table  # noqa: E402
from models import ARCHITECTURES  # noqa: E402
from options import positive  # noqa: E402


def make_parser(description: str) -> argparse.ArgumentParser:
    """Makes a parser with the options that all benchmarks have."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0], epilog='See benchmarks/README.md.')
    parser.add_argument('--json', type=pathlib.Path, metavar='FILE', help='write the figures there')
    return parser


def add_networks(parser: argparse.ArgumentParser, default: Sequence[str]) -> None:
    """Adds the options that choose networks, their batch size and the out-of-core settings."""
    parser.add_argument('--networks', nargs='+', choices=sorted(ARCHITECTURES), default=list(default), metavar='NAME',
                        help=', '.join(sorted(ARCHITECTURES)) + ' (' + ' '.join(default) + ')')
    parser.add_argument('--batchsize', type=positive, metavar='N', help="images per iteration (the network's own)")
    parser.add_argument('--crop', type=positive, default=224, metavar='PIXELS', help='side of an image (%(default)s)')
    add_policy(parser)


def add_policy(parser: argparse.ArgumentParser) -> None:
    """Adds the options that set the entries of chainer.config."""
    parser.add_argument('--policy', default='swap-all', metavar='NAME', help='chainer.config.ooc (%(default)s)')
    parser.add_argument('--budget', metavar='BYTES', help='chainer.config.ooc_budget (what is free)')
    parser.add_argument('--workspace', metavar='BYTES', help="chainer.config.ooc_workspace (Chainer's own way)")
    parser.add_argument('--use-ideep', choices=['auto', 'always'], help='chainer.config.use_ideep: by oneDNN (NumPy)')
    parser.add_argument('--spill-dir', metavar='DIR', help='chainer.config.ooc_spill_dir (the temporary folder)')


def config_entries(arguments: argparse.Namespace) -> dict[str, str]:
    """The entries of chainer.config that out-of-core iterations run under."""
    entries = {'ooc': arguments.policy, 'ooc_budget': arguments.budget, 'ooc_workspace': arguments.workspace,
               'ooc_spill_dir': arguments.spill_dir, 'use_ideep': arguments.use_ideep}
    return {name: value for name, value in entries.items() if value is not None}


@contextlib.contextmanager
def configured(entries: Mapping[str, Any]) -> Iterator[None]:
    """Sets entries of chainer.config meanwhile."""
    with contextlib.ExitStack() as stack:
        for name, value in entries.items():
            stack.enter_context(chainer.using_config(name, value))
        yield


def describe_machine() -> dict[str, Any]:
    """What the figures depend on."""
    cpu = next((line.split(':', 1)[1].strip() for line in pathlib.Path('/proc/cpuinfo').read_text().splitlines()
                if line.startswith('model name')), platform.machine())
    return {
        'cpu': cpu,
        'cores': len(os.sched_getaffinity(0)),
        'memory_bytes': os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE'),
        'kernel': platform.release(),
        'python': platform.python_version(),
        'numpy': numpy.__version__,
        'chainer': chainer.__version__,
        'threads': os.environ.get('OMP_NUM_THREADS', 'all cores'),
        'spill_folder': tempfile.gettempdir(),
        'load': os.getloadavg()[0],
    }


def publish(table: Table, arguments: argparse.Namespace, more: Mapping[str, Any] | None = None) -> None:
    """Prints the table and the machine; writes both, and `more`, where `--json` says."""
    machine = describe_machine()
    print('\n' + table.to_text())
    print(f"  {machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] / 1e9:.0f} GB; "
          f"Python {machine['python']}, NumPy {machine['numpy']}, BLAS threads: {machine['threads']}; "
          f"load {machine['load']:.1f}")
    if arguments.json:
        asked = {name: value for name, value in vars(arguments).items() if name != 'json'}
        figures = {'title': table.title, 'rows': table.rows, 'machine': machine, 'arguments': asked, **(more or {})}
        arguments.json.write_text(json.dumps(figures, indent=1, default=str) + '\n')
        print(f'  figures: {arguments.json}')
