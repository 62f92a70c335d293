"""Trainings for the soak: networks of changing shapes, iterations that can be repeated, and digests of all they give.

`NETWORKS` maps a name to a `Network`. A `Task` is a training as a frozen value: equal tasks give equal digests in plain
Chainer, whatever ran before in the process.
"""
from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
for _folder in (TESTS, TESTS.parent / 'benchmarks', TESTS.parent):
    if str(_folder) not in sys.path:
        sys.path.append(str(_folder))
import chainer_ooc  # noqa: E402, F401  before chainer

# isort: split
import chainer  # noqa: E402
import chainer.functions as F  # noqa: E402
import chainer.links as L  # noqa: E402
import numpy as np  # noqa: E402

import small_calls  # noqa: E402
from support.trainings import ooc_networks  # noqa: E402

USES = ('accumulate', 'retain grad', 'evaluate', 'read nodes', 'hold loss', 'hold a map', 'write to a map')
OPTIMIZERS: Mapping[str, Callable[[], Any]] = {
    'momentum': lambda: chainer.optimizers.MomentumSGD(lr=0.01, momentum=0.9),
    'adam': lambda: chainer.optimizers.Adam(alpha=0.001)}
Digests = list[tuple[str, str]]


@dataclass(frozen=True)
class Network:
    """A kind of model.

    Attributes:
        make: gives the model, which maps a batch to a loss.
        batch: gives a batch of a random state and sizes.
        draw: gives sizes of a random number generator.
        draws: whether its functions draw random numbers, so that no other thread may at the same time.
    """

    make: Callable[[], chainer.Chain]
    batch: Callable[..., tuple[Any, ...]]
    draw: Callable[[random.Random], dict[str, int]]
    draws: bool = False


@dataclass(frozen=True)
class Task:
    """A training.

    Attributes:
        network: a name in `NETWORKS`.
        seed: of parameters and batches.
        sizes: of the batches, in turns.
        iterations: how many.
        optimizer: a name in `OPTIMIZERS`.
        uses: some of `USES`: what the program does beside forward, backward and update.
        crossings: the iterations whose forward pass another thread runs, if there is one.
        passes: those whose backward pass it runs.
    """

    network: str
    seed: int
    sizes: tuple[tuple[tuple[str, int], ...], ...]
    iterations: int
    optimizer: str
    uses: frozenset[str]
    crossings: frozenset[int] = frozenset()
    passes: frozenset[int] = frozenset()

    @property
    def has_two_threads(self) -> bool:
        return bool(self.crossings or self.passes)


# --- networks --------------------------------------------------------------------------------------------------------


class Perceptron(chainer.Chain):
    """Wide layers and dropout: few large maps."""

    def __init__(self) -> None:
        super().__init__()
        with self.init_scope():
            self.layers = chainer.ChainList(*(L.Linear(256, 256) for _ in range(6)))
            self.last = L.Linear(256, 5)

    def forward(self, x: Any, t: Any) -> chainer.Variable:
        h = x
        for layer in self.layers:
            h = F.dropout(F.relu(layer(h)), 0.3)
        return F.softmax_cross_entropy(self.last(h), t)


class Recurrent(chainer.Chain):
    """A sequence, a word at a time: a graph as long as the sequence."""

    def __init__(self) -> None:
        super().__init__()
        with self.init_scope():
            self.embed = L.EmbedID(50, 64)
            self.cell = L.StatelessLSTM(64, 64)
            self.last = L.Linear(64, 50)

    def forward(self, words: np.ndarray) -> chainer.Variable:
        c, h, loss = None, None, 0
        for now, after in itertools.pairwise(words):
            c, h = self.cell(c, h, self.embed(now))
            loss += F.softmax_cross_entropy(self.last(h), after)
        return loss / (len(words) - 1)


class Penalised(chainer.Chain):
    """The gradient with respect to the input is part of the loss."""

    def __init__(self) -> None:
        super().__init__()
        with self.init_scope():
            self.first = L.Convolution2D(3, 8, 3, pad=1)
            self.second = L.Convolution2D(8, 8, 3, pad=1)

    def forward(self, x: np.ndarray) -> chainer.Variable:
        given = chainer.Variable(x)
        y = F.sum(self.second(F.tanh(self.first(given))) ** 2)
        gradient, = chainer.grad([y], [given], enable_double_backprop=True)
        return y / x.size + F.sum(gradient * gradient) / x.size


def _images(draws: np.random.RandomState, size: int, side: int) -> tuple[Any, ...]:
    return ooc_networks._images(draws, size=size, side=side)


def _trees(draws: np.random.RandomState, units: int, leaves: int, size: int) -> tuple[Any, ...]:
    given = small_calls.Size(units=units, leaves=leaves, batchsize=size)
    return small_calls.draw_steps(given, 40, 5, draws.randint(1 << 30)), (size, 2 * leaves, units)


def _small(name: str, most: int, draws: bool = False) -> Network:
    _, batch = ooc_networks.NETWORKS[name]()
    return Network(lambda: ooc_networks.NETWORKS[name]()[0], batch,
                   lambda choose: {'size': choose.randint(1, most)}, draws)


NETWORKS: Mapping[str, Network] = {
    'residual': Network(ooc_networks.Residual, _images,
                        lambda choose: {'size': choose.randint(2, 8), 'side': choose.choice([8, 16, 32, 64])}),
    'perceptron': Network(
        Perceptron, lambda draws, size: (draws.uniform(-1, 1, (size, 256)).astype(np.float32),
                                         draws.randint(0, 5, size).astype(np.int32)),
        lambda choose: {'size': choose.choice([16, 100, 400, 1000])}, draws=True),
    'recurrent': Network(Recurrent,
                         lambda draws, size, length: (draws.randint(0, 50, (length, size)).astype(np.int32),),
                         lambda choose: {'size': choose.randint(1, 64), 'length': choose.randint(2, 30)}),
    'penalised': Network(Penalised, lambda draws, size, side: (_images(draws, size, side)[0],),
                         lambda choose: {'size': choose.randint(1, 8), 'side': choose.choice([8, 24, 48])}),
    'thin-stack': Network(lambda: small_calls.Recursive(40, 32, 5), _trees,
                          lambda choose: {'units': 32, 'leaves': choose.randint(3, 12), 'size': choose.randint(1, 20)}),
    'hidden': _small('hidden', 16, draws=True),
    'inception': _small('inception', 16, draws=True),
    'views': _small('views', 32),
    'several': _small('several', 64),
    'old': _small('old', 64),
    'reused': _small('reused', 64),
    'mixed': _small('mixed', 64),
}


# --- training --------------------------------------------------------------------------------------------------------


def digest(array: Any) -> str:
    """Dtype, shape and content of an array in a short text."""
    array = np.asarray(array)
    return hashlib.blake2b(repr((array.dtype.str, array.shape)).encode() + array.tobytes(), digest_size=12).hexdigest()


def call(function: Callable[[], Any], way: str) -> Any:
    """Runs a pass, 'forward' or 'backward', in the calling thread."""
    return function()


class Keeper(chainer.LinkHook):
    """Holds what a link gave, as a program does that shows a map of its network.

    Args:
        number: of the call of a link, from 0 on.

    Attributes:
        variable: what the call gave; None if there was no such call.
    """

    name = 'soak'

    def __init__(self, number: int) -> None:
        self.variable: Any = None
        self._left = number

    def forward_postprocess(self, args: Any) -> None:
        self._left -= 1
        if self._left == -1 and isinstance(args.out, chainer.Variable):
            self.variable = args.out


def nothing(loss: chainer.Variable) -> None:
    """What happens between forward and backward."""


class Training:
    """A model and its optimizer, an iteration at a time."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._network = NETWORKS[task.network]
        np.random.seed(task.seed)
        self.model = self._network.make()
        with chainer.using_config('ooc', None), chainer.using_config('train', False), chainer.no_backprop_mode():
            if task.network != 'penalised':  # which needs backprop in its forward pass, and no sizes for its links
                self.model(*self._batch(0, 0))
        self._optimizer = OPTIMIZERS[task.optimizer]().setup(self.model)
        self._held: Any = None

    def iterate(self, number: int, elsewhere: Callable[[Callable[[], Any], str], Any] = call,
                between: Callable[[chainer.Variable], None] = nothing) -> Digests:
        """Runs one iteration.

        Args:
            number: which; it seeds the random stream.
            elsewhere: runs the passes of the iteration that another thread is to run by the task.
            between: is called with the loss before backward.

        Returns:
            list: a digest of each loss, gradient and parameter, with a label.
        """
        np.random.seed(self.task.seed + 1000 + number)
        uses, found = self.task.uses, []
        if 'evaluate' in uses and self.task.network != 'penalised':
            with chainer.using_config('train', False), chainer.no_backprop_mode():
                found.append(('evaluation', digest(self.model(*self._batch(number, 9)).array)))
        self.model.cleargrads()
        for part in range(2 if 'accumulate' in uses else 1):
            own = self._own_graph() if number in self.task.crossings else None
            batch = self._batch(number, part)
            with self._keeper(number) as keeper:
                loss = elsewhere(lambda batch=batch: self.model(*batch), 'forward') if own else self.model(*batch)
            del batch
            if keeper is not None and keeper.variable is not None and self._writes(number):
                keeper.variable.array[...] *= 0.9
            if 'read nodes' in uses:
                found += _read_nodes(loss, random.Random(number))
            between(loss)
            backward = functools.partial(loss.backward, retain_grad='retain grad' in uses)
            elsewhere(backward, 'backward') if number in self.task.passes else backward()
            del backward
            if own:
                own[1].backward()
                found.append(('own gradient', digest(own[0].grad)))
            found.append((f'loss {part}', digest(loss.array)))
            if keeper is not None and keeper.variable is not None:
                found.append((f'map {part}', digest(keeper.variable.array)))
            self._held = (loss if 'hold loss' in uses else None, keeper if 'hold a map' in uses else None)
            del loss, own, keeper
        found += self.gradients()
        self._optimizer.update()
        found += [(f'parameter {name}', digest(each.array)) for name, each in sorted(self.model.namedparams())]
        found += [(f'persistent {name}', digest(getattr(link, each)))
                  for name, link in sorted(self.model.namedlinks()) for each in sorted(link._persistent)]
        return found

    def gradients(self) -> Digests:
        """A digest of each parameter's gradient."""
        return [(f'gradient {name}', digest(each.grad)) for name, each in sorted(self.model.namedparams())
                if each.grad is not None]

    def save(self) -> tuple[Any, ...]:
        """Copies everything that an iteration changes."""
        parameters = [each for _, each in sorted(self.model.namedparams())]
        persistent = [(link, name, np.copy(getattr(link, name)))
                      for link in self.model.links() for name in sorted(link._persistent)]
        states = [(each.update_rule, each.update_rule.t, {key: np.copy(value) for key, value in
                                                          (each.update_rule.state or {}).items()})
                  for each in parameters]
        return [(each, each.array.copy()) for each in parameters], persistent, states, self._optimizer.t

    def restore(self, saved: tuple[Any, ...]) -> None:
        """Goes back to what was saved, so that the iteration can be repeated."""
        parameters, persistent, states, self._optimizer.t = saved
        for parameter, array in parameters:
            parameter.array[...] = array
        for link, name, value in persistent:
            if value.shape:
                getattr(link, name)[...] = value
            else:
                setattr(link, name, value[()])
        for rule, rule.t, state in states:
            if not state:
                rule._state = None
            for key, value in state.items():
                rule.state[key][...] = value
        self._held = None

    def _batch(self, number: int, part: int) -> tuple[Any, ...]:
        sizes = dict(self.task.sizes[number % len(self.task.sizes)])
        return self._network.batch(np.random.RandomState(self.task.seed + 100 * number + part), **sizes)

    def _keeper(self, number: int) -> Any:
        if 'hold a map' in self.task.uses or self._writes(number):
            return Keeper(random.Random(self.task.seed).randrange(8))
        return contextlib.nullcontext()

    def _writes(self, number: int) -> bool:
        """Whether the program writes to a map: in some iterations, so that plans are made without it."""
        return 'write to a map' in self.task.uses and number % 3 == 2

    def _own_graph(self) -> tuple[chainer.Variable, chainer.Variable]:
        x = chainer.Variable(np.linspace(-1, 1, 3000, dtype=np.float32))
        return x, F.sum(F.sigmoid(F.tanh(F.exp(x)) * x))


def _read_nodes(loss: chainer.Variable, choose: random.Random) -> Digests:
    """Reads the data of some nodes of the graph, as a debugger or an extension would."""
    nodes, seen = [loss.node], {id(loss.node)}
    for node in nodes:  # grows while it is walked
        for each in node.creator_node.inputs if node.creator_node is not None else ():
            if id(each) not in seen:
                seen.add(id(each))
                nodes.append(each)
    found = []
    for place in sorted(choose.sample(range(len(nodes)), min(4, len(nodes)))):
        data = nodes[place].data
        found.append((f'node {place} of {len(nodes)}', 'none' if data is None else digest(data)))
    return found
