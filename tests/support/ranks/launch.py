"""Starts a program on several ranks of this machine, and gives what each of them left.

The program is a file of this folder. Each rank calls `leave` with whatever `pickle` takes; a rank that ends with
another status than 0 ends all of them.
"""
import os
import pickle
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]

#: Seconds after which ranks that wait for each other are ended.
LONGEST_SECONDS = 120


@dataclass(frozen=True)
class Ended:
    """What a start on several ranks came to.

    Attributes:
        status: that of mpiexec.
        left: what each rank has left, None for one that left nothing.
        out: what all of them wrote, in the order in which it came.
        seconds: how long it took.
    """

    status: int
    left: list
    out: str
    seconds: float


def mpiexec():
    """The path of the launcher: that of the environment, or the system's."""
    return shutil.which('mpiexec', path=os.pathsep.join([os.path.dirname(sys.executable), os.environ['PATH']]))


def start(ranks, program, *arguments, folder, seconds=LONGEST_SECONDS, environment=None):
    """Runs a program of this folder, or a module, on so many ranks, to whatever end.

    Raises:
        AssertionError: it took longer than that; nothing of it runs any more.
    """
    started = [str(HERE / program)] if program.endswith('.py') else ['-m', program]
    command = [mpiexec(), '-n', str(ranks), sys.executable, *started, *map(str, arguments)]
    path = os.pathsep.join([str(ROOT), str(ROOT / 'tests'), *filter(None, [os.environ.get('PYTHONPATH')])])
    surroundings = {
        **os.environ, 'PYTHONPATH': path, 'PYTHONWARNINGS': 'ignore::FutureWarning:chainer', 'OMP_NUM_THREADS': '1',
        'PYTHONFAULTHANDLER': '1', 'RANKS_LEAVE': str(folder), **(environment or {})}
    began = time.monotonic()
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env=surroundings) as process:
        try:
            out, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as error:
            process.terminate()  # killed, it would leave its ranks behind
            raise AssertionError(f'{program} ran for {seconds} seconds:\n{process.communicate()[0]}') from error
    left = [_left(Path(folder, f'rank-{rank}')) for rank in range(ranks)]
    return Ended(process.returncode, left, out, time.monotonic() - began)


def run(ranks, program, *arguments, folder, **options):
    """What each rank has left, of a program that is to end well."""
    ended = start(ranks, program, *arguments, folder=folder, **options)
    assert ended.status == 0, ended.out
    return ended.left


def leave(value):
    """In a rank: leaves a value for the test."""
    from mpi4py import MPI

    with open(Path(os.environ['RANKS_LEAVE'], f'rank-{MPI.COMM_WORLD.rank}'), 'wb') as file:
        pickle.dump(value, file)


def _left(path):
    return pickle.loads(path.read_bytes()) if path.exists() else None
