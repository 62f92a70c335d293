#!/bin/sh
# Trains ResNet50 on two ranks, each behind a wall of its own, in a virtual environment of its own. RANKS names another
# number of ranks; arguments go to the example.
set -eu
cd -- "$(dirname -- "$0")/.."
python=$(sh environment.sh ranks examples,mpi)
mpiexec=$(dirname -- "$python")/mpiexec
# Ranks share the cores: more threads than cores wait for each other.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec "$mpiexec" -n "${RANKS:-2}" "$python" examples/ranks.py "$@"
