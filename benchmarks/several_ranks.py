"""Ranks: what an out-of-core iteration of several costs beside plain ChainerMN, and how near the ring's model comes.

    mpiexec -n 2 python benchmarks/several_ranks.py --json two.json
    mpiexec -n 4 python benchmarks/several_ranks.py --network-of two.json

Two trainings take turns on all ranks at once, as in `overhead.py`: one of plain ChainerMN, one under a policy, with the
communicator `naive`. What counts is the slowest rank's time, with the exchange of gradients in it. Arrays of several
sizes are added up too. From the smallest and the largest follow latency and speed of a ring, or with `--network-of`
they are those of another run. The ring's times stand beside the measured ones: for each size, for a training's
gradients (one exchange for each parameter, as `naive` does), and for the iteration that is predicted, updates aside.
The exchange in a training has the wait for the slowest rank in it; that by itself has not.
"""
from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

from surroundings import add_networks, config_entries, make_parser, positive, publish

# isort: split
import chainermn
import numpy
from mpi4py import MPI

import chainer_ooc
from chainer_ooc.cost.network import Interconnect
from chainer_ooc.quantities import format_bytes
from chainer_ooc.report.table import Column, Table, percent, plain, seconds
from iterations import CHECKED, Training
from models import ARCHITECTURES
from pairs import in_turns

#: Bytes of the arrays that are added up; the first and the last give the ring's figures.
SIZES = (4, 1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 27)
REPEATS = 9

COLUMNS = (
    Column('what', 'what'),
    Column('nbytes', 'bytes', format_bytes, right=True),
    Column('beside_seconds', 'plain ChainerMN', seconds, right=True),
    Column('seconds', 'measured', seconds, right=True),
    Column('model_seconds', 'ring', seconds, right=True),
    Column('overhead', 'overhead', percent, right=True),
    Column('middle_half', 'middle half', lambda value: f'{percent(value[0])} to {percent(value[1])}', right=True),
    Column('losses_equal', 'losses', lambda equal: 'equal' if equal else 'DIFFERENT'),
    Column('arrays_equal', 'arrays equal', plain, right=True),
)


def main() -> None:
    parser = make_parser(__doc__)
    add_networks(parser, ['resnet50'])
    parser.add_argument('--pairs', type=positive, default=7, metavar='N', help='timed pairs (%(default)s)')
    parser.add_argument('--warm-up', type=positive, default=4, metavar='N',
                        help='pairs before, in which graphs are profiled and planned in common (%(default)s)')
    parser.add_argument('--network-of', type=pathlib.Path, metavar='FILE',
                        help='latency and speed of that run (those of this one)')
    arguments = parser.parse_args()
    comm = chainermn.create_communicator('naive')
    sums = {nbytes: sum_seconds(comm, nbytes) for nbytes in SIZES}
    network = network_of(sums, comm.size)
    if arguments.network_of is not None:
        network = Interconnect(**json.loads(arguments.network_of.read_text())['network'])
    rows = [row for name in arguments.networks for row in measure(name, comm, network, arguments)]
    rows += [{'what': 'allreduce', 'nbytes': nbytes, 'seconds': taken,
              'model_seconds': network.allreduce_seconds(nbytes, comm.size)} for nbytes, taken in sums.items()]
    title = (f'{comm.size} ranks, policy {arguments.policy}, {arguments.pairs} pairs; ring of '
             f'{network.bytes_per_second / 1e9:.3g} GB/s and {network.latency_seconds * 1e6:.3g} us')
    if comm.rank == 0:
        publish(Table(COLUMNS, rows, title), arguments, {'network': vars(network), 'ranks': comm.size})


def network_of(sums: dict[int, float], ranks: int) -> Interconnect:
    """The network whose ring takes as long as the smallest and the largest array, by bytes, took 2 ranks or more."""
    small, large = min(sums), max(sums)
    messages = 2 * (ranks - 1)
    bytes_per_second = messages / ranks * (large - small) / max(sums[large] - sums[small], 1e-9)
    return Interconnect(bytes_per_second, max(0.0, sums[small] / messages - small / ranks / bytes_per_second))


def sum_seconds(comm: Any, nbytes: int) -> float:
    """Median time of the slowest rank for one sum of arrays of float32 over all ranks."""
    array = numpy.zeros(max(1, nbytes // 4), numpy.float32)
    return together_seconds(comm, lambda: comm.mpi_comm.Allreduce(MPI.IN_PLACE, array))


def together_seconds(comm: Any, act: Callable[[], object]) -> float:
    """Median time of the slowest rank for what all begin at the same moment."""
    def once() -> float:
        comm.mpi_comm.barrier()
        began = time.perf_counter()
        act()
        return slowest(comm, time.perf_counter() - began)

    once()  # MPI connects, and allocates its buffers
    return statistics.median(once() for _ in range(REPEATS))


def slowest(comm: Any, own_seconds: float) -> float:
    """The time of the slowest rank."""
    return max(comm.mpi_comm.allgather(own_seconds))


def measure(name: str, comm: Any, network: Interconnect, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Takes turns between the two trainings of one network, on all ranks; rows of the iteration and of its exchange."""
    def multi_node(optimizer: Any) -> Any:
        return chainermn.create_multi_node_optimizer(optimizer, comm)

    def turn(training: Training) -> float:
        comm.mpi_comm.barrier()
        return slowest(comm, training.iterate_twice())

    reference = Training(name, arguments.batchsize, arguments.crop, {}, multi_node)
    ooc = Training(name, arguments.batchsize, arguments.crop, config_entries(arguments), multi_node)
    sides = (lambda: turn(reference)), (lambda: turn(ooc))
    in_turns(*sides, max(arguments.warm_up, CHECKED - arguments.pairs))
    times = in_turns(*sides, arguments.pairs, lambda number, *pair: show(comm, name, number, pair))
    title, trace, plan = ARCHITECTURES[name].title, chainer_ooc.trace(), chainer_ooc.plan()
    exchanged = [each.array.nbytes for each in ooc.chain.params()]
    model_seconds = sum(network.allreduce_seconds(nbytes, comm.size) for nbytes in exchanged)
    names = reference.checked_state.keys() | ooc.checked_state.keys()
    equal = sum(reference.checked_state.get(each) == ooc.checked_state.get(each) for each in names)
    return [{
        'what': f'{title}, batch {ooc.batchsize}, iteration', 'beside_seconds': statistics.median(times.first),
        'seconds': statistics.median(times.second), 'overhead': times.ratio - 1,
        'model_seconds': None if plan is None else plan.seconds + model_seconds,
        'middle_half': [bound - 1 for bound in times.middle_half], 'losses_equal': reference.losses == ooc.losses,
        'arrays_equal': f'{equal} of {len(names)}', 'all_beside_seconds': times.first, 'all_seconds': times.second,
    }, {'what': f'{title}, exchange in a training', 'nbytes': sum(exchanged),
        'seconds': trace.exchange_seconds if trace else None, 'model_seconds': model_seconds,
    }, {'what': f'{title}, exchange by itself', 'nbytes': sum(exchanged), 'model_seconds': model_seconds,
        'seconds': together_seconds(comm, lambda: comm.multi_node_mean_grad(ooc.chain))}]


def show(comm: Any, network: str, number: int | str, pair: tuple[float, float]) -> None:
    """Prints one pair as it comes in."""
    if comm.rank == 0:
        print(f'{network} {number}: plain {pair[0]:.3f} s, out-of-core {pair[1]:.3f} s', flush=True)


if __name__ == '__main__':
    main()
