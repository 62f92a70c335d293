"""The workers of `pytorch.py`: how each row is started, and with which budget ours are.

What a process holds beside arrays differs: libraries, Python, what its allocator keeps. As the whole process counts,
a budget for arrays is found by `start_within` from what a training under `keep` holds beside the arrays that it
accounts for, and corrected by what the process then peaks at.
"""
from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

from surroundings import ARCHITECTURES

# isort: split
from chainer_ooc.report.table import megabytes
from turns import Worker

HERE = pathlib.Path(__file__).parent
PEER_WAYS = {'PyTorch': 'plain', 'PyTorch channels_last': 'channels_last', 'PyTorch checkpoint': 'checkpoint',
             'PyTorch saved to a file': 'file'}
OUR_WAYS = {'keep': 'keep', 'pooch': 'pooch', 'auto': 'auto', 'swap-all': 'swap-all',
            'pooch, parameters on file': 'pooch', 'plain Chainer': None}
#: Rows that have to keep within a share of PyTorch's peak.
WITHIN = ('pooch', 'pooch, parameters on file')
#: Rows that exist to save memory: their allocator gives it back to the system.
SAVING = ('PyTorch checkpoint', 'PyTorch saved to a file')
STARTS, TOLERANCE = 3, 0.02  # to find a budget


def start(name: str, network: str, arguments: argparse.Namespace, *, budget: int | str | None = None,
          batchsize: int | None = None, limit_bytes: int | None = None, settle: bool = True,
          threads: int | None = None, wait_policy: str | None = None) -> Worker:
    """Starts the worker of a row.

    Args:
        name: Of the row, or a policy.
        network: What it trains.
        arguments: Of the command.
        budget: chainer.config.ooc_budget, for one of ours.
        batchsize: Images per iteration; None is the command's.
        limit_bytes: Its RLIMIT_DATA, or None.
        settle: Whether it runs until times are steady before it is ready.
        threads: Of its computations; None is the command's.
        wait_policy: Its OMP_WAIT_POLICY; None is that of the environment.
    """
    threads = threads or arguments.threads
    batchsize = batchsize or arguments.batchsize or ARCHITECTURES[network].batchsize
    row = {'network': network, 'side': arguments.crop, 'threads': threads, 'batchsize': batchsize,
           'spill_dir': arguments.spill_dir, 'limit_bytes': limit_bytes, 'settle': settle}
    environment = {**os.environ, 'OMP_NUM_THREADS': str(threads)}
    if wait_policy:
        environment['OMP_WAIT_POLICY'] = wait_policy
    if name in PEER_WAYS:
        environment.pop('PYTHONPATH', None)
        if arguments.malloc_threshold and (name in SAVING or limit_bytes is not None):
            environment['MALLOC_MMAP_THRESHOLD_'] = str(arguments.malloc_threshold)
        command = [arguments.peer, str(HERE / 'pytorch_worker.py'), json.dumps({**row, 'way': PEER_WAYS[name]})]
    else:
        entries = entries_of(OUR_WAYS.get(name, name), budget, arguments)
        if 'on file' in name:
            entries['ooc_parameters'] = 'file'
        command = [sys.executable, str(HERE / 'chainer_worker.py'), json.dumps({**row, 'entries': entries})]
    return Worker(f'{name}, {network}, batch {batchsize}', command, environment, arguments.patience)


def entries_of(policy: str | None, budget: int | str | None, arguments: argparse.Namespace) -> dict[str, Any]:
    """Entries of chainer.config of one of our rows."""
    if policy is None:
        return {}
    workspace = None if arguments.workspace == 'none' else arguments.workspace
    return {'ooc': policy, 'ooc_budget': budget, 'ooc_workspace': workspace, 'ooc_spill_dir': arguments.spill_dir,
            'use_ideep': arguments.use_ideep}


def start_within(target_bytes: int, beside_bytes: int, name: str, network: str,
                 arguments: argparse.Namespace) -> Worker:
    """Starts one of ours with the budget with which its process peaks at a target, or next above that; it is ready.

    Args:
        target_bytes: What the process may take.
        beside_bytes: What it is expected to hold beside arrays.
        name: Of the row.
        network: What it trains.
        arguments: Of the command.
    """
    budget = max(target_bytes - beside_bytes, 1)
    for number in range(STARTS):
        worker = ready(start(name, network, arguments, budget=budget))
        over_bytes = worker.about['peak_bytes'] - target_bytes
        can_be_less = over_bytes > 0 and not worker.about['refusals']
        if number + 1 == STARTS or not (can_be_less or over_bytes < 0) or abs(over_bytes) <= TOLERANCE * target_bytes:
            break
        worker.close()
        budget = max(worker.about['budget_bytes'] - over_bytes, 1)
    return worker


def ready(worker: Worker) -> Worker:
    """Waits for a worker and says what it takes; it is ended if that fails."""
    try:
        worker.wait()
    except BaseException:
        worker.close()
        raise
    budget = worker.about.get('budget_bytes')
    print(f'{worker.name}: peak {megabytes(worker.about["peak_bytes"])}'
          + (f', budget {megabytes(budget)}' if budget else ''), flush=True)
    return worker


def check_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Compares the networks of two workers by what they said of them, whichever order the layers ran in.

    Raises:
        RuntimeError: They differ.
    """
    if one['parameters'] != other['parameters']:
        raise RuntimeError(f'networks of {one["parameters"]:,} and {other["parameters"]:,} parameters')
    layers = [sorted(about['layers']) for about in (one, other)]
    if layers[0] != layers[1]:
        alone = [[layer for layer in layers[number] if layer not in layers[1 - number]] for number in (0, 1)]
        raise RuntimeError(f'networks with different layers (shapes of weight and output): {alone[0]} and {alone[1]}')
