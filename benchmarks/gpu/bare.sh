#!/bin/sh
# The GPU programme on a bare, rented machine: its Python has CuPy, NumPy and PyTorch, and there is no network.
#
#   sh benchmarks/gpu/bare.sh pack                       here: puts the wheels that are to be carried into .carried/
#   sh benchmarks/gpu/bare.sh first  OUT [OPTIONS]       there: at most nine minutes, all files in the folder OUT
#   sh benchmarks/gpu/bare.sh second OUT [OPTIONS]       there: the next nine minutes
#
# OPTIONS go to run.py. Kernels that an earlier run has compiled are used if they lie in .carried/kernels.tar.gz.
# PYTHON names another interpreter than python3. What is installed goes to a folder of its own, which is removed.
set -eu
cd -- "$(dirname -- "$0")/../.."
carried=.carried
python=${PYTHON:-python3}

if [ "${1:-}" = pack ]; then
    mkdir -p "$carried"
    sh environment.sh tests test,examples >/dev/null  # builds Chainer's wheel
    cp .venv/wheels/chainer-7.8.1-*.whl "$carried"
    "$python" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
        --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux2014_x86_64 \
        --dest "$carried" 'nvidia-cudnn-frontend>=1.32.0'
    ls -l "$carried"
    exit
fi

stage=$1 out=$2
shift 2
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
"$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --target "$site" "$carried"/*.whl
if [ -e "$carried/kernels.tar.gz" ]; then set -- --kernels "$carried/kernels.tar.gz" "$@"; fi
export PYTHONPATH="$PWD:$site" PYTHONUNBUFFERED=1
"$python" benchmarks/gpu/run.py --stage "$stage" --out "$out" "$@"
