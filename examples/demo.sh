#!/bin/sh
# The main job, in a virtual environment of its own. Arguments go to the example, after those here.
set -eu
cd -- "$(dirname -- "$0")/.."
python=$(sh environment.sh demo examples)
exec "$python" examples/demo.py "$@"
