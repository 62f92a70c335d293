#!/bin/sh
# Passes the tests on several ranks of this machine: each starts mpiexec with 2 ranks, with --long also with 4.
# Arguments go to pytest.
set -eu
cd -- "$(dirname -- "$0")/../.."
python=$(sh environment.sh tests test,examples,cpu,mpi)
unset PYTHONDONTWRITEBYTECODE  # or each rank compiles all modules again
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec "$python" -m pytest --ranks tests/ranks "$@"
