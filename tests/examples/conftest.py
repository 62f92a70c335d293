"""What the tests of the examples share; chainer_ooc comes before them, as they import chainer."""
import os

import pytest

# Trainings in processes of their own: BLAS threads that wait for each other take minutes on a busy machine.
os.environ.setdefault('OMP_NUM_THREADS', '1')
import chainer_ooc  # noqa: F401  before the examples, which import chainer
from training_run import IterationRow, MemorySample, Outcome, TrainingRun


@pytest.fixture
def run():
    """Makes a run of some losses, one second each unless told, 0.5 s after the process started."""
    def make(name='in-core', losses=(7.0, 6.0, 5.0), seconds=1.0, **changes):
        iterations = tuple(
            IterationRow(start_seconds=seconds * at, end_seconds=seconds * (at + 1), loss=loss,
                      swapped_out_bytes=100, swapped_in_bytes=90, faults=at)
            for at, loss in enumerate(losses))
        samples = tuple(MemorySample(at_seconds=at / 4 - 0.5, resident_bytes=50_000_000 * (at % 5 + 1))
                        for at in range(2 + 4 * len(losses)))
        values = {'policy': None, 'wall_bytes': None, 'outcome': Outcome.FINISHED, 'peak_bytes': 300_000_000,
                  'ended_seconds': seconds * len(losses), 'parameters': 'abc', 'iterations': iterations,
                  'samples': samples}
        return TrainingRun(name=name, **{**values, **changes})
    return make
