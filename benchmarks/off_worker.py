"""One side of `off.py`: trains as often as it is told to and says how much processor time that took.

    python off_worker.py plain|patched NETWORK

Each line read is a number of iterations; each line written is processor seconds and wall seconds. The plain side never
imports chainer_ooc.
"""
import importlib
import pathlib
import sys
import time
import warnings

warnings.simplefilter('ignore')  # of unpatched Chainer on a newer NumPy
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'examples'))
if sys.argv[1] == 'patched':
    importlib.import_module('chainer_ooc')

# isort: split
import chainer  # noqa: E402
import chainer.functions as F  # noqa: E402
import chainer.links as L  # noqa: E402
import numpy  # noqa: E402


class ManyCalls(chainer.ChainList):
    """Forty small layers: what takes the time is Chainer's own handling of functions and variables."""

    def __init__(self):
        super().__init__(*(L.Linear(16, 16) for _ in range(40)))

    def forward(self, images, labels):
        h = images
        for layer in self:
            h = F.relu(layer(h))
        return F.softmax_cross_entropy(h, labels)


def make(network):
    """Makes a network and a batch for it."""
    random = numpy.random.RandomState(0)
    if network == 'many-calls':
        return ManyCalls(), random.randn(4, 16).astype(numpy.float32), numpy.arange(4, dtype=numpy.int32)
    from models import ARCHITECTURES

    images = random.randn(4, 3, 64, 64).astype(numpy.float32)
    return ARCHITECTURES[network].build(10), images, numpy.arange(4, dtype=numpy.int32)


def main():
    chain, images, labels = make(sys.argv[2])
    optimizer = chainer.optimizers.MomentumSGD(lr=1e-4).setup(chain)
    optimizer.update(chain, images, labels)
    print('ready', 'chainer_ooc' in sys.modules, flush=True)
    for line in sys.stdin:
        processor, wall = time.process_time(), time.perf_counter()
        for _ in range(int(line)):
            optimizer.update(chain, images, labels)
        print(time.process_time() - processor, time.perf_counter() - wall, flush=True)


if __name__ == '__main__':
    main()
