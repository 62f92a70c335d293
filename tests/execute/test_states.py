"""Any sequence of what a program, Chainer and the manager may do, beside plain Chainer; see `states_world.py`.

That the machine sees what it is meant to see is shown by mutants: each takes one step out of the core, or turns one
entry of its table, and must be found within a bounded number of steps.
"""
import gc

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from states_mutants import LINES, entry, line, targets
from states_world import World

import chainer_ooc  # noqa: F401  before chainer
from chainer_ooc.execute.storage import TRANSITIONS

NUMBERS = st.integers(0, 63)
#: As often as named: what changes places and states is what faults hide in.
USUAL = ['apply'] * 6 + ['swap_out'] * 8 + ['step'] * 5 + ['give_up'] * 4 + ['settle'] * 4 + ['read', 'write'] * 3 + [
    'prefetch', 'drop', 'look'] * 3 + ['batch', 'hold', 'write_held', 'let_go', 'hide', 'make_room', 'enter', 'reap'] * 2 + [
    'duplicate', 'replace', 'forget', 'arrive_all', 'abandon_dead', 'hand_over', 'fail_a_copy']
#: What another thread may do, or an interrupt may end.
PARTS = ['apply', 'read', 'write', 'step', 'look', 'swap_out', 'give_up', 'prefetch', 'drop', 'reap', 'settle',
         'make_room', 'enter']


class Sessions(RuleBasedStateMachine):
    """Draws what is done to a world."""

    HOST = ()

    def __init__(self):
        super().__init__()
        self.world = None

    @initialize(seed=st.integers(0, 99), copied_bytes=st.sampled_from([64, 1 << 16]))
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

    @rule(name=st.sampled_from(USUAL), i=NUMBERS, j=NUMBERS)
    def usual_as_well(self, name, i, j):
        self._run(getattr(self.world, name), i, j)

    @rule(name=st.sampled_from(PARTS[:5]), i=NUMBERS, j=NUMBERS, busy=st.integers(0, 7))
    def thread(self, name, i, j, busy):
        self._run(self.world.in_a_thread, getattr(self.world, name), i, j, busy)

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
    """The same, with what takes long: forks, and sessions that end."""

    @rule()
    def fork(self):
        self._run(self.world.fork, 0, 0)

    @rule(i=NUMBERS)
    def close(self, i):
        self._run(self.world.close_one, i, 0)


class OnTheHost(Rarities):
    """One of the sessions has a spill file."""

    HOST = (0,)


def search(machine, examples, steps):
    # Not made smaller: the steps say enough.
    run_state_machine_as_test(machine, settings=settings(
        max_examples=examples, stateful_step_count=steps, phases=[Phase.generate], database=None))


@pytest.fixture(autouse=True)
def no_collections():
    """What dies does so by its last reference, at the same step in every run."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(('machine', 'examples'), [(Sessions, 120), (Rarities, 40), (OnTheHost, 15)])
def test_any_sequence_is_as_in_plain_chainer(machine, examples):
    search(machine, examples, 40)


def is_found(machine=Sessions, examples=100):
    """Whether the machine fails. Without a mutant it does not, see above: the same sequences are drawn."""
    try:
        search(machine, examples, 40)
    except Exception:
        return True
    return False


@pytest.mark.parametrize('name', LINES)
def test_a_line_that_is_another_is_found(name):
    with line(name):
        assert is_found()


@pytest.mark.parametrize(('key', 'target'), [(key, target) for key in TRANSITIONS for target in targets(key)[:2]])
def test_an_entry_that_leads_elsewhere_is_found(key, target):
    with entry(key, target):
        assert is_found()
