"""Runs a case for some iterations, in plain Chainer or out-of-core, and notes every bit that it leaves.

    leaf * gain -> sin -> into range -> THE FUNCTION -> sin(y) * y -> sum -> backward

The first iteration records the graph, the plan runs from the second on. That one is left alone: an array that somebody
has read is not recomputed any more. In the others the outputs are read as soon as they are there. In the third a hand
that does not belong to the graph also reads what the nodes of the outputs hold, between forward and backward (P1), and
in the last the outputs are held until backward is over and read once more. A link is trained from one to the next.
"""
import contextlib
import functools
import hashlib
import warnings

import chainer
import chainer.functions as F
import numpy as np

import chainer_ooc
from chainer_ooc.execute.iteration.iteration import Iteration
from support.conformance.conformance_cases import (
    Built,
    Feature,
    Statistic,
    Weight,
    flatten,
    leaf_of,
    make_feature,
    make_weight,
)
from support.trainings.ooc_training import bits_of, ooc

ITERATIONS = 4
LONG_BYTES = 1 << 20
LEARNING_RATE = 0.01
ALONE, READ_NODES, HOLD_OUTPUTS = 1, 2, 3


class Run:
    """What one case leaves.

    Args:
        case: a `Case`.
        layout: 'plain' or 'transposed', of the features.

    Attributes:
        bits: label -> dtype, shape and bytes.
        stats: of each iteration, None in plain Chainer.
    """

    def __init__(self, case, layout='plain'):
        self.case, self.layout = case, layout
        self.bits, self.stats = {}, []
        random = np.random.RandomState(1000)
        self.gains = [self._gain(random, each) for each in case.arguments]
        self.lasting = [self._lasting(random, each) for each in case.arguments]

    def _gain(self, random, given):
        if not isinstance(given, Feature):
            return None
        return chainer.Parameter(0.5 + np.abs(leaf_of(random, given, self.layout)))

    def _lasting(self, random, given):
        """What is made once: parameters, and copies of arrays that the function may change."""
        if isinstance(given, Weight):
            return make_weight(random, given)
        if isinstance(given, Built):
            return given.make()
        return given.start.copy() if isinstance(given, Statistic) else given

    def iterate(self, number):
        leaves = [self._leaf(np.random.RandomState([number, place]), each)
                  for place, each in enumerate(self.case.arguments)]
        held, nodes, loss = self._forward(number, leaves)
        self._note(number, 'loss', loss.array)
        for place, node in enumerate(nodes if number == READ_NODES else ()):
            self._note(number, f'node of output {place}', node.data)
        self._clear()
        loss.backward()
        del loss
        for place, each in enumerate(held):
            self._note(number, f'held output {place}', each.array)
        self._note_state(number, leaves)
        self.stats.append(chainer_ooc.stats())

    def _leaf(self, random, given):
        return chainer.Variable(leaf_of(random, given, self.layout)) if isinstance(given, Feature) else None

    def _forward(self, number, leaves):
        arguments = [
            lasting if leaf is None else make_feature(leaf, gain, given, self.layout)
            for leaf, gain, lasting, given in zip(leaves, self.gains, self.lasting, self.case.arguments, strict=True)]
        outputs = flatten(self.case.call(*arguments))
        for place, each in enumerate(outputs if number != ALONE else ()):
            self._note(number, f'output {place}', each.array if isinstance(each, chainer.Variable) else each)
        outputs = [each for each in outputs if isinstance(each, chainer.Variable)]
        past = arguments if self.case.forward_only else ()
        ends = [each for each in (*outputs, *past)
                if isinstance(each, chainer.Variable) and each.dtype.kind == 'f' and each.creator is not None]
        loss = sum(F.cast(F.sum(F.sin(each) * each), np.float32) * (1 + place / 2) for place, each in enumerate(ends))
        return outputs if number == HOLD_OUTPUTS else (), [each.node for each in outputs], loss

    def _clear(self):
        for each in (*self.gains, *self.lasting):
            if isinstance(each, chainer.Variable):
                each.cleargrad()
            elif isinstance(each, chainer.Link):
                each.cleargrads()

    def _note(self, number, what, array):
        dtype, shape, content = (None, None, b'') if array is None else bits_of(np.asarray(array))
        if len(content) > LONG_BYTES:  # the models of links.model.vision
            content = hashlib.sha256(content).digest()
        self.bits[f'{number}: {what}'] = (dtype, shape, content)

    def _note_state(self, number, leaves):
        for place, (leaf, gain, lasting) in enumerate(zip(leaves, self.gains, self.lasting, strict=True)):
            if leaf is not None:
                self._note(number, f'gradient of argument {place}', leaf.grad)
                self._note(number, f'gradient of the gain of argument {place}', gain.grad)
            elif isinstance(lasting, chainer.Variable):
                self._note(number, f'gradient of argument {place}', lasting.grad)
            elif isinstance(lasting, np.ndarray):
                self._note(number, f'argument {place}', lasting)
            elif isinstance(lasting, chainer.Link):
                self._note_link(number, lasting)
        kind, keys, position, *gauss = np.random.get_state()
        self.bits[f'{number}: random stream'] = (kind, keys.tobytes(), position, *gauss)

    def _note_link(self, number, link):
        for name, parameter in sorted(link.namedparams()):
            self._note(number, f'gradient of {name}', parameter.grad)
            if parameter.grad is not None:
                parameter.array -= (LEARNING_RATE * parameter.grad).astype(parameter.dtype)
            self._note(number, f'parameter {name}', parameter.array)
        for path, each in sorted(link.namedlinks()):
            for name in sorted(each._persistent):
                self._note(number, f'persistent value {path}/{name}', getattr(each, name))


@contextlib.contextmanager
def quiet(case):
    with warnings.catch_warnings():
        for pattern, _reason in case.quiet:
            warnings.filterwarnings('ignore', pattern)
        yield


@contextlib.contextmanager
def nothing_learnt_of_reads():
    """Plans go on as if nobody read: in each iteration what is read is recomputed, as when a program begins to read."""
    note, Iteration._note_exposed = Iteration._note_exposed, lambda iteration, storage: None
    try:
        yield
    finally:
        Iteration._note_exposed = note


def run(case, policy, layout='plain', make=Run):
    """All iterations under a policy, or in plain Chainer if that is None."""
    np.random.seed(0)
    with (quiet(case), nothing_learnt_of_reads(),
          chainer.using_config('ooc', None) if policy is None else ooc(policy, min_bytes=0)):
        made = make(case, layout)
        for number in range(ITERATIONS):
            made.iterate(number)
    return made


@functools.cache
def in_core(case, layout='plain', make=Run):
    """The bits of plain Chainer."""
    return run(case, None, layout, make).bits


def assert_conforms(case, policy, layout='plain', make=Run):
    """Compares all bits, and says which ones differ.

    Returns:
        The stats of each iteration.
    """
    expected = in_core(case, layout, make)
    found = run(case, policy, layout, make)
    labels = sorted({*found.bits, *expected})
    wrong = [label for label in labels if found.bits.get(label, 'absent') != expected.get(label, 'absent')]
    phases = [each.phase for each in found.stats]
    assert not wrong, f'not the bits of plain Chainer: {"; ".join(wrong)}'
    assert phases[1:] == ['run'] * (ITERATIONS - 1), f'no plan ran in some iteration: {phases}'
    return found.stats
