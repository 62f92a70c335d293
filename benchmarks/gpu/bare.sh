#!/bin/sh
# The GPU programme on a bare, rented machine: its Python has CuPy, NumPy and PyTorch, and there is no network.
#
#   sh benchmarks/gpu/bare.sh pack                       at home: puts the wheels that are to be carried into .carried/
#   sh benchmarks/gpu/bare.sh first  OUT [OPTIONS]       there: at most nine minutes, all files in the folder OUT
#   sh benchmarks/gpu/bare.sh second OUT [OPTIONS]       there: the next nine minutes
#   sh benchmarks/gpu/bare.sh rest   OUT [OPTIONS]       there: nine more
#   sh benchmarks/gpu/bare.sh tests  OUT [OPTIONS]       there: tests/gpu, nine minutes of them
#
# OPTIONS go to run.py, or to pytest. Kernels that an earlier run has compiled are used if its kernels.tar.gz lies in
# .carried/, or in the folder that CARRIED names. PYTHON names another interpreter than python3. What is installed goes to
# a folder that is removed again.
set -eu
cd -- "$(dirname -- "$0")/../.."
carried=${CARRIED:-.carried}
python=${PYTHON:-python3}
kernels=$carried/kernels.tar.gz

pack() {
    mkdir -p "$carried"
    sh environment.sh tests test,examples >/dev/null  # builds Chainer's wheel
    cp .venv/wheels/chainer-7.8.1-*.whl "$carried"
    # --no-deps: what it needs beside is for kernels that are not used here.
    .venv/tests/bin/python -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 \
        --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 \
        --platform manylinux2014_x86_64 --dest "$carried" 'nvidia-cudnn-frontend>=1.32.0'
    ls -l "$carried"
}

is_built() {
    for suffix in $("$python" -c 'import importlib.machinery as found; print(*found.EXTENSION_SUFFIXES)'); do
        if [ -e "chainer_ooc/backends/host/_arena$suffix" ]; then return 0; fi
    done
    return 1
}

# Without a GPU the wheels are not wanted that are for one, and for the Python of its machine.
install() {
    case " $* " in *' --device host '*) unwanted='nvidia*' ;; *) unwanted= ;; esac
    set --
    for wheel in "$carried"/*.whl; do
        case ${wheel##*/} in $unwanted) ;; *) set -- "$@" "$wheel" ;; esac
    done
    [ -e "${1-}" ] || { echo "no wheels in $carried: make them with \`$0 pack\`" >&2; exit 1; }
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --disable-pip-version-check \
        --target "$site" "$@"
    export PYTHONPATH="$PWD:$site${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
    # Searches of plans are compiled code where there is a compiler: two seconds here for minutes later.
    is_built || "$python" setup.py -q build_ext --inplace >"$site/build.txt" 2>&1 || cat "$site/build.txt" >&2
}

# The limit is that of the command; the wheels are installed in a quarter of a minute of it.
measure() {
    stage=$1 out=$2
    shift 2
    install "$@"
    if [ -e "$kernels" ]; then set -- --kernels "$kernels" "$@"; fi
    "$python" benchmarks/gpu/run.py --stage "$stage" --out "$out" --minutes 8.75 "$@"
}

test_on_card() {
    out=$1
    shift
    install
    export CUPY_CACHE_DIR="$site/kernels"
    mkdir -p "$CUPY_CACHE_DIR" "$out"
    if [ -e "$kernels" ]; then tar -xzf "$kernels" -C "$CUPY_CACHE_DIR"; fi
    status=0
    # Interrupted, pytest still says what it has found.
    timeout -s INT -k 15 525 "$python" -m pytest tests/gpu -q -p no:cacheprovider "$@" >"$out/tests.txt" 2>&1 || status=$?
    tail -n 40 "$out/tests.txt"
    tar -czf "$out/kernels.tar.gz" -C "$CUPY_CACHE_DIR" .
    return "$status"
}

case "${1:-}" in
    pack) pack ;;
    first|second|rest) measure "$@" ;;
    tests) shift; test_on_card "$@" ;;
    *) sed -n '2,13s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
