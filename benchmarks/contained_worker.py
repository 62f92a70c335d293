"""One training for containers.py: in a process of its own, since it may be killed. Prints a line of JSON a step."""
from __future__ import annotations

import argparse
import json
import time

from surroundings import positive

# isort: split
import chainer
import chainer.functions as F
import chainer.links as L
import numpy

import chainer_ooc
from chainer_ooc.errors import InfeasibleBudgetError
from models import ARCHITECTURES

#: The exit status of a training that was refused, or that ran out of memory with an exception.
REFUSED = 4
MEMORY_ERROR = 3


class Recurrent(chainer.Chain):
    """A stateless GRU over a long sequence: many maps of the same size, nearly no scratch memory."""

    def __init__(self, size: int) -> None:
        super().__init__()
        with self.init_scope():
            self.cell = L.StatelessLSTM(size, size)
            self.out = L.Linear(size, 10)

    def forward(self, sequence: list[numpy.ndarray], labels: numpy.ndarray) -> chainer.Variable:
        state = hidden = None
        for each in sequence:
            state, hidden = self.cell(state, hidden, each)
        return F.softmax_cross_entropy(self.out(hidden), labels)


class Convolutions(chainer.ChainList):
    """A small VGG whose convolutions unfold the whole batch: scratch memory is many times the maps."""

    def __init__(self, channels: int) -> None:
        super().__init__(*(L.Convolution2D(None, channels, 3, pad=1) for _ in range(10)), L.Linear(None, 10))

    def forward(self, images: numpy.ndarray, labels: numpy.ndarray) -> chainer.Variable:
        h = images
        for number, link in enumerate(self[:-1]):
            h = F.relu(link(h))
            if number == 6:
                h = F.max_pooling_2d(h, 2, 2)
        return F.softmax_cross_entropy(self[-1](h), labels)


def resnet50(batch: int, crop: int):
    def draw(random):
        return random.rand(batch, 3, crop, crop).astype('f'), random.randint(0, 1000, batch).astype('i')
    return ARCHITECTURES['resnet50'].build(), draw


def recurrent(batch: int, length: int):
    def draw(random):
        return [random.rand(batch, 192).astype('f') for _ in range(length)], random.randint(0, 10, batch).astype('i')
    return Recurrent(192), draw


def convolutions(batch: int, crop: int):
    def draw(random):
        return random.rand(batch, 3, crop, crop).astype('f'), random.randint(0, 10, batch).astype('i')
    return Convolutions(16), draw


#: Network by name: what makes it, and its two sizes.
NETWORKS = {
    'resnet50': (resnet50, 16, 64),
    'recurrent': (recurrent, 512, 40),
    'convolutions': (convolutions, 16, 64),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('network', choices=NETWORKS)
    parser.add_argument('--policy')
    parser.add_argument('--iterations', type=positive, default=5)
    parser.add_argument('--budget')
    parser.add_argument('--workspace')
    parser.add_argument('--sizes', type=positive, nargs=2)
    arguments = parser.parse_args()
    make, *sizes = NETWORKS[arguments.network]
    entries = {'ooc': arguments.policy, 'ooc_budget': arguments.budget, 'ooc_workspace': arguments.workspace}
    for name, value in entries.items():
        setattr(chainer.global_config, name, value)
    try:
        train(*make(*(arguments.sizes or sizes)), arguments.iterations)
    except InfeasibleBudgetError as error:
        say(error=str(error))
        raise SystemExit(REFUSED) from None
    except MemoryError as error:
        say(error=f'MemoryError: {error}')
        raise SystemExit(MEMORY_ERROR) from None


def train(model: chainer.Chain, draw, iterations: int) -> None:
    random = numpy.random.RandomState(0)
    optimizer = chainer.optimizers.MomentumSGD(1e-3).setup(model)
    for _ in range(iterations):
        began = time.perf_counter()
        optimizer.update(lambda: model(*draw(random)))
        stats = chainer_ooc.stats()
        known = {} if stats is None else {
            'phase': stats.phase, 'budget_bytes': stats.budget_bytes, 'account_bytes': stats.peak_bytes,
            'stall_seconds': stats.stall_seconds, 'faults': stats.faults, 'recomputed': stats.recomputed_calls,
            'swapped_out_bytes': stats.swapped_out_bytes}
        say(seconds=time.perf_counter() - began, **known)


def say(**values) -> None:
    print(json.dumps(values), flush=True)


if __name__ == '__main__':
    main()
