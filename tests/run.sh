#!/bin/sh
# Passes the tests, in a virtual environment of their own. Arguments go to pytest; --long adds what is much like others.
#
# Two processes at once, each with one BLAS thread: pytest alone keeps one of two cores idle, and more threads than cores
# wait for each other. tests/matrix.py runs the same tests one by one, with as many BLAS threads as the library likes.
set -eu
cd -- "$(dirname -- "$0")/.."
python=$(sh environment.sh tests test,examples,cpu)
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec "$python" -m pytest --numprocesses 2 --dist worksteal "$@"
