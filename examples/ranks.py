"""ResNet50 on several ranks with ChainerMN, each out-of-core behind a wall of its own.

    mpiexec -n 2 python examples/ranks.py
    mpiexec -n 2 python examples/ranks.py --policy none --wall 4GB

Each rank trains on crops of its own, and the gradients are averaged over all of them. What makes it out-of-core is
`use_out_of_core`; the rest is a program of ChainerMN's. Rank 0 prints the losses, and at the end each rank's memory and
whether all have the same parameters. Exit status: 0 when they have; 2 when a rank was refused (an option that cannot be
used, a budget too small, a full disk), 3 when one ended with MemoryError.
"""
import argparse
import hashlib
import resource
import sys
import time
from typing import Any

import chainer_ooc  # before chainer, which it patches as it is imported

# isort: split
import chainer
import chainermn
import numpy

from chainer_ooc.errors import OocError
from models import ARCHITECTURES
from options import Options, add_arguments, read_options
from photographs import RandomCrops, bundled_photographs
from training import EPOCH, use_out_of_core, wall

REFUSED, OUT_OF_MEMORY = 2, 3

#: What the launcher has not forwarded yet of what ranks wrote is lost when they are ended.
FORWARDING_SECONDS = 0.3


def main(arguments: list[str] | None = None) -> int:
    """Runs the command on this rank; returns its exit status."""
    parser = argparse.ArgumentParser(description='Trains an ImageNet network on several ranks, started by mpiexec.')
    add_arguments(parser)
    parser.set_defaults(policy='auto', batchsize=8, iterations=4, wall_bytes=950_000_000)
    parsed = parser.parse_args(arguments)
    comm = chainermn.create_communicator('naive')
    try:
        options = read_options(parsed)
        with use_out_of_core(options), wall(options.wall_bytes):
            return train(options, comm)
    except (OocError, ValueError, OSError, MemoryError) as error:
        status = OUT_OF_MEMORY if isinstance(error, MemoryError) else REFUSED
        kind = 'MemoryError: ' if status == OUT_OF_MEMORY else ''
        print(f'rank {comm.rank}: {kind}{error}', file=sys.stderr, flush=True)
        time.sleep(FORWARDING_SECONDS)
        comm.mpi_comm.Abort(status)  # the others wait for this rank
        return status


def train(options: Options, comm: chainermn.CommunicatorBase) -> int:
    """Trains, and prints what came of it on rank 0."""
    say = print if comm.rank == 0 else lambda *_, **__: None
    say(f'{options.title} on each of {comm.size} ranks, policy {options.policy}', flush=True)
    numpy.random.seed(options.seed)
    model = ARCHITECTURES[options.arch].build()
    optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.MomentumSGD(lr=0.01), comm).setup(model)
    crops = RandomCrops(bundled_photographs(), options.crop, EPOCH, seed=options.seed + comm.rank)
    batches = chainer.iterators.SerialIterator(crops, options.images_per_iteration, shuffle=False)
    updater = chainer.training.StandardUpdater(batches, optimizer)
    reporter = chainer.reporter.Reporter()
    reporter.add_observer('main', model)
    reporter.add_observers('main', model.namedlinks(skipself=True))
    for number in range(1, options.iterations + 1):
        began = time.monotonic()
        observation: dict[str, Any] = {}
        with reporter.scope(observation):
            updater.update()
        losses = comm.mpi_comm.gather(float(observation['main/loss'].array))
        say(f'iteration {number}: losses', ', '.join(f'{each:.4f}' for each in losses or []),
            f'({time.monotonic() - began:.1f} s)', flush=True)
    return compare(comm, digest(model))


def digest(model: chainer.Chain) -> str:
    """Hashes all parameters; running statistics are of each rank's own images."""
    hashed = hashlib.sha256()
    for _, parameter in sorted(model.namedparams()):
        hashed.update(numpy.ascontiguousarray(parameter.array).data)
    return hashed.hexdigest()


def compare(comm: chainermn.CommunicatorBase, found: str) -> int:
    """Prints each rank's memory, and whether they all have the same parameters."""
    stats = chainer_ooc.stats()
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    told = '' if stats is None else (
        f', {stats.peak_bytes / 1e6:,.0f} MB of arrays within {stats.budget_bytes / 1e6:,.0f}')
    lines = comm.mpi_comm.gather(f'rank {comm.rank}: {peak_bytes / 1e6:,.0f} MB resident at most{told}')
    is_same = len(set(comm.mpi_comm.allgather(found))) == 1
    if comm.rank == 0:
        print(*lines, f'parameters {"equal" if is_same else "DIFFERENT"} on all ranks ({found[:16]})', sep='\n')
    return 0 if is_same else 1


if __name__ == '__main__':
    sys.exit(main())
