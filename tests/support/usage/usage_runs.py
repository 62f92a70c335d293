"""Runs a program in plain Chainer and out-of-core, and compares every bit that it yields.

A program is a function of a `Run`, to which it gives its bits: losses, gradients, parameters, persistent values. It
knows nothing of out-of-core (unless that is what it is about) and catches none of its errors.

At the floor, a program runs like this:

    budget      1           1.02 x floor        it began anew each time
    outcome     refused     goes through        a second refusal is a failure: the floor that was named did not hold

After such a failure the budget is raised to what is named then, since wrong bits are worse than wrong floors.

A program with graphs of several sizes says `run.graph(name)` before each; then each graph may be refused once.
"""
import contextlib
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

import chainer
import numpy as np

import chainer_ooc
from chainer_ooc.errors import InfeasibleBudgetError

MIN_BYTES = 4096
MARGIN = 1.02
MOST_REFUSALS = 16


class Run:
    """What a program yields in one run.

    Attributes:
        policy: the name that `chainer.config.ooc` has; `None` in plain Chainer.
        bits: (label, value) of everything that was noted, in order.
        overruns: of each iteration under a plan that used more than its budget: (peak, budget), bytes.
    """

    def __init__(self, policy=None):
        self.policy = policy
        self.bits = []
        self.overruns = []
        self._graphs = threading.local()

    @property
    def current_graph(self):
        return getattr(self._graphs, 'name', 'the graph')

    def graph(self, name):
        """Says which graph this thread builds from here on."""
        self._graphs.name = name

    def note(self, label, array):
        """Keeps the bits of an array, a Variable or a number."""
        self.bits.append((label, bits_of(array)))

    def note_link(self, link, what='link'):
        """Keeps parameters, gradients and persistent values."""
        for name, parameter in sorted(link.namedparams()):
            self.note(f'{what}{name}', parameter.array)
            self.note(f'gradient of {what}{name}', parameter.grad)
        for path, child in link.namedlinks():
            for name in sorted(child._persistent):
                self.note(f'persistent {what}{path}/{name}', getattr(child, name))

    def ended(self):
        """An iteration has ended: notes whether it kept within its budget."""
        stats = chainer_ooc.stats() if self.policy else None
        if stats is not None and stats.phase == 'run' and stats.peak_bytes > stats.budget_bytes:
            self.overruns.append((stats.peak_bytes, stats.budget_bytes))

    def part(self):
        """A run for a thread of its own, whose order among the others is not known; see `join`."""
        return Run(self.policy)

    def join(self, part, label):
        self.bits += [(f'{label}: {what}', value) for what, value in part.bits]
        self.overruns += part.overruns

    def labelled(self, function):
        """The function with the graph that it was in noted on a refusal, for threads: they have graphs of their own."""
        def call(*args, **kwargs):
            try:
                return function(*args, **kwargs)
            except InfeasibleBudgetError as error:
                error.graph = getattr(error, 'graph', self.current_graph)
                raise
        return call

    def in_thread(self, function, *args):
        """Runs a function in a new thread to its end; its result or its error."""
        outcome = {}

        def work():
            try:
                outcome['result'] = self.labelled(function)(*args)
            except BaseException as error:
                outcome['error'] = error
        worker = threading.Thread(target=work)
        worker.start()
        worker.join()
        if 'error' in outcome:
            raise outcome.pop('error')
        return outcome.pop('result')


@dataclass
class AtTheFloor:
    """What came of running a program at the floor that it was told.

    Attributes:
        run: the run that went through, if need be with more than was named; `None` if there was no such.
        floors: (graph, floor in bytes, the call that sets it, why it may not hold) of each refusal.
        budget_bytes: the last budget.
    """

    run: Run | None
    floors: list
    budget_bytes: int

    @property
    def refused_twice(self):
        """Graphs whose floor did not hold, though nothing was said against it."""
        return sorted({graph for number, (graph, *_, doubt) in enumerate(self.floors) if not doubt
                       and any(graph == other for other, *_ in self.floors[number + 1:])})


@contextlib.contextmanager
def global_entries(**entries):
    """Sets entries for all threads for a while."""
    before = dict(vars(chainer.global_config))
    try:
        for name, value in entries.items():
            setattr(chainer.global_config, name, value)
        yield
    finally:
        for name in entries:
            delattr(chainer.global_config, name)
            if name in before:
                setattr(chainer.global_config, name, before[name])


def bits_of(value):
    """Dtype, shape and content, as one comparable value."""
    if isinstance(value, chainer.Variable):
        value = value.array
    if value is None:
        return None
    array = np.asarray(value)
    return (array.dtype.str, array.shape, array.tobytes())


def perform(program: Callable[[Run], None], policy=None, budget=None) -> Run:
    """Runs a program from a fresh start; all threads have the policy and the budget."""
    chainer_ooc.reset()
    run = Run(policy)
    np.random.seed(0)
    random.seed(0)
    with global_entries(ooc=policy, ooc_budget=budget, ooc_min_bytes=MIN_BYTES):
        try:
            run.labelled(program)(run)
            kind, keys, position, *_ = np.random.get_state()
            run.bits.append(('random stream', (kind, keys.tobytes(), position)))
        finally:
            chainer_ooc.reset()
    return run


def at_the_floor(program, policy) -> AtTheFloor:
    """Asks for a floor with a budget of one byte, and runs the program anew with a little more than that."""
    budget, floors = 1, []
    while True:
        try:
            return AtTheFloor(perform(program, policy, budget), floors, budget)
        except InfeasibleBudgetError as error:
            floors.append((error.graph, error.floor_bytes, error.where, error.doubt))
            budget = max(budget, int(MARGIN * error.floor_bytes))
        if len(floors) > MOST_REFUSALS:
            return AtTheFloor(None, floors, budget)


def assert_same_bits(run, expected):
    """Compares everything in order, and names what differs."""
    assert [label for label, _ in run.bits] == [label for label, _ in expected.bits]
    differing = [f'{number}: {label}' for number, ((label, value), (_, other))
                 in enumerate(zip(run.bits, expected.bits, strict=True)) if value != other]
    assert differing == [], f'{len(differing)} of {len(run.bits)} values differ from those of plain Chainer'
