"""The hard limit (P3): who is asked for room, in which order, and what is left when nobody has some."""
import contextlib
import functools
import gc
import os
import pathlib
import random
import signal
import sys
import threading

import pytest

from chainer_ooc.backends.cuda import allocators
from chainer_ooc.backends.cuda import budget as budget_module
from chainer_ooc.backends.cuda.allocators import ALLOCATORS
from chainer_ooc.backends.cuda.allocators.ledger import Count
from chainer_ooc.backends.cuda.allocators.pool import PoolAllocator
from chainer_ooc.backends.cuda.budget import AllocatorBudget
from chainer_ooc.errors import DeviceMemoryError, InfeasibleBudgetError, ReentryError
from support import fake_device_memory as fake
from support.interrupting import interrupted_at
from support.side_by_side import side_by_side
from support.told_ledger import listen

MIB = fake.MIB

#: The files of what counts the device's memory.
COUNTING = (str(pathlib.Path(allocators.__file__).parent), budget_module.__file__)


@pytest.fixture
def calls():
    return fake.FakeCalls(fake.FakeDevice(100 * MIB))


@pytest.fixture
def budget(calls):
    return AllocatorBudget(PoolAllocator(calls), calls)


def test_a_block_lives_as_long_as_its_memory(budget):
    pointer = budget(3 * MIB)
    memory = pointer.mem
    del pointer
    assert budget.used_bytes() == 3 * MIB
    del memory
    assert budget.used_bytes() == 0


def test_memory_of_another_device_is_cupys_own(budget, calls):
    """It is one allocator for all devices, and what this gives only its own can use."""
    with fake.installed_budget(budget):
        calls.current_device = 1
        elsewhere = budget(3 * MIB)
        assert budget.used_bytes() == budget.held_bytes() == 0
        assert calls.default_pool.used_bytes() == 3 * MIB
        calls.current_device = 0
        here = budget(2 * MIB)
        assert budget.used_bytes() == 2 * MIB
    del elsewhere, here


def test_sizes_are_rounded_as_the_allocator_rounds(budget):
    pointer = budget(513)
    assert pointer.mem.size == 513
    assert budget.used_bytes() == 1024


def test_nothing_needs_no_room(budget):
    budget.limit_bytes = 0
    assert budget(0).ptr == 0
    assert budget.used_bytes() == budget.held_bytes() == 0


def test_what_is_cached_serves_before_anybody_is_asked(budget):
    budget.limit_bytes = 4 * MIB
    budget.ask(budget, pytest.fail)
    del_me = budget(4 * MIB)
    del del_me
    kept = budget(4 * MIB)
    assert budget.held_bytes() == kept.mem.size


def test_the_cache_goes_back_before_anybody_is_asked(budget):
    budget.limit_bytes = 4 * MIB
    budget.ask(budget, pytest.fail)
    budget(2 * MIB)
    kept = budget(4 * MIB)
    assert budget.held_bytes() == kept.mem.size


def test_relief_is_asked_as_long_as_it_helps(budget):
    budget.limit_bytes = 8 * MIB
    arrays, asked = [budget(2 * MIB) for _ in range(4)], []

    def on_out_of_memory(missing_bytes):
        asked.append(missing_bytes)
        arrays.pop()
        return True

    budget.ask(budget, on_out_of_memory)
    kept = budget(4 * MIB)
    assert asked == [4 * MIB, 2 * MIB]
    assert len(arrays) == 2
    assert budget.used_bytes() == 8 * MIB
    del kept


def test_all_that_is_done_for_room_is_a_wait_of_the_thread_that_asks(budget):
    noted, live = [], {}

    @contextlib.contextmanager
    def waiting():
        noted.append('begins')
        yield
        noted.append('ends')

    def relieve(missing_bytes):
        noted.append('relief')
        del live['old']
        return True

    budget.limit_bytes = 4 * MIB
    budget.ask(budget, relieve, waiting)
    live['old'] = budget(3 * MIB)
    assert noted == []
    live['new'] = budget(2 * MIB)
    assert noted == ['begins', 'relief', 'ends']
    thread = threading.Thread(target=lambda: live.update(another=budget(MIB)))
    thread.start()
    thread.join()
    assert noted == ['begins', 'relief', 'ends'] and 'another' in live


def test_a_refusal_counts_what_is_cached_where_that_serves(calls):
    allocator = fake.allocator_of('virtual', calls)
    budget = AllocatorBudget(allocator, calls)
    budget.limit_bytes = 8 * allocator.chunk_bytes
    blocks = [budget(allocator.chunk_bytes) for _ in range(8)]
    del blocks[::2]  # no two of the four that are cached have addresses that touch
    with pytest.raises(DeviceMemoryError) as refused:
        budget(6 * allocator.chunk_bytes)
    assert refused.value.floor_bytes == 10 * allocator.chunk_bytes
    budget.limit_bytes = refused.value.floor_bytes
    assert budget(6 * allocator.chunk_bytes).mem.size == 6 * allocator.chunk_bytes
    assert len(blocks) == 4


def limits_named(budget, nbytes):
    """The limits that refusals name, one after the other, each of which is tried."""
    named = []
    while len(named) < 4:
        try:
            budget(nbytes)
            return named
        except DeviceMemoryError as refused:
            named.append(refused.floor_bytes // MIB)
            budget.limit_bytes = refused.floor_bytes
    return named


def test_a_limit_that_is_not_in_the_way_is_not_to_be_raised(calls):
    """What other programs have of the card no budget gets: a higher one was named each time."""
    budget = AllocatorBudget(fake.allocator_of('virtual', calls), calls)
    calls.device.take(68 * MIB)  # another program
    budget.limit_bytes = 60 * MIB
    kept = budget(20 * MIB)
    with pytest.raises(DeviceMemoryError) as refused:
        budget(20 * MIB)
    assert refused.value.floor_bytes <= 60 * MIB
    assert kept.mem.size == 20 * MIB


@pytest.mark.parametrize(('stream', 'nbytes'), [(7, 22 * MIB), (0, 90 * MIB)])
def test_what_lives_elsewhere_counts_in_the_limit_that_is_named(calls, stream, nbytes):
    calls.device.capacity_bytes = 1 << 30
    budget = AllocatorBudget(fake.allocator_of('virtual', calls), calls)
    budget.limit_bytes = 20 * MIB
    kept = budget(16 * MIB)
    if stream:
        calls.current_stream = fake.FakeStream(stream)
    assert limits_named(budget, nbytes) == [(16 * MIB + nbytes) // MIB]
    assert kept.mem.size == 16 * MIB


@pytest.mark.parametrize('name', ['pool', 'virtual', 'async'])
def test_a_limit_that_is_named_is_enough(name):
    draw = random.Random(0)
    for _ in range(40):
        calls = fake.FakeCalls(fake.FakeDevice(1 << 36))
        budget, live = AllocatorBudget(fake.allocator_of(name, calls), calls), []
        budget.limit_bytes = 200 * MIB + draw.randrange(3 * MIB)
        with contextlib.suppress(DeviceMemoryError):
            while True:
                live.append(budget(draw.randrange(1, 40 * MIB)))
        for at in draw.sample(range(len(live)), len(live) // 2):
            live[at] = None
        assert len(limits_named(budget, 150 * MIB)) <= 1


def test_relief_that_finds_nothing_ends_in_an_error_with_the_figures(budget):
    budget.limit_bytes = 8 * MIB
    kept = budget(6 * MIB)
    asked = []
    budget.ask(budget, lambda missing_bytes: bool(asked.append(missing_bytes)))
    with pytest.raises(MemoryError) as raised:
        budget(4 * MIB)
    assert str(raised.value) == (
        "no room on the device for 4.2 MB (live 6.3 MB, held 6.3 MB, allocated elsewhere 0 bytes, limit 8.4 MB, "
        "allocator 'pool'); raise chainer.config.ooc_budget or lower the batch size")
    assert asked == [2 * MIB]
    assert budget.used_bytes() == kept.mem.size


@pytest.mark.parametrize(('limit_mib', 'cut_bytes'), [(8, 0), (10, 1)])
def test_a_refusal_names_the_limit_that_is_enough(budget, limit_mib, cut_bytes):
    budget.limit_bytes = limit_mib * MIB - cut_bytes
    kept = budget(6 * MIB)
    with pytest.raises(DeviceMemoryError) as raised:
        budget(4 * MIB)
    assert raised.value.floor_bytes == 10 * MIB
    budget.limit_bytes = raised.value.floor_bytes
    assert (budget(4 * MIB).mem.size, kept.mem.size) == (4 * MIB, 6 * MIB)


def test_a_device_that_is_full_names_what_it_would_have_to_hold(calls, budget):
    budget.limit_bytes = 1000 * MIB
    kept = budget(60 * MIB)
    with pytest.raises(DeviceMemoryError) as raised:
        budget(80 * MIB)
    assert raised.value.floor_bytes == 140 * MIB < budget.limit_bytes
    del kept


def test_the_device_itself_may_refuse(calls, budget):
    arrays = [budget(40 * MIB), budget(40 * MIB)]
    asked = []

    def on_out_of_memory(missing_bytes):
        asked.append(missing_bytes)
        return bool(arrays and arrays.pop())

    budget.ask(budget, on_out_of_memory)
    kept = budget(50 * MIB)
    assert asked == [50 * MIB]
    assert calls.device.taken_bytes == 90 * MIB
    del kept


def test_an_allocation_within_relief_asks_nobody(budget):
    budget.limit_bytes = 4 * MIB
    array = budget(4 * MIB)
    depth = []

    def on_out_of_memory(missing_bytes):
        depth.append(missing_bytes)
        with pytest.raises(MemoryError):
            budget(MIB)
        return False

    budget.ask(budget, on_out_of_memory)
    with pytest.raises(MemoryError):
        budget(MIB)
    assert depth == [MIB]
    with pytest.raises(MemoryError):  # and it is asked again afterwards
        budget(MIB)
    assert depth == [MIB, MIB]
    del array


def test_without_relief_nobody_is_asked(budget):
    budget.limit_bytes = 4 * MIB
    budget.ask(budget, pytest.fail)
    array = budget(4 * MIB)
    with budget.no_relief(), budget.no_relief(), pytest.raises(MemoryError):
        budget(MIB)
    del array


def test_no_relief_ends_with_an_exception(budget):
    with pytest.raises(KeyboardInterrupt), budget.no_relief():
        raise KeyboardInterrupt
    budget.limit_bytes = 4 * MIB
    array = [budget(4 * MIB)]
    budget.ask(budget, lambda missing_bytes: bool(array and array.pop()))
    assert budget(MIB)


def test_other_threads_ask_nobody(budget):
    budget.limit_bytes = 4 * MIB
    budget.ask(budget, pytest.fail)
    array, raised = budget(4 * MIB), []

    def work():
        try:
            budget(MIB)
        except MemoryError as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(raised) == 1
    del array


def test_of_several_owners_in_a_thread_the_last_is_asked_and_then_the_one_before(budget):
    budget.limit_bytes = 4 * MIB
    array, asked = budget(4 * MIB), []
    budget.ask('training', lambda missing_bytes: bool(asked.append('training')))
    budget.ask('profile', lambda missing_bytes: bool(asked.append('profile')))
    for ended in ('profile', 'training', 'training'):
        with pytest.raises(MemoryError):
            budget(MIB)
        budget.ask(ended, None)
    assert asked == ['profile', 'training']
    del array


def test_what_relief_raises_passes_through_and_leaves_it_in_force(budget):
    budget.limit_bytes = 4 * MIB
    array = [budget(4 * MIB)]

    def refuse(missing_bytes):
        raise InfeasibleBudgetError('keep', 4 * MIB, 8 * MIB, 'call 3')

    budget.ask(budget, refuse)
    for _ in range(2):
        with pytest.raises(InfeasibleBudgetError):
            budget(MIB)
    budget.ask(budget, lambda missing_bytes: bool(array and array.pop()))
    assert budget(MIB)


def test_cycles_are_collected_before_it_gives_up(budget):
    class Cycle:
        def __init__(self, pointer):
            self.pointer, self.itself = pointer, self

    budget.limit_bytes = 4 * MIB
    gc.collect()
    gc.disable()
    try:
        Cycle(budget(4 * MIB))
        assert budget(3 * MIB)
    finally:
        gc.enable()


def test_a_lower_limit_gives_back_what_is_cached(calls, budget):
    kept = budget(4 * MIB)
    budget(8 * MIB)
    assert calls.device.taken_bytes == 12 * MIB
    budget.limit_bytes = 6 * MIB
    assert calls.device.taken_bytes == 4 * MIB
    budget.limit_bytes = None
    assert budget(8 * MIB)
    del kept


def test_pages_count_as_the_driver_counts_them(budget):
    budget.limit_bytes = 7 * MIB
    kept = budget(3 * MIB)
    assert budget.held_bytes() == 4 * MIB
    with pytest.raises(MemoryError):
        budget(3 * MIB)
    del kept


def test_what_the_default_pool_holds_counts(calls, budget):
    parameters = calls.allocator(3 * MIB)
    calls.allocator(2 * MIB)  # cached there
    budget.limit_bytes = 8 * MIB
    with fake.installed_budget(budget):
        assert budget.outside_bytes() == 3 * MIB
        kept = calls.allocator(4 * MIB)
        with pytest.raises(MemoryError, match=r'allocated elsewhere 3\.1 MB'):
            calls.allocator(2 * MIB)
        del parameters
        more = calls.allocator(4 * MIB)
        assert budget.held_bytes() == kept.mem.size + more.mem.size == 8 * MIB


def test_what_other_budgets_hold_counts(calls):
    budgets = []
    first, second = (AllocatorBudget(PoolAllocator(calls), calls, lambda: budgets) for _ in range(2))
    budgets += [first, second]
    kept = first(6 * MIB)
    second.limit_bytes = 8 * MIB
    assert second.outside_bytes() == 6 * MIB
    with pytest.raises(MemoryError):
        second(4 * MIB)
    del kept


def test_free_bytes_are_the_tightest_limits(budget):
    kept = budget(10 * MIB)
    budget(6 * MIB)
    assert budget.free_bytes() == 90 * MIB
    budget.limit_bytes = 30 * MIB
    assert budget.free_bytes() == 20 * MIB
    del kept


def test_a_limit_that_is_set_while_another_is_passed_on_holds(budget, monkeypatch):
    """By a handler or another thread."""
    outside_bytes, limits = budget.outside_bytes, [24 * MIB]

    def set_meanwhile():
        if limits:
            budget.limit_bytes = limits.pop()
        return outside_bytes()

    monkeypatch.setattr(budget, 'outside_bytes', set_meanwhile)
    budget.limit_bytes = 48 * MIB
    monkeypatch.undo()
    assert budget.limit_bytes == 24 * MIB
    with pytest.raises(MemoryError):
        budget(32 * MIB)


def test_a_limit_that_is_lifted_while_a_request_looks_at_it_refuses_nothing(budget, monkeypatch):
    allocator = budget._allocator
    budget.limit_bytes = 8 * MIB
    total = allocator._held.total

    def lifted():
        allocator.limit_bytes = None
        return total()

    kept = budget(8 * MIB)
    monkeypatch.setattr(allocator._held, 'total', lifted)
    assert budget(8 * MIB).mem.size == 8 * MIB
    monkeypatch.undo()
    del kept


def test_a_trim_within_a_trim_is_refused_and_waits_for_nobody(budget, monkeypatch):
    give_back, refused = budget._allocator._give_back, []

    def asked_meanwhile():
        with pytest.raises(ReentryError):
            budget.trim()
        budget.close_if_empty()
        refused.append(budget.held_bytes())
        give_back()

    monkeypatch.setattr(budget._allocator, '_give_back', asked_meanwhile)
    budget(4 * MIB)
    budget.trim(5)
    assert (refused, budget.held_bytes()) == ([4 * MIB], 0)


def test_installing_is_undone_whatever_happens(calls, budget):
    before = calls.allocator
    installed = []

    def interrupted():
        with fake.installed_budget(budget):
            installed.append(calls.current_allocator())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert installed == [budget]
    assert calls.allocator == before


def test_installing_twice_is_once(calls, budget):
    before = calls.allocator
    budget.install()
    budget.install()
    budget.uninstall()
    assert calls.allocator == before
    budget.uninstall()
    assert calls.allocator == before


def test_an_allocator_that_somebody_set_since_stays(calls, budget):
    def theirs(nbytes):
        return None

    budget.install()
    calls.set_allocator(theirs)
    budget.uninstall()
    assert calls.allocator is theirs


def test_within_using_allocator_it_is_neither_installed_nor_uninstalled(calls, budget):
    with calls.using_allocator(lambda nbytes: None), pytest.raises(RuntimeError, match='using_allocator'):
        budget.install()
    budget.install()
    with calls.using_allocator(budget), pytest.raises(RuntimeError, match='using_allocator'):
        budget.uninstall()
    assert calls.allocator is budget
    budget.uninstall()
    assert calls.allocator is not budget


def test_close_gives_back_what_is_cached_and_the_rest_when_it_dies(calls, budget):
    budget.install()
    budget.limit_bytes = 50 * MIB
    first, second = calls.allocator(4 * MIB), calls.allocator(4 * MIB)
    budget(8 * MIB)
    budget.close()
    budget.close()
    assert calls.device.taken_bytes == 8 * MIB
    del first, second
    assert calls.device.taken_bytes == 0


def test_it_can_be_installed_again(calls, budget):
    budget.install()
    kept = calls.allocator(4 * MIB)
    budget.close()
    budget.install()
    assert budget.limit_bytes is None
    assert budget.used_bytes() == 4 * MIB
    del kept
    assert budget.held_bytes() == 4 * MIB  # cached: it is in use again
    budget.close()
    assert calls.device.taken_bytes == 0


def test_a_block_that_dies_while_memory_is_given_back_does_not_give_back_too(calls):
    class Trimming(PoolAllocator):
        depth = 0

        def trim(self, keep_bytes):
            assert not self.depth
            self.depth += 1
            gc.collect()
            super().trim(keep_bytes)
            self.depth -= 1

    class Cycle:
        def __init__(self, pointer):
            self.pointer, self.itself = pointer, self

    budget = AllocatorBudget(Trimming(calls), calls)
    budget.close()
    gc.collect()
    gc.disable()
    try:
        Cycle(budget(4 * MIB))
        budget.trim()
    finally:
        gc.enable()
    assert calls.device.taken_bytes == 0


def test_the_last_block_may_die_while_all_is_closed(calls):
    """On another thread, or by the collector: who gives back looks again then."""
    class Closing(PoolAllocator):
        def close(self):
            super().close()
            last.clear()

    budget = AllocatorBudget(Closing(calls), calls)
    last = [budget(4 * MIB)]
    budget.close()
    assert (budget.held_bytes(), calls.device.taken_bytes) == (0, 0)


def test_threads_may_ask_a_pool_at_once(calls):
    budget, failures = AllocatorBudget(PoolAllocator(calls), calls), []
    budget.limit_bytes = 40 * MIB

    def ask(seed):
        draw = random.Random(seed)
        try:
            for _ in range(300):
                with contextlib.suppress(DeviceMemoryError):
                    budget(draw.randint(1, 6) * MIB)
                if draw.random() < 0.1:
                    budget.trim()
                budget.counted_bytes()
        except BaseException as error:
            failures.append(error)

    side_by_side(*(functools.partial(ask, seed) for seed in range(3)))
    assert failures == []


@pytest.mark.parametrize('closed', [False, True])
@pytest.mark.parametrize('name', [*ALLOCATORS])
def test_memory_in_a_cycle_is_free_only_when_nothing_can_use_it_any_more(calls, name, closed):
    """The collector ends weak references and finalizers first: the clean-up of a generator uses its array then."""
    budget, saved, used = AllocatorBudget(fake.allocator_of(name, calls), calls), [], []

    def clean(box):
        pointer = budget(2 * MIB)
        try:
            yield
        finally:
            other = budget(2 * MIB)
            used.append((budget.used_bytes(), abs(other.ptr - pointer.ptr)))
            saved.append(pointer)

    box = []
    box += [box, clean(box)]
    next(box[1])
    if closed:
        budget.close()
    del box
    gc.collect()
    (used_bytes, apart_bytes), = used
    assert used_bytes == 4 * MIB
    assert apart_bytes >= 2 * MIB
    assert budget.used_bytes() == 2 * MIB
    saved.clear()
    budget.close()
    assert (budget.used_bytes(), budget.held_bytes()) == (0, 0)


def test_a_forked_child_does_not_wait_for_a_thread_that_it_lacks(budget):
    """The thread was in the midst of a request at the fork."""
    kept, goes_on = budget(4 * MIB), threading.Event()

    def hold(has_begun):
        with budget.live.lock:
            has_begun.set()
            goes_on.wait()

    has_begun = threading.Event()
    thread = threading.Thread(target=hold, args=[has_begun])
    thread.start()
    has_begun.wait()
    child = os.fork()
    if not child:
        try:
            signal.alarm(20)
            budget.trim()
            os._exit(budget.used_bytes() != 4 * MIB)
        finally:
            os._exit(2)
    goes_on.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    assert budget.used_bytes() == kept.mem.size


def test_listeners_are_told_in_order_until_they_leave(budget):
    events = []

    def listener(kind, nbytes):
        events.append((kind, nbytes))

    told = listen(budget, listener)
    first, second = budget(512), budget(1024)
    del first
    third = budget(2048)
    del second, third
    assert told.total() == 0
    budget.live.stop_counting(told)
    budget(512)
    assert events == [('malloc', 512), ('malloc', 1024), ('free', 512), ('malloc', 2048), ('free', 1024),
                      ('free', 2048)]


def is_counting(code):
    """Of what counts; not finalizers, where an interrupt is lost, nor what takes locks: none comes before their end."""
    return (code.co_filename.startswith(COUNTING)
            and code.co_name not in ('__del__', 'malloc', '_changing', 'total_of', 'mark', 'trim', 'close'))


def come_and_go(budget, calls, draw, live):
    """Requests of a training, some of which find no room, and what ends between them."""
    for _ in range(12):
        if live and draw.random() < 0.5:
            live.pop(draw.randrange(len(live)))
        else:
            with contextlib.suppress(DeviceMemoryError):
                live.append(budget(draw.choice((512, 3 * MIB, 9 * MIB, 20 * MIB))))
        budget.trim(16 * MIB)


@pytest.mark.parametrize('name', ['pool', 'virtual'])
def test_the_last_blocks_may_end_in_two_threads_at_once(name):
    """Each found the other's alive, or its lock taken, and what was cached stayed for good: 55 times in 3,000."""
    for _ in range(300):
        calls = fake.FakeCalls(fake.FakeDevice(64 * MIB))
        budget = AllocatorBudget(fake.allocator_of(name, calls), calls)
        boxes = [[budget(2 * MIB)] for _ in range(2)]
        budget.close()
        side_by_side(*(box.clear for box in boxes))
        assert calls.device.taken_bytes == 0


def test_what_has_ended_is_looked_at_once(budget):
    """Else the ends of many blocks that outlive the budget, each of which asks for the sum, take their square."""
    live = [budget(512) for _ in range(50)]
    budget.close()
    for count in range(49, 0, -1):
        live.pop()
        assert not budget.live.ended
        assert budget.used_bytes() == 512 * count


def test_another_thread_may_lift_the_limit(budget):
    failures = []

    def ask():
        try:
            for _ in range(2000):
                budget.free_bytes()
        except TypeError as error:
            failures.append(error)

    def lift():
        for _ in range(2000):
            budget.limit_bytes = 8 * MIB
            budget.limit_bytes = None

    side_by_side(ask, lift)
    assert failures == []


@pytest.mark.parametrize('when', ['install', 'close'])
def test_an_interrupt_as_cupy_takes_or_gives_back_its_allocator_is_made_good(calls, budget, monkeypatch, when):
    before, set_allocator = calls.allocator, calls.set_allocator

    def interrupted(allocator):
        set_allocator(allocator)
        monkeypatch.undo()
        raise KeyboardInterrupt

    if when == 'close':
        budget.install()
    monkeypatch.setattr(calls, 'set_allocator', interrupted)
    with pytest.raises(KeyboardInterrupt):
        getattr(budget, when)()
    budget.install()
    assert calls.allocator == budget
    budget.limit_bytes = 4 * MIB
    with pytest.raises(DeviceMemoryError):
        calls.allocator(8 * MIB)
    budget.close()
    assert calls.allocator == before


@pytest.mark.skipif(sys.gettrace() is not None, reason='a debugger or a coverage tool has the trace function')
@pytest.mark.parametrize('seed', range(3))
@pytest.mark.parametrize('name', [*ALLOCATORS])
def test_an_interrupt_before_any_line_leaves_no_bytes_in_the_sums(name, seed):
    number, came = 1, True
    while came:
        calls = fake.FakeCalls(fake.FakeDevice(48 * MIB))
        budget = AllocatorBudget(fake.allocator_of(name, calls), calls)
        draw, live, count = random.Random(seed), [], Count()
        budget.live.count_in(count)
        came = interrupted_at(
            number, functools.partial(come_and_go, budget, calls, draw, live), 'line', is_counting)
        living_bytes = sum(each.mem.owner.size_bytes for each in live)
        assert (budget.used_bytes(), budget.live.total()) == (living_bytes, living_bytes), number  # no request since
        come_and_go(budget, calls, draw, live)
        assert budget.used_bytes() == budget.live.total_of(count) == sum(each.mem.owner.size_bytes for each in live)
        live.clear()
        budget.trim()
        assert (budget.used_bytes(), budget.live.total_of(count)) == (0, 0), number
        assert name == 'async' or budget.held_bytes() == 0, number
        number += 1 + number // 30
    assert number > 100, 'there are fewer lines than there should be'
