#!/bin/sh
# Passes the tests, in a virtual environment of their own. Arguments go to pytest.
set -eu
cd -- "$(dirname -- "$0")/.."
python=$(sh environment.sh tests test,examples)
exec "$python" -m pytest "$@"
