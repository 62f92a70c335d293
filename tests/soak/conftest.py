"""The soak is a script: its folder is on the path of whoever runs it, so it is here."""
import pathlib
import sys

HERE = str(pathlib.Path(__file__).parent)

if HERE not in sys.path:
    sys.path.insert(0, HERE)
import soak_trainings  # noqa: E402, F401  puts folders on the path, and chainer_ooc before chainer
