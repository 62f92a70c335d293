"""Any sequence of mallocs, frees, limits, streams and work: against a dictionary of what lives."""
import gc
import itertools

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from chainer_ooc.backends.cuda.allocators import ALLOCATORS
from chainer_ooc.backends.cuda.budget import AllocatorBudget
from support import fake_device_memory as fake
from support.told_ledger import listen

MIB = fake.MIB
SIZES = st.one_of(st.integers(0, 4096), st.integers(1, 12 * MIB), st.sampled_from([2 * MIB, 4 * MIB, 6 * MIB]))


class Allocations(RuleBasedStateMachine):
    """Arrays by number: what they hold, and who would evict them."""

    NAME = 'pool'

    def __init__(self):
        super().__init__()
        self.calls = fake.FakeCalls(fake.FakeDevice(64 * MIB))
        self.driver = fake.FakeDriver(self.calls.device)
        self.budget = AllocatorBudget(fake.allocator_of(self.NAME, self.calls, self.driver), self.calls)
        self.budget.install()
        self.streams = [fake.FakeStream(0), fake.FakeStream(7)]
        self.live = {}
        self.evicts = False
        self.events = []
        self.numbers = iter(range(10**6))

    @initialize()
    def listen(self):
        self.ledger = listen(self.budget, lambda kind, nbytes: self.events.append((kind, nbytes)))

    @rule(nbytes=SIZES)
    def malloc(self, nbytes):
        before = dict(self.live)
        try:
            pointer = self.calls.allocator(nbytes)
        except MemoryError:
            assert before == self.live or self.evicts
            return
        self.live[next(self.numbers)] = pointer, nbytes

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data):
        del self.live[data.draw(st.sampled_from(sorted(self.live)))]

    @rule(nbytes=st.one_of(st.none(), st.integers(0, 64 * MIB)))
    def limit(self, nbytes):
        self.budget.limit_bytes = nbytes

    @rule(evicts=st.booleans())
    def on_out_of_memory(self, evicts):
        def evict(missing_bytes):
            assert missing_bytes > 0
            if not self.live:
                return False
            del self.live[min(self.live)]
            return True

        self.evicts = evicts
        self.budget.ask(self, evict if evicts else None)

    @rule(keep_bytes=st.integers(0, 64 * MIB))
    def trim(self, keep_bytes):
        self.budget.trim(keep_bytes)

    @rule(number=st.integers(0, 1))
    def use_stream(self, number):
        if self.NAME == 'virtual' and not self.live:  # arrays stay on the stream that they were made on
            self.calls.current_stream = self.streams[number]

    @precondition(lambda self: self.NAME == 'virtual' and self.live)
    @rule(data=st.data())
    def work(self, data):
        pointer, nbytes = self.live[data.draw(st.sampled_from(sorted(self.live)))]
        if nbytes:
            self.calls.current_stream.launch(self.driver, pointer, nbytes)

    @invariant()
    def live_bytes_are_right(self):
        assert self.budget.used_bytes() >= sum(nbytes for _, nbytes in self.live.values())
        assert self.ledger.total() == self.budget.used_bytes()
        told = sum(nbytes if kind == 'malloc' else -nbytes for kind, nbytes in self.events)
        assert told == self.budget.used_bytes() <= self.budget.held_bytes()
        if not any(nbytes for _, nbytes in self.live.values()):
            assert self.budget.used_bytes() == 0

    @invariant()
    def live_ranges_do_not_overlap(self):
        ranges = sorted((pointer.ptr, pointer.ptr + nbytes) for pointer, nbytes in self.live.values() if nbytes)
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(ranges))

    @precondition(lambda self: self.NAME == 'virtual')
    @invariant()
    def live_blocks_share_no_memory(self):
        used = sorted(part for pointer, nbytes in self.live.values() if nbytes
                      for part in self.driver.physical(pointer.ptr, pointer.ptr + nbytes))
        assert all(one[0] != other[0] or one[2] <= other[1] for one, other in itertools.pairwise(used))

    @invariant()
    def the_limit_is_not_passed_but_by_what_lived_before_it(self):
        limit_bytes = self.budget.limit_bytes
        held_bytes = self.budget.held_bytes()
        passed = limit_bytes is not None and held_bytes > limit_bytes
        assert not passed or held_bytes <= self.before_bytes
        self.before_bytes = held_bytes

    before_bytes = 0

    def teardown(self):
        self.live.clear()
        self.budget.close()
        for stream in self.streams:
            stream.queue.clear()
        self.budget.close()
        assert self.budget.used_bytes() == self.calls.device.taken_bytes == 0
        if self.NAME == 'virtual':
            self.driver.check_empty()


@pytest.mark.parametrize('name', [*ALLOCATORS])
def test_any_sequence(name, monkeypatch):
    # Each refusal ends in a collection, which takes a while in a process that has all of pytest in it.
    monkeypatch.setattr(gc, 'collect', lambda: None)
    machine = type(f'Allocations_{name}', (Allocations,), {'NAME': name})
    # Not made smaller: that takes minutes, and the steps say enough.
    run_state_machine_as_test(
        machine, settings=settings(max_examples=60, stateful_step_count=40, phases=[Phase.generate]))
