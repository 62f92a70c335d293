"""Containers: does the kernel ever kill a training, and how much of a limit is put to use?

    python benchmarks/containers.py --json containers.json
    python benchmarks/containers.py --kinds data as --factors 1.2 2
    PYTHONPATH=/another/checkout python benchmarks/containers.py --limits containers.json

The smallest limit at which a network trains with policy swap-all is found by halving. Then every policy trains under
multiples of that limit with the default budget, each in a process of its own. A policy that has no plan for so
small a budget says so and is refused; what must not happen is that the kernel kills.

Needs root and memory groups of version 1, but for `--kinds data as`. `--limits` takes the smallest limits from an
earlier run instead of looking for them, so that two versions are tried under the same ones.
"""
from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import pathlib
import sys
from typing import Any

from surroundings import make_parser, positive, publish

# isort: split
import chainer_ooc
from chainer_ooc.report.table import Column, Table, megabytes, plain, ratio, seconds
from contained import KINDS, Trial, can_make_groups, run_contained
from contained_worker import NETWORKS
from options import amount
from probes import smallest

SEARCH_POLICY = 'swap-all'
FAR_TOO_MUCH_BYTES = 1 << 40

COLUMNS = (
    Column('network', 'network'),
    Column('kind', 'limit on'),
    Column('policy', 'policy'),
    Column('factor', 'x smallest', ratio, right=True),
    Column('limit_bytes', 'limit', megabytes, right=True),
    Column('outcome', 'outcome'),
    Column('iterations', 'iterations', plain, right=True),
    Column('kept_bytes', 'peak', megabytes, right=True),
    Column('used', 'used', lambda value: f'{value:.0%}', right=True),
    Column('budget_bytes', 'budget', megabytes, right=True),
    Column('seconds', 'iteration', seconds, right=True),
)


def main() -> None:
    arguments = parse(sys.argv[1:])
    why = can_make_groups() if 'group' in arguments.kinds else ''
    if why:
        raise SystemExit(why)
    known = {} if arguments.limits is None else json.loads(arguments.limits.read_text())['smallest']
    found: dict[str, Any] = {}
    rows = []
    for network in arguments.networks:
        more = ['--iterations', str(arguments.iterations)]
        more += ['--workspace', '32MB'] if network == 'resnet50' else []
        for kind in arguments.kinds:
            name = f'{network}/{kind}'
            found[name] = known.get(name) or smallest_limit(network, kind, more, arguments)
            for policy in arguments.policies:
                for factor in arguments.factors:
                    trial = run_contained(network, policy, kind, int(factor * found[name]), more)
                    rows.append(row_of(trial, factor))
                    say(trial)
    publish(Table(COLUMNS, rows, 'Trainings within a limit, default budget'), arguments,
            {'smallest': found, 'summary': summary(rows)})
    print('\n'.join(f'  {line}' for line in summary(rows)))


def parse(words: list[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = make_parser(__doc__)
    policies = [name for name, _ in chainer_ooc.policies().items()]
    parser.add_argument('--networks', nargs='+', choices=NETWORKS, default=list(NETWORKS), metavar='NAME',
                        help=' '.join(NETWORKS))
    parser.add_argument('--policies', nargs='+', choices=policies, default=policies, metavar='NAME')
    parser.add_argument('--kinds', nargs='+', choices=KINDS, default=['group'], help='(group)')
    parser.add_argument('--factors', nargs='+', type=float, default=[1.05, 1.2, 1.5, 2.0], metavar='X')
    parser.add_argument('--iterations', type=positive, default=5, metavar='N', help='(%(default)s)')
    parser.add_argument('--resolution', type=amount, default=amount('8MB'), metavar='BYTES', help='(8MB)')
    parser.add_argument('--limits', type=pathlib.Path, metavar='FILE', help='smallest limits of an earlier run (JSON)')
    return parser.parse_args(words)


def smallest_limit(network: str, kind: str, more: list[str], arguments: argparse.Namespace) -> int:
    """Finds the smallest limit under which the network trains with policy swap-all, up to what plain Chainer holds."""
    high_bytes = run_contained(network, None, kind, FAR_TOO_MUCH_BYTES, more).kept_bytes

    def works(limit_bytes: int) -> bool:
        trial = run_contained(network, SEARCH_POLICY, kind, limit_bytes, more)
        say(trial)
        return trial.outcome == 'finished'

    return smallest(works, high_bytes // 8, high_bytes, arguments.resolution)


def row_of(trial: Trial, factor: float) -> dict[str, Any]:
    """One line of the table."""
    return {**dataclasses.asdict(trial), 'used': trial.used, 'factor': factor}


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """How often each outcome came up, and the least that was used of a limit within which not all maps can stay."""
    counts = collections.Counter(row['outcome'] for row in rows)
    lines = [f'{len(rows)} trainings: ' + ', '.join(f'{number} {outcome}' for outcome, number in counts.items())]
    tight = {place_of(row) for row in rows if row['policy'] == 'keep' and row['outcome'] != 'finished'}
    short = sorted((row['used'], f"{row['network']}, {row['policy']}, {row['limit_bytes'] / 1e6:.0f} MB")
                   for row in rows if row['outcome'] == 'finished' and place_of(row) in tight)
    if short:
        lines.append(f'limits within which not all maps can stay (keep does not finish): {len(short)}, used to '
                     f'{short[0][0]:.0%} at least ({short[0][1]}), in the median to {short[len(short) // 2][0]:.0%}')
    return lines


def place_of(row: dict[str, Any]) -> tuple[str, str, int]:
    """Where a policy was tried."""
    return row['network'], row['kind'], row['limit_bytes']


def say(trial: Trial) -> None:
    """Shows a trial as it comes in."""
    why = f' ({trial.message})' if trial.message else ''
    print(f'  {trial.network} {trial.policy} {trial.kind} {trial.limit_bytes / 1e6:.0f} MB: {trial.outcome}, '
          f'{trial.used:.0%}{why}'[:200], file=sys.stderr, flush=True)


if __name__ == '__main__':
    main()
