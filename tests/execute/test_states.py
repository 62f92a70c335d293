"""Any sequence of what a program, Chainer and the manager may do, beside plain Chainer; see `states_world.py`.

That the machine sees what it is meant to see is shown by mutants: each takes one step out of the core, or turns one
entry of its table, and must be found within a bounded number of steps.
"""
import gc

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

import chainer_ooc  # noqa: F401  before chainer
from chainer_ooc.execute.storage.states import TRANSITIONS, State
from support.states.states_mutants import LINES, entry, line
from support.states.states_world import OPERATIONS, World

NUMBERS = st.integers(0, 63)
USUAL = [name for name, often in OPERATIONS.items() for _ in range(often)]
#: Bytes of the inputs that a recipe copies, so that small arrays are checksummed too.
COPIED = st.sampled_from([64, 1 << 16])
#: Mutants that take more sequences.
HARD = dict.fromkeys((
    'a seal is not looked at', 'nobody else is looked for', 'what is held leaves', 'what yields stays',
    'what yields and is held does not count', 'what is used again does not count',
    'what is recalled no more leaves its copies',
    ('yield', State.SPARE), ('take up', State.LOST)), 3600)
#: How many sequences each may take; the last one few with newer versions of Hypothesis, which draw others.
MOST = {**HARD, 'a copy of a Variable reads unseen': 3600}
#: Each takes several seconds to be found.
SLOW = {
    'what comes back is watched no more', 'what nobody else keeps is in no Variable',
    'what is held when what was spare dies does not count', 'enclose keeps the copy of before',
    'a chain reads its inputs through its own memory', 'Variables that come later are not watched',
    'nodes are not watched', 'recipes trust what the program has read', 'a mapping is let go while it leaves',
    'what is spare keeps its slots', 'what is spare counts', 'turn back keeps the root'}
#: What another thread may do, or an interrupt may end.
PARTS = ['apply', 'read', 'write', 'step', 'look', 'swap_out', 'discard', 'prefetch', 'drop', 'reap', 'settle',
         'make_room', 'enter']


def spread(number):
    """Another number for each: those that are drawn are small ones mostly."""
    return number * 2654435761 % (1 << 32)


class Sessions(RuleBasedStateMachine):
    """Draws what is done to a world."""

    HOST = ()

    def __init__(self):
        super().__init__()
        self.world = None

    @initialize(seed=st.integers(0, 99), copied_bytes=COPIED)
    def begin(self, seed, copied_bytes):
        self.world = World(seed, self.HOST, copied_bytes)
        self.world.batch(0, 1)
        self.world.apply(0, 0)

    @rule(name=st.sampled_from(USUAL), i=NUMBERS, j=NUMBERS)
    def usual(self, name, i, j):
        self._run(getattr(self.world, name), i, j)

    @rule(name=st.sampled_from(USUAL), i=NUMBERS, j=NUMBERS)
    def usual_too(self, name, i, j):
        self._run(getattr(self.world, name), i, j)

    @rule(seed=st.integers(0, 1 << 30))
    def burst(self, seed):
        self._run(self.world.burst, seed)

    @rule(name=st.sampled_from(PARTS), i=NUMBERS, j=NUMBERS, moments=st.integers(0, 80))
    def interrupt(self, name, i, j, moments):
        self._run(self.world.interrupt, getattr(self.world, name), i, j, moments)

    def _run(self, operation, *arguments):
        try:
            operation(*arguments)
            self.world.check()
        except BaseException:
            world, self.world = self.world, None
            world.abandon()
            raise

    def teardown(self):
        world, self.world = self.world, None
        if world is not None:
            world.end()


class Rarities(Sessions):
    """The same, with what takes long: other threads, forks, and sessions that end."""

    @rule(name=st.sampled_from(PARTS[:5]), i=NUMBERS, j=NUMBERS, busy=st.integers(0, 7))
    def thread(self, name, i, j, busy):
        self._run(self.world.in_a_thread, getattr(self.world, name), i, j, busy)

    @rule()
    def fork(self):
        self._run(self.world.fork, 0, 0)

    @rule(i=NUMBERS)
    def close(self, i):
        self._run(self.world.close_one, i, 0)


class OnTheHost(Rarities):
    """One of the sessions has a spill file."""

    HOST = (0,)


class Bursts(Sessions):
    """Nothing but bursts, which are quick, and differ in each example."""

    usual = usual_too = interrupt = None

    @initialize(seed=st.integers(0, (1 << 32) - 1).map(spread), copied_bytes=COPIED)
    def begin(self, seed, copied_bytes):
        super().begin(seed, copied_bytes)

    @rule()
    def burst(self):
        self._run(self.world.burst, self.world.random.randint(1 << 30))


def search(machine, examples, steps, **more):
    # Not made smaller: the steps say enough.
    run_state_machine_as_test(machine, settings=settings(
        max_examples=examples, stateful_step_count=steps, phases=[Phase.generate], database=None, **more))


@pytest.fixture(autouse=True)
def no_collections():
    """What dies does so by its last reference, at the same step in every run."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(('machine', 'examples', 'steps'), [
    (Sessions, 100, 30), (Rarities, 25, 30), (OnTheHost, 10, 30), (Bursts, 400, 6)])
def test_any_sequence_is_as_in_plain_chainer(machine, examples, steps):
    search(machine, max(examples, examples * settings.default.max_examples // 100), steps)


def is_found(key):
    """Whether the machine fails. Without a mutant it does not, see above.

    Under every profile these sequences are the same: others may take more of them.
    """
    try:
        search(Bursts, MOST.get(key, 400), 6, derandomize=True)
    except Exception:
        return True
    return False


@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
@pytest.mark.parametrize('name', [
    pytest.param(name, marks=pytest.mark.long if name in SLOW.union(HARD) else ()) for name in LINES])
def test_a_line_that_is_another_is_found(name):
    with line(name):
        assert is_found(name)


@pytest.mark.parametrize('key', [
    pytest.param(key, marks=pytest.mark.long if key in HARD else ()) for key in TRANSITIONS])
def test_an_entry_that_is_not_there_is_found(key):
    with entry(key, None):
        assert is_found(key)


@pytest.mark.parametrize('key', [
    pytest.param(key, marks=pytest.mark.long if key in HARD else ()) for key in TRANSITIONS])
def test_an_entry_that_leads_elsewhere_is_found(key):
    with entry(key, next(state for state in State if state not in (TRANSITIONS[key], key[1]))):
        assert is_found(key)
