"""Networks of many calls with next to no work, on which the time that a call costs beside its work can be seen.

`WORKS` maps a name to a function of a `Size`; what it returns runs an iteration when it is called, and says what bits
came out. Parameters never change: each iteration of a work gives the same bits, until it goes on to other data.
"""
from __future__ import annotations

import dataclasses
import hashlib
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import chainer
import chainer.functions as F
import chainer.links as L
import numpy

from surroundings import configured

SEED = 0
HELD_OF_FOUR = 3  # arrays out of four that the program of `ArraysHeld` holds


@dataclasses.dataclass(frozen=True)
class Size:
    """How large a work is.

    Attributes:
        calls: Forward calls of a chain.
        array_bytes: Bytes of each of its arrays.
        units: Width of the recursive network.
        leaves: Leaves of its largest tree.
        batchsize: Its trees.
    """

    calls: int = 100
    array_bytes: int = 4096
    units: int = 30
    leaves: int = 20
    batchsize: int = 25


class Work:
    """Something that trains, an iteration at a time.

    Attributes:
        calls: Forward calls of an iteration.
        held_share: Share of its feature maps that the program holds, so that they cannot leave.
        warm_ups: Iterations that run, at least, before one is known to be like those that come.
    """

    held_share = 0.0
    warm_ups = 1
    calls = 0

    def iterate(self, entries: Mapping[str, Any]) -> tuple[float, str]:
        """Runs one iteration under entries of chainer.config.

        Returns:
            tuple: Seconds from the first function to the end of backward, and a digest of loss and gradients.
        """
        numpy.random.seed(SEED)
        with configured(entries):
            began = time.perf_counter()
            arrays = self.run()
            seconds = time.perf_counter() - began
        digest = hashlib.sha256()
        for array in arrays:
            digest.update(array.tobytes())
        return seconds, digest.hexdigest()

    def run(self) -> Sequence[numpy.ndarray]:
        """Forward and backward once; returns the loss and the gradients."""
        raise NotImplementedError

    def go_on(self) -> bool:
        """Goes on to the next iteration's data; False where all have the same."""
        return False


class Chain(Work):
    """Calls in a row, each on the output of the one before; nobody holds what is between."""

    functions = (F.tanh, F.relu, F.identity, F.sigmoid)

    def __init__(self, size: Size) -> None:
        self.calls = size.calls
        self._x = numpy.random.RandomState(SEED).uniform(-1, 1, size.array_bytes // 4).astype(numpy.float32)

    def run(self) -> Sequence[numpy.ndarray]:
        x = h = chainer.Variable(self._x)
        kept: list[Any] = []
        for number in range(self.calls - 1):
            h = self.functions[number % len(self.functions)](h)
            self.keep(number, h, kept)
        loss = F.sum(h)
        loss.backward()
        return loss.array, x.grad

    def keep(self, number: int, h: chainer.Variable, kept: list[Any]) -> None:
        """What the program does with the output of a call."""


class VariablesHeld(Chain):
    """The program has each Variable in a list until backward is over."""

    def keep(self, number: int, h: chainer.Variable, kept: list[Any]) -> None:
        kept.append(h)


class ArraysHeld(Chain):
    """The program has the arrays of three calls in four in a list: most that eviction looks at cannot leave."""

    held_share = HELD_OF_FOUR / 4

    def keep(self, number: int, h: chainer.Variable, kept: list[Any]) -> None:
        if number % 4 < HELD_OF_FOUR:
            kept.append(h.array)


class Perceptron(Work):
    """Pairs of a small layer and ReLU."""

    def __init__(self, size: Size) -> None:
        pairs = max(1, (size.calls - 1) // 2)
        units = max(1, size.array_bytes // 512)
        self.calls = 2 * pairs + 1
        numpy.random.seed(SEED)
        self._model = chainer.Sequential(
            *[layer for _ in range(pairs) for layer in (L.Linear(units, units), F.relu)])
        self._x = numpy.random.RandomState(SEED).uniform(-1, 1, (4, units)).astype(numpy.float32)

    def run(self) -> Sequence[numpy.ndarray]:
        return _trained(self._model, F.sum(self._model(self._x)))


class Beside(Perceptron):
    """The same behind two calls whose maps are 1 MB and move, where those of the others stay."""

    def __init__(self, size: Size) -> None:
        super().__init__(size)
        self.calls += 4
        shape = (len(self._x), self._x.shape[1], -(-1_000_000 // self._x.nbytes))
        self._wide = numpy.random.RandomState(SEED).uniform(-1, 1, shape).astype(numpy.float32)

    def run(self) -> Sequence[numpy.ndarray]:
        narrow = F.sum(F.sigmoid(F.tanh(chainer.Variable(self._wide))), axis=2)
        return _trained(self._model, F.sum(self._model(narrow + self._x)))


class Bottleneck(chainer.Chain):
    """A block of ResNet50 with few channels: ten calls."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        narrow = max(1, channels // 4)
        with self.init_scope():
            self.convs = chainer.ChainList(
                L.Convolution2D(channels, narrow, 1, nobias=True),
                L.Convolution2D(narrow, narrow, 3, pad=1, nobias=True),
                L.Convolution2D(narrow, channels, 1, nobias=True))
            self.norms = chainer.ChainList(
                L.BatchNormalization(narrow), L.BatchNormalization(narrow), L.BatchNormalization(channels))

    def forward(self, x: chainer.Variable) -> chainer.Variable:
        h = F.relu(self.norms[0](self.convs[0](x)))
        h = F.relu(self.norms[1](self.convs[1](h)))
        return F.relu(self.norms[2](self.convs[2](h)) + x)


class Residual(Work):
    """Blocks of ResNet50 with small maps."""

    def __init__(self, size: Size) -> None:
        blocks = max(1, size.calls // 10)
        channels = max(4, size.array_bytes // 256)
        self.calls = 10 * blocks + 1
        numpy.random.seed(SEED)
        self._model = chainer.Sequential(*[Bottleneck(channels) for _ in range(blocks)])
        self._x = numpy.random.RandomState(SEED).uniform(-1, 1, (4, channels, 4, 4)).astype(numpy.float32)

    def run(self) -> Sequence[numpy.ndarray]:
        return _trained(self._model, F.sum(self._model(chainer.Variable(self._x))))


class Recurrent(chainer.Chain):
    """An LSTM that reads word by word, and whose loss is summed."""

    vocabulary = 50

    def __init__(self, units: int) -> None:
        super().__init__()
        with self.init_scope():
            self.word = L.EmbedID(self.vocabulary, units)
            self.state = L.LSTM(units, units)
            self.next = L.Linear(units, self.vocabulary)

    def forward(self, words: numpy.ndarray) -> chainer.Variable:
        self.state.reset_state()
        return sum(F.softmax_cross_entropy(self.next(self.state(self.word(word))), after)
                   for word, after in itertools.pairwise(words))


class Sentences(Work):
    """Batches of sentences, eight lengths in turn: the graph of a short one is the beginning of that of a longer one.

    An iteration of this work is one of each.
    """

    lengths, calls_per_word = 8, 8

    def __init__(self, size: Size) -> None:
        words = max(2, size.calls // (self.calls_per_word * self.lengths))
        random = numpy.random.RandomState(SEED)
        numpy.random.seed(SEED)
        self._model = Recurrent(max(1, size.array_bytes // 512))
        longest = [words + number - self.lengths // 2 for number in range(self.lengths)]
        self._sentences = [random.randint(0, Recurrent.vocabulary, (max(1, each) + 1, 4)).astype(numpy.int32)
                           for each in random.permutation(longest)]
        self.calls = sum(self.calls_per_word * (len(each) - 1) - 2 for each in self._sentences)

    def run(self) -> Sequence[numpy.ndarray]:
        found = []
        for each in self._sentences:
            found += [array.copy() for array in _trained(self._model, self._model(each)) if array is not None]
        return found


class Reader(chainer.Chain):
    """Embeds words, and reads each sentence of a batch by an LSTM of many calls a word; the loss is that of a class."""

    vocabulary, classes = 50, 4

    def __init__(self, units: int) -> None:
        super().__init__()
        with self.init_scope():
            self.word = L.EmbedID(self.vocabulary, units)
            self.read = L.NStepLSTM(1, units, units, dropout=0)
            self.classify = L.Linear(units, self.classes)

    def forward(self, sentences: Sequence[numpy.ndarray], classes: numpy.ndarray) -> chainer.Variable:
        ends = numpy.cumsum([len(each) for each in sentences])[:-1]
        words = F.split_axis(self.word(numpy.concatenate(sentences)), ends, 0)
        return F.softmax_cross_entropy(self.classify(self.read(None, None, words)[0][-1]), classes)


class Lengths(Work):
    """Batches of sentences whose lengths never come together again: each graph comes once.

    An iteration of this work is two of them.
    """

    warm_ups = 24
    batchsize, calls_per_word = 16, 16

    def __init__(self, size: Size) -> None:
        self._longest = max(8, size.calls // self.calls_per_word)
        numpy.random.seed(SEED)
        self._model = Reader(max(1, size.array_bytes // 512))
        self._number = 0
        self.go_on()
        with chainer.function_hooks.TimerHook() as hook:
            self._model(self._sentences, self._classes)
        self.calls = len(hook.call_history)  # other batches have about as many

    def go_on(self) -> bool:
        self._number += 1
        random = numpy.random.RandomState(self._seed())
        lengths = sorted(random.randint(self._longest // 4, self._longest + 1, self.batchsize), reverse=True)
        self._sentences = [random.randint(0, Reader.vocabulary, words).astype(numpy.int32) for words in lengths]
        self._classes = random.randint(0, Reader.classes, self.batchsize).astype(numpy.int32)
        return True

    def _seed(self) -> int:
        return self._number

    def run(self) -> Sequence[numpy.ndarray]:
        return _trained(self._model, self._model(self._sentences, self._classes))


class Returning(Lengths):
    """As lengths, but every third batch is one of two that came before."""

    def _seed(self) -> int:
        return self._number % 6 if self._number % 3 == 0 else self._number


def _trained(model: chainer.Link, loss: chainer.Variable) -> list[numpy.ndarray]:
    model.cleargrads()
    loss.backward()
    return [loss.array, *[each.grad for _, each in sorted(model.namedparams())]]


# --- trees -----------------------------------------------------------------------------------------------------------


def _rows(indices: numpy.ndarray) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Where row i of the result lies in a stack: place `indices[i]` of tree i."""
    return numpy.arange(len(indices)), indices


class StackGet(chainer.Function):
    """Takes a vector per tree off its place in the stack; the stack goes on as the same array."""

    def forward(self, inputs: Any) -> Any:
        stack, indices = inputs
        return stack[_rows(indices)], stack

    def backward(self, inputs: Any, grads: Any) -> Any:
        stack, indices = inputs
        vector_gradient, gradient = grads
        if gradient is None:
            gradient = numpy.zeros_like(stack)
        if vector_gradient is not None:
            gradient[_rows(indices)] += vector_gradient
        return gradient, None


class StackSet(chainer.Function):
    """Writes a vector per tree to its place in the stack, in place; so does backward with the stack's gradient."""

    def forward(self, inputs: Any) -> Any:
        stack, indices, vectors = inputs
        stack[_rows(indices)] = vectors
        return stack,

    def backward(self, inputs: Any, grads: Any) -> Any:
        indices, gradient = inputs[1], grads[0]
        vector_gradient = gradient[_rows(indices)]
        gradient[_rows(indices)] = 0
        return gradient, None, vector_gradient


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of all trees that are not done: places to read from, none for leaves; a place to write to."""

    words: numpy.ndarray | None
    left: numpy.ndarray | None
    right: numpy.ndarray | None
    target: numpy.ndarray
    labels: numpy.ndarray


def draw_steps(size: Size, vocabulary: int, classes: int, seed: int = SEED) -> list[Step]:
    """Draws binary trees of half as many leaves as the size says up to as many, the largest first.

    Places 0 and on are the leaves of a tree, those behind them its inner nodes from the bottom up. A step takes the
    trees that still have a leaf or a node left, which are the first ones.
    """
    random = numpy.random.RandomState(seed)
    leaves = sorted(random.randint(max(2, size.leaves // 2), size.leaves + 1, size.batchsize), reverse=True)
    merges = [_draw_merges(random, count) for count in leaves]

    def integers(values: Sequence[int]) -> numpy.ndarray:
        return numpy.array(values, numpy.int32)

    steps = []
    for place in range(leaves[0]):
        width = sum(place < count for count in leaves)
        steps.append(Step(integers(random.randint(0, vocabulary, width)), None, None, integers([place] * width),
                          integers(random.randint(0, classes, width))))
    for number in range(leaves[0] - 1):
        alive = [(count, merge[number]) for count, merge in zip(leaves, merges, strict=True) if number < len(merge)]
        steps.append(Step(
            None, integers([pair[0] for _, pair in alive]), integers([pair[1] for _, pair in alive]),
            integers([count + number for count, _ in alive]), integers(random.randint(0, classes, len(alive)))))
    return steps


def _draw_merges(random: numpy.random.RandomState, leaves: int) -> list[tuple[int, int]]:
    row, merges = list(range(leaves)), []
    while len(row) > 1:
        at = random.randint(len(row) - 1)
        merges.append((row[at], row[at + 1]))
        row[at:at + 2] = [leaves + len(merges) - 1]
    return merges


class Recursive(chainer.Chain):
    """The recursive network of Chainer's sentiment example, its trees evaluated on a stack that all calls share.

    A vector per word, one per pair of children, and classes of each. Each call reads or writes a thin slice of one
    array, the stack, and hands it on: hundreds of calls retain the same storage.
    """

    def __init__(self, vocabulary: int, units: int, classes: int) -> None:
        super().__init__()
        with self.init_scope():
            self.leaf = L.EmbedID(vocabulary, units)
            self.node = L.Linear(2 * units, units)
            self.classify = L.Linear(units, classes)

    def forward(self, steps: Sequence[Step], shape: tuple[int, int, int]) -> chainer.Variable:
        """The mean loss over all nodes of all trees; `shape` is that of the stack."""
        stack: Any = numpy.zeros(shape, numpy.float32)
        loss: Any = 0
        for step in steps:
            vectors, stack = self._vectors(step, stack)
            loss += F.softmax_cross_entropy(self.classify(vectors), step.labels, normalize=False) * len(step.labels)
            stack = StackSet()(stack, step.target, vectors)
        return loss / sum(len(step.labels) for step in steps)

    def _vectors(self, step: Step, stack: Any) -> tuple[chainer.Variable, Any]:
        if step.words is not None:
            return self.leaf(step.words), stack
        left, stack = StackGet()(stack, step.left)
        right, stack = StackGet()(stack, step.right)
        return F.tanh(self.node(F.concat((left, right)))), stack


class ThinStack(Work):
    """`Recursive` on trees of the size."""

    vocabulary = 1000
    classes = 5

    def __init__(self, size: Size) -> None:
        numpy.random.seed(SEED)
        self._chain = Recursive(self.vocabulary, size.units, self.classes)
        self._steps = draw_steps(size, self.vocabulary, self.classes)
        self._shape = size.batchsize, 2 * size.leaves, size.units
        self.calls = sum(6 if step.words is not None else 10 for step in self._steps) + 1

    def run(self) -> Sequence[numpy.ndarray]:
        loss = self._chain(self._steps, self._shape)
        self._chain.cleargrads()
        loss.backward()
        return [loss.array, *(parameter.grad for _, parameter in sorted(self._chain.namedparams()))]


WORKS: Mapping[str, Callable[[Size], Work]] = {
    'chain': Chain, 'perceptron': Perceptron, 'beside': Beside, 'residual': Residual, 'sentences': Sentences,
    'lengths': Lengths, 'returning': Returning, 'variables': VariablesHeld, 'arrays': ArraysHeld,
    'thin-stack': ThinStack}
