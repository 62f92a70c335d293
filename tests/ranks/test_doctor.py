"""`doctor` under mpiexec: what each rank has of the machine, once."""
import json
import os
import subprocess
import sys

import pytest

from chainer_ooc.backends.host import limits
from support.ranks.launch import start


def doctor(ranks, folder, **environment):
    ended = start(ranks, 'chainer_ooc', 'doctor', '--json', folder=folder, environment=environment)
    assert ended.status == 0, ended.out
    return json.loads(ended.out[ended.out.index('{'):])


def test_rank_0_says_what_each_rank_has(ranks, tmp_path):
    found = doctor(ranks, tmp_path)
    each = found['ranks']['each']
    assert [(row['rank_of_machine'], row['ranks_of_machine']) for row in each] == [(n, ranks) for n in range(ranks)]
    assert found['device']['budget_bytes'] == each[0]['budget_bytes']
    assert 0 < sum(row['budget_bytes'] for row in each) < limits.kilobyte_fields('/proc/meminfo')['MemAvailable']
    assert sum(row['spill_free_bytes'] for row in each) < 1.1 * found['device']['spill_free_bytes'] * ranks


def test_threads_that_wait_for_each_other_are_warned_of_once(ranks, tmp_path):
    assert doctor(ranks, tmp_path, OMP_NUM_THREADS='8')['warnings'][-1].count('export OMP_NUM_THREADS=') == 1


@pytest.mark.usefixtures('ranks')
@pytest.mark.parametrize('ranks', [2], indirect=True)
def test_a_launcher_of_another_mpi_is_a_problem_with_the_next_step():
    done = subprocess.run([sys.executable, '-m', 'chainer_ooc', 'doctor', '--json'], capture_output=True, text=True,
                          env={**os.environ, 'MPI_LOCALNRANKS': '2', 'MPI_LOCALRANKID': '0'})
    problem, = json.loads(done.stdout)['problems']
    assert done.returncode == 1
    assert 'mpi4py sees 1 of them, as it has loaded another MPI' in problem and 'mpiexec' in problem
