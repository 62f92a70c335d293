"""The examples are scripts: their folder is on the path of whoever runs them, so it is here."""
import os
import pathlib
import sys

EXAMPLES = pathlib.Path(__file__).parents[2] / 'examples'

# Trainings in processes of their own: BLAS threads that wait for each other take minutes on a busy machine.
os.environ.setdefault('OMP_NUM_THREADS', '1')
if str(EXAMPLES) not in sys.path:
    sys.path.insert(0, str(EXAMPLES))
import chainer_ooc  # noqa: E402, F401  before the examples, which import chainer
