"""Random programs: graphs with several backward passes, trained for some iterations, and everything that they leave.

A program is a frozen value of small numbers, drawn by hypothesis; what a number means is decided while the program
runs (`random_operations`), so that a program whose parts are taken away is still one, and failures shrink. It runs in
stages, each of which applies operations, makes a loss, and may go backward over any part of what there is so far::

    stage 0: operations, loss 0 -> backward from loss 0          -> optimizer
    stage 1: operations on stage 0's Variables, loss 1 -> backward from losses 0 and 1, chainer.grad, ...

`verdict_row` makes a policy that draws its verdicts, and `Budget` finds budgets that are just feasible.
"""
import contextlib
import random
from dataclasses import dataclass
from unittest import mock

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from hypothesis import strategies as st

import chainer_ooc
from chainer_ooc.classify.policies import POLICIES, Policy
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.execute import manager
from chainer_ooc.problem import EARLY, WITH_THE_STEP_BEFORE, Decision, Verdict, can_leave, can_recompute
from support.trainings.ooc_training import Outcome, Training
from support.trainings.random_operations import LOSSES, OPERATIONS

PASSES = ('backward', 'twice', 'retain grad', 'loss scale', 'together', 'grad', 'double', 'late', 'none')
MOMENTS = ('at once', 'before backward', 'after backward', 'next iteration')


@dataclass(frozen=True)
class Operation:
    """One operation: its name, which Variable it gets, a number to choose with, and what the user keeps of it.

    What is kept is kept into the next iteration: '' for nothing, the 'variable', its 'array', or a 'view' of that.
    """

    name: str
    source: int
    number: int
    kept: str


@dataclass(frozen=True)
class Stage:
    """Operations, then a loss, then a backward pass.

    Attributes:
        loss: which of `LOSSES`.
        source: which Variable it is of.
        way: one of `PASSES`; 'late' goes backward from the last loss of the iteration before as well.
        losses: how many of the latest losses it is of.
        update: the optimizer changes the parameters afterwards.
    """

    operations: tuple[Operation, ...]
    loss: int
    source: int
    way: str
    losses: int
    update: bool


@dataclass(frozen=True)
class Program:
    """Stages that are repeated each iteration.

    Attributes:
        seed: of parameters, batches and masks.
        stages: see there.
        window: how many of the latest Variables are at hand.
        moments: when the user reads what he keeps.
        cuts: per iteration, how many of the last stage's operations are left out: the graph changes.
    """

    seed: int
    stages: tuple[Stage, ...]
    window: int
    moments: frozenset[str]
    cuts: tuple[int, ...]

    @property
    def is_ever_late(self):
        """Whether an iteration goes backward from a loss of the one before."""
        return any(stage.way == 'late' for stage in self.stages)


numbers = st.integers(0, 63)
operations = st.builds(
    Operation, st.sampled_from(sorted(OPERATIONS)), numbers, numbers,
    st.sampled_from(['', '', '', '', 'variable', 'array', 'view']))
stages = st.builds(
    Stage, st.lists(operations, min_size=2, max_size=8).map(tuple), numbers, numbers, st.sampled_from(PASSES),
    st.integers(1, 3), st.booleans())
programs = st.builds(
    Program, st.integers(0, 5), st.lists(stages, min_size=1, max_size=3).map(tuple), st.integers(1, 5),
    st.frozensets(st.sampled_from(MOMENTS)),
    st.sampled_from([(0, 0, 0), (0, 0, 0), (0, 0, 0), (0, 0, 0, 0), (0, 2, 0), (2, 0, 2, 0), (0, 1, 2)]))


class Graph(chainer.Chain):
    """Runs a program's iterations; links are made when an operation first asks for one."""

    def __init__(self, program, note):
        super().__init__()
        self.program = program
        self.note = note
        self.kept = []
        self.past = None
        with self.init_scope():
            self.first = L.Convolution2D(3, 4, 3, pad=1)
            self.words = L.Linear(7, 9)
            self.shared = L.Linear(8, 8)

    # --- what operations ask for -----------------------------------------------------------------------------------

    def link(self, make):
        if not hasattr(self, self.place):
            self.add_link(self.place, make())
        return getattr(self, self.place)

    def other(self, number):
        return self.values[number % len(self.values)]

    def labels(self, rows, classes):
        return (np.arange(rows) % classes).astype(np.int32)

    # --- an iteration ----------------------------------------------------------------------------------------------

    def begin(self, number):
        batch = np.random.RandomState(number)
        self.x = chainer.Variable(batch.uniform(-1, 1, (2, 3, 6, 6)).astype(np.float32))
        words = batch.uniform(-1, 1, (5, 7)).astype(np.float32)
        self.values = [F.tanh(self.first(self.x)), self.words(words)]
        self.losses, self.kept = [], []
        self.differentiable_twice = True

    def end(self):
        """Lets go of everything but what the user keeps."""
        if self.program.is_ever_late:
            self.past = self.losses[-1]
        del self.x, self.values, self.losses

    def forward_stage(self, index, cut):
        """Applies a stage's operations and makes its loss."""
        stage = self.program.stages[index]
        for number, operation in enumerate(stage.operations[:len(stage.operations) - cut]):
            self.place = f'op{index}_{number}'
            given = self.other(operation.source)
            made = OPERATIONS[operation.name](self, given, operation.number)
            made = list(made) if isinstance(made, (list, tuple)) else [made]
            if operation.kept:
                latest = made[-1]
                array = None if operation.kept == 'variable' else latest.array
                self.kept.append((self.place, latest, array[:1] if operation.kept == 'view' and array.ndim else array))
                del latest, array
            self.values = (self.values + made)[-self.program.window:]
            del given, made
        self.read('at once')
        self.losses.append(LOSSES[stage.loss % len(LOSSES)](self, self.other(stage.source)))

    def read(self, moment):
        """Notes what the user keeps."""
        if moment not in self.program.moments:
            return
        for place, variable, array in self.kept:
            self.note(f'{moment}: {place}', variable.array if array is None else array)
            if variable.grad is not None:
                self.note(f'{moment}: gradient of {place}', variable.grad)

    def backward_stage(self, index):
        stage = self.program.stages[index]
        losses = self.losses[-stage.losses:]
        self.read('before backward')
        BACKWARD[stage.way](self, losses)
        self.read('after backward')


def _sum(losses):
    return sum(losses[1:], losses[0])


def _together(graph, losses):
    for number, loss in enumerate(losses):
        loss.grad = np.full_like(loss.array, 1 + number)
    chainer.backward(losses)


def _twice(graph, losses):
    losses[0].backward()
    losses[-1].backward()


def _late(graph, losses):
    losses[-1].backward()
    if graph.past is not None:
        graph.past.backward()


def _grad(graph, losses):
    wanted = [graph.x, graph.first.W, *(variable for _, variable, _ in graph.kept)]
    for number, gradient in enumerate(chainer.grad([losses[-1]], wanted)):
        if gradient is not None:
            graph.note(f'chainer.grad {number}', gradient.array)


def _double(graph, losses):
    if not graph.differentiable_twice:
        losses[-1].backward()
        return
    gradients = chainer.grad([losses[-1]], [graph.x, graph.words.b], enable_double_backprop=True)
    penalties = [F.sum(each * each) for each in gradients if each is not None]
    if penalties:
        _sum([losses[0], *penalties]).backward()


BACKWARD = {
    'backward': lambda graph, losses: losses[-1].backward(),
    'retain grad': lambda graph, losses: losses[-1].backward(retain_grad=True),
    'loss scale': lambda graph, losses: losses[-1].backward(loss_scale=4.0),
    'together': _together,
    'twice': _twice,
    'grad': _grad,
    'double': _double,
    'late': _late,
    'none': lambda graph, losses: None,
}


class GraphTraining(Training):
    """A program in training: `ooc_training.Training` with a random model and several backward passes."""

    def __init__(self, program):
        np.random.seed(program.seed)
        self.program = program
        self.outcome = Outcome()
        self.number = self.notes = 0
        self.model = Graph(program, self.note_next)
        with chainer.using_config('ooc', None), chainer.using_config('train', False):
            self.model.begin(0)
            for index in range(len(program.stages)):
                self.model.forward_stage(index, 0)  # gives the model its links
            self.model.end()
            self.model.kept, self.model.past = [], None
        self.optimizer = chainer.optimizers.MomentumSGD(lr=0.01, momentum=0.9)
        self.optimizer.setup(self.model)
        self.outcome.bits.clear()

    def note_next(self, label, array):
        """Notes under a label that no other has."""
        self.note(f'{self.number}.{self.notes} {label}', array)
        self.notes += 1

    def train(self):
        """Trains as many iterations as the program has."""
        for number in range(len(self.program.cuts)):
            self.number = number
            self.iterate_once()
            self.outcome.stats.append(chainer_ooc.stats())
        self.model.read('next iteration')
        return self.finish()

    def iterate_once(self):
        """Runs an iteration, and notes what it gives."""
        model, stages = self.model, self.program.stages
        model.read('next iteration')
        model.begin(self.number)
        model.cleargrads()
        for index, stage in enumerate(stages):
            model.forward_stage(index, self.program.cuts[self.number] if index == len(stages) - 1 else 0)
            model.backward_stage(index)
            self.note_gradients()
            if stage.update:
                self.optimizer.update()
                model.cleargrads()
        for loss in model.losses:
            self.note_next('loss', loss.array)
        if model.x.grad is not None:
            self.note_next('gradient of the batch', model.x.grad)
        model.end()


class Budget:
    """A budget that is `factor` times the smallest that is said to be feasible; at first one byte.

    A refusal is met by a larger budget and the same call again, which is exact if, as promised, a call is refused
    before anything of it has run. A refused step of backward passes through.

    Attributes:
        floors: those that refusals named.
    """

    def __init__(self, factor):
        self.factor = factor
        self.nbytes = 1
        self.floors = []

    def apply(self, function, inputs):
        """Stands in for what the seam of FunctionNode.apply calls."""
        while True:
            state = np.random.get_state()[2]
            try:
                return self.original(function, inputs)
            except InfeasibleBudgetError as error:
                if not error.budget_bytes == self.nbytes < error.floor_bytes or np.random.get_state()[2] != state:
                    raise AssertionError(f'refused {self.nbytes} bytes, or drew before it did') from error
                self.floors.append(error.floor_bytes)
                self.nbytes = int(error.floor_bytes * self.factor)
                chainer.config.ooc_budget = self.nbytes

    @contextlib.contextmanager
    def holds(self):
        self.original = manager.apply
        with chainer.using_config('ooc_budget', self.nbytes), mock.patch.object(manager, 'apply', self.apply):
            yield


def verdict_row(seed):
    """A policy whose verdicts are drawn, equally for equal graphs."""
    def decide(problem):
        trace, min_bytes = problem.trace, problem.min_bytes
        draw = random.Random(f'{seed} {trace.fingerprint}')
        share = draw.random()
        return Decision(tuple(
            draw.choice(_choices(each, recompute, min_bytes)) if draw.random() > share / 2 else Verdict.KEEP
            for each, recompute in zip(trace.maps, can_recompute(trace, min_bytes), strict=True)),
            EARLY if seed % 2 else WITH_THE_STEP_BEFORE)
    return Policy(f'drawn-{seed}', 'verdicts are drawn', decide)


def recompute_row():
    """The policy that recomputes what can be and swaps the rest."""
    def decide(problem):
        trace, min_bytes = problem.trace, problem.min_bytes
        return Decision(tuple(
            _choices(each, recompute, min_bytes)[-1]
            for each, recompute in zip(trace.maps, can_recompute(trace, min_bytes), strict=True)))
    return Policy('recompute-all', 'recomputes all it can', decide)


def _choices(feature_map, recompute, min_bytes):
    choices = [Verdict.SWAP] if can_leave(feature_map, min_bytes) else []
    if recompute:
        choices.append(Verdict.RECOMPUTE)
    return choices or [Verdict.KEEP]


@contextlib.contextmanager
def policies(*rows):
    """Has rows in the table of policies for a while."""
    with mock.patch.dict(POLICIES, {row.name: row for row in rows}):
        yield
