#!/bin/sh
# Makes the virtual environment .venv/NAME with this checkout and the extras EXTRAS in it, or finds it made already, with
# these or more, and prints the path of its Python. Everything else that it has to say goes to stderr.
#
#   sh environment.sh NAME EXTRAS [CONSTRAINTS]
#
# PYTHON names another interpreter than the first suitable one on the PATH. CONSTRAINTS is a pip constraints file.
#
# Why not plain `pip install`: Chainer 7.8.1 exists as source only, and its setup.py needs pkg_resources, which
# setuptools dropped in version 81. So Chainer is built here beside an older setuptools. The wheel is pure Python: it is
# kept in .venv/wheels and serves every environment.
set -eu

name=$1 extras=$2 constraints=${3:-}
root=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
venv=$root/.venv/$name
wheels=$root/.venv/wheels
chainer=chainer==7.8.1

say() { echo "$*" >&2; }
fail() { say "error: $*"; exit 1; }

is_suitable() { "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 15))' 2>/dev/null; }

find_python() {
    for candidate in ${PYTHON:-python3 python3.15 python3.14 python3.13 python3.12 python3.11 python3.10}; do
        if is_suitable "$candidate"; then command -v "$candidate"; return; fi
    done
    if [ -n "${PYTHON:-}" ]; then fail "PYTHON=$PYTHON is no Python 3.10 to 3.15"; fi
    fail 'no Python 3.10 to 3.15 on the PATH (tried python3 and python3.15 to python3.10).
Install one, on Debian or Ubuntu: sudo apt-get install python3 python3-venv; or name one: PYTHON=/path/to/python3'
}

# Debian splits the standard library: without python3-venv, `python3 -m venv` exists and fails.
need_venv() {
    if "$python" -c 'import venv; from ensurepip import version' 2>/dev/null; then return; fi
    package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    advice="$python cannot make virtual environments: run \`sudo apt-get install $package\`, then this command again"
    command -v apt-get >/dev/null || fail "$python cannot make virtual environments: install its venv and ensurepip"
    [ "$(id -u)" = 0 ] || fail "$advice"
    say "installing $package, without which Debian's Python cannot make virtual environments ..."
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package"; } >/dev/null || fail "$advice"
}

pip() { "$venv/bin/python" -m pip --quiet --disable-pip-version-check --no-input "$@" >&2; }

build_chainer() {
    for wheel in "$wheels"/chainer-7.8.1-*.whl; do
        if [ -e "$wheel" ]; then return; fi
    done
    say "building $chainer ..."
    # Into a folder of its own first: an interrupted build must not leave half a wheel.
    pip wheel --no-deps --no-build-isolation --wheel-dir "$venv/wheel" "$chainer"
    mkdir -p "$wheels"
    mv "$venv/wheel"/chainer-7.8.1-*.whl "$wheels"
}

make() {
    say "making .venv/$name with Python $("$python" -c 'import platform; print(platform.python_version())') ..."
    rm -rf "$venv"
    "$python" -m venv "$venv" >&2
    pip install 'setuptools<81' wheel
    build_chainer
    add "$extras"
}

add() {
    say "installing what setup.cfg asks for [$1] ..."
    pip install --no-build-isolation --find-links "$wheels" ${constraints:+--constraint "$constraints"} \
        --editable "$root[$1]"
}

# What the environment depends on. The path is part of it: an environment cannot be moved.
describe() {
    "$python" -VV
    echo "$venv"
    cat "$root/setup.cfg" "$root/setup.py" "$root"/chainer_ooc/backends/host/*.[ch] \
        "$root/chainer_ooc/kernels/onednn/_batch_norm.c" "$root"/chainer_ooc/simulate/native/*.[ch] \
        "$root/environment.sh" ${constraints:+"$constraints"}
}

# Those of the extras asked for that the environment lacks.
lacking() {
    for extra in $(echo "$extras" | tr , ' '); do
        grep -qx -- "$extra" "$venv/extras" || echo "$extra"
    done
}

python=$(find_python)
trap 'say "error: could not make .venv/$name; the lines above say why. The same command starts afresh"' EXIT
if ! describe | cmp -s - "$venv/made-from"; then
    need_venv
    make
    echo "$extras" | tr , '\n' >"$venv/extras"
    describe >"$venv/made-from"
elif [ -n "$(lacking)" ]; then
    new=$(lacking)
    add "$( (cat "$venv/extras"; echo "$new") | paste -sd , -)"
    echo "$new" >>"$venv/extras"
fi
trap - EXIT
echo "$venv/bin/python"
