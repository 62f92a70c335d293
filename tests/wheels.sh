#!/bin/sh
# Passes the tests that look into the packages for GPUs, in an environment that has them; it needs no GPU. Names and
# signatures of CuPy, cuda-bindings and cuDNN's frontend are checked against the wheels, and CuPy's own arrays are laid
# over host memory. Left out is what a made-up device and the host do, with these packages as without: of tests/cuda what
# names none of them.
# Arguments go to pytest.
set -eu
cd -- "$(dirname -- "$0")/.."
python=$(sh environment.sh packages test,wheels)
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec "$python" -m pytest --numprocesses 2 --dist worksteal \
    $(grep -lE 'cupy|bindings|cudnn' tests/cuda/test_*.py) tests/fork tests/kernels/test_cudnn*.py tests/test_layering.py \
    --ignore tests/kernels/test_cudnn_normalization.py --ignore tests/cuda/test_gpu_programme.py "$@"
