#!/bin/sh
# Passes the tests, in a virtual environment of their own.
#
#   sh tests/run.sh             what takes less than ten minutes on two cores
#   sh tests/run.sh --all       all that has to pass before a merge
#   sh tests/run.sh ARGUMENTS   pytest's own, of all tests; --long adds what is much like others
#
# Two processes at once, each with one BLAS thread: pytest alone keeps one of two cores idle, and more threads than cores
# wait for each other. tests/matrix.py runs the same tests one by one, with as many BLAS threads as the library likes.
set -eu
cd -- "$(dirname -- "$0")/.."
case ${1-} in
    '') set -- --quick ;;
    --all) shift ;;
esac
python=$(sh environment.sh tests test,examples,cpu)
unset PYTHONDONTWRITEBYTECODE  # or each process that a test starts compiles all modules again
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec "$python" -m pytest --numprocesses 2 --dist worksteal "$@"
