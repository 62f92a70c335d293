#!/bin/sh
# Passes the tests that look into the packages for GPUs, in an environment that has them; it needs no GPU. Names and
# signatures of CuPy, cuda-bindings and cuDNN's frontend are checked against the wheels, and CuPy's own arrays are laid
# over host memory. Left out is what a made-up device and the host do, with these packages as without: what is selected
# skips, without them, or imports all that there is.
# Arguments go to pytest.
set -eu
cd -- "$(dirname -- "$0")/.."
python=$(sh environment.sh packages test,wheels)
unset PYTHONDONTWRITEBYTECODE  # or each process that a test starts compiles all modules again
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec "$python" -m pytest --numprocesses 2 --dist worksteal \
    $(grep -lE "importorskip\('(cupy|cuda|cudnn)" tests/cuda/test_*.py tests/fork/test_*.py tests/kernels/test_cudnn*.py) \
    tests/cuda/test_presence.py::test_what_is_installed_here_answers tests/fork/test_hook.py tests/test_layering.py "$@"
