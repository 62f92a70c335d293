"""Virtual addresses: what is mapped when, what is waited for, and that every rule of the driver is kept."""
import contextlib
import functools
import itertools
import pathlib
import random
import sys
import threading

import pytest

from chainer_ooc.backends.cuda.allocators import virtual
from chainer_ooc.backends.cuda.allocators.address_space import AddressSpace
from chainer_ooc.backends.cuda.allocators.allocator import NoRoomError
from chainer_ooc.backends.cuda.allocators.mapping import MappingCalls
from chainer_ooc.backends.cuda.allocators.virtual import VirtualAllocator
from chainer_ooc.backends.cuda.budget import AllocatorBudget
from chainer_ooc.errors import ReentryError
from support import fake_device_memory as fake
from support.interrupting import handled_before, interrupted_at

MIB = fake.MIB
CHUNK = 2 * MIB


@pytest.fixture
def calls():
    return fake.FakeCalls(fake.FakeDevice(20 * MIB))  # ten chunks


@pytest.fixture
def driver(calls):
    return fake.FakeDriver(calls.device)


@pytest.fixture
def allocator(calls, driver):
    allocator = VirtualAllocator(calls, MappingCalls(0, driver))
    driver.calls.clear()
    yield allocator
    allocator.close()
    driver.check_empty()


def test_a_block_has_chunks_behind_it_and_shares_the_last(allocator, driver):
    block = allocator.malloc(5 * MIB)
    assert block.size_bytes == 5 * MIB
    assert driver.calls == ['cuMemAddressReserve', *['cuMemCreate'] * 3, *['cuMemMap'] * 3, 'cuMemSetAccess']
    driver.calls.clear()
    other = allocator.malloc(MIB)
    assert other.pointer == block.pointer + 5 * MIB
    assert driver.calls == []


def test_what_fits_into_what_was_freed_calls_nothing(allocator, driver):
    blocks = [allocator.malloc(3 * MIB) for _ in range(2)]  # neighbours
    address = blocks[0].pointer
    del blocks[:]
    driver.calls.clear()
    for nbytes in (6 * MIB, 5 * MIB, 2 * MIB + 1):
        assert allocator.malloc(nbytes).pointer == address
    assert driver.calls == []


def test_the_same_size_again_is_taken_as_it_was_until_another_is_asked_for(allocator, monkeypatch):
    first, second = allocator.malloc(3 * MIB), allocator.malloc(2 * MIB)
    address = first.pointer
    del first
    with monkeypatch.context() as patched:
        patched.setattr(allocator, '_place', None)  # nothing is looked for
        first = allocator.malloc(3 * MIB)
    assert first.pointer == address
    del first, second
    assert allocator.used_bytes() == 0
    assert allocator.malloc(5 * MIB).pointer == address  # both together


def test_the_smallest_extent_that_is_mapped_is_taken(allocator):
    kept = []
    holes = []
    for count in (4, 2, 3):
        holes.append(allocator.malloc(count * MIB))
        kept.append(allocator.malloc(MIB))
    addresses = [hole.pointer for hole in holes]
    del holes[:]
    assert allocator.malloc(3 * MIB).pointer == addresses[2]
    assert allocator.malloc(2 * MIB).pointer == addresses[1]


def test_chunks_from_anywhere_make_one_block(allocator, driver):
    blocks = [allocator.malloc(CHUNK) for _ in range(10)]
    del blocks[::2]  # five chunks, no two beside each other
    assert allocator.malloc(5 * CHUNK).size_bytes == 5 * CHUNK
    assert allocator.held_bytes() == 10 * CHUNK
    assert driver.calls.count('cuMemUnmap') <= 5


def test_idle_chunks_stay_mapped_until_they_are_short(allocator, driver):
    blocks = [allocator.malloc(count * CHUNK) for count in (3, 1, 3)]
    del blocks[0], blocks[-1]
    allocator.malloc(5 * CHUNK)
    assert 'cuMemUnmap' not in driver.calls
    kept = allocator.malloc(9 * CHUNK)  # at other addresses too, and none of what lives
    assert 'cuMemUnmap' not in driver.calls
    assert allocator.held_bytes() == 10 * CHUNK
    assert not driver.overlap((kept.pointer, kept.pointer + kept.size_bytes),
                              (blocks[0].pointer, blocks[0].pointer + CHUNK))
    del kept
    driver.calls.clear()
    allocator.malloc(9 * CHUNK)
    assert driver.calls == ['cuEventCreate', 'cuEventRecord']


def test_what_has_to_be_mapped_is_waited_for_and_nothing_else(allocator):
    waits = []

    @contextlib.contextmanager
    def waiting():
        waits.append('begun')
        yield
        waits.append('over')

    allocator.waiting = waiting
    for _ in range(3):
        allocator.malloc(3 * CHUNK)
    assert waits == ['begun', 'over']
    kept = [allocator.malloc(3 * CHUNK), allocator.malloc(2 * CHUNK)]
    assert waits == ['begun', 'over'] * 2
    del kept


def test_no_event_is_recorded_while_there_are_new_chunks(allocator, driver):
    for _ in range(3):
        allocator.malloc(5 * CHUNK)
    assert 'cuEventRecord' not in driver.calls


def test_one_event_serves_all_that_was_freed_together(allocator, driver):
    fill(allocator)
    blocks = [allocator.malloc(CHUNK) for _ in range(3)]
    del blocks
    driver.calls.clear()
    kept = [allocator.malloc(CHUNK) for _ in range(3)]
    assert driver.calls == ['cuEventCreate', 'cuEventRecord']
    del kept[:]
    for _ in range(10):  # events are used again when no page refers to them
        allocator.malloc(3 * CHUNK)
    assert driver.calls.count('cuEventCreate') <= 4


def fill(allocator):
    """Has the driver refuse a chunk: from then on events are recorded."""
    blocks = [allocator.malloc(9 * CHUNK), allocator.malloc(CHUNK)]
    with pytest.raises(NoRoomError):
        allocator.malloc(CHUNK)
    return blocks


def crowd(allocator, between=lambda block: None):
    """Has a block need a page whose chunk another one has; `between` is told of the block that was there before."""
    a, k, b, rest = (allocator.malloc(count * CHUNK) for count in (3, 1, 3, 3))
    between(b)
    del a, b
    elsewhere = allocator.malloc(6 * CHUNK)  # the chunks of both
    del k, rest
    return elsewhere, allocator.malloc(4 * CHUNK)  # behind three pages that are usable, and the last one of b


def test_unmapping_waits_for_the_work_that_was_given_before_the_free(allocator, driver, calls):
    fill(allocator)
    stream = calls.current_stream
    blocks = crowd(allocator, lambda block: stream.launch(driver, block, 3 * CHUNK))
    assert stream.done == 1
    assert not driver.overlap(*((block.pointer, block.pointer + block.size_bytes) for block in blocks))


def test_unmapping_waits_for_no_later_work(allocator, driver, calls):
    fill(allocator)
    stream = calls.current_stream
    a, k, b, rest = (allocator.malloc(count * CHUNK) for count in (3, 1, 3, 3))
    stream.launch(driver, b, 3 * CHUNK)
    del a, b
    elsewhere = allocator.malloc(6 * CHUNK)
    stream.launch(driver, elsewhere, 6 * CHUNK)
    assert stream.done == 0
    del k, rest
    allocator.malloc(4 * CHUNK)
    assert stream.done == 1


def test_a_block_has_a_chunk_once_that_is_behind_two_of_its_pages(allocator, driver):
    blocks = [allocator.malloc(CHUNK) for _ in range(10)]
    del blocks[0], blocks[1:8]  # the second and the last live
    far = allocator.malloc(8 * CHUNK)  # beyond the ten, by the same chunks
    del far
    del blocks[-1]
    wide = allocator.malloc(9 * CHUNK)  # over pages of both kinds
    parts = driver.physical(wide.pointer, wide.pointer + wide.size_bytes)
    assert len({handle for handle, *_ in parts}) == len(parts) == 9
    del blocks


def test_reuse_on_the_same_stream_waits_for_nothing(allocator, driver, calls):
    stream, block = calls.current_stream, allocator.malloc(6 * CHUNK)
    stream.launch(driver, block, 6 * CHUNK)
    del block
    block = allocator.malloc(6 * CHUNK)
    stream.launch(driver, block, 6 * CHUNK)
    assert stream.done == 0


@pytest.mark.parametrize('addresses', [(0, 7), (7, 0)])
def test_memory_of_another_stream_is_not_given_as_it_is(allocator, driver, calls, addresses):
    first, second = map(fake.FakeStream, addresses)
    calls.current_stream = first
    block = allocator.malloc(6 * CHUNK)
    first.launch(driver, block, 6 * CHUNK)
    del block
    calls.current_stream = second
    block = allocator.malloc(6 * CHUNK)  # not enough chunks for another one: it waits for the first stream
    second.launch(driver, block, 6 * CHUNK)
    assert first.done == 1


def change_stream(calls, driver, stream):
    """As a program does whose functions are on several: each comes after the function before it."""
    calls.current_stream.run_to(calls.current_stream.begun, driver)
    calls.current_stream = stream


@pytest.mark.parametrize('asked_on', ['the same', 'the other'])
def test_what_work_of_another_stream_reads_is_not_unmapped(allocator, driver, calls, asked_on):
    block = allocator.malloc(6 * CHUNK)
    first, second = calls.current_stream, fake.FakeStream(7)
    first.launch(driver, block, 6 * CHUNK)
    change_stream(calls, driver, second)
    kept = allocator.malloc(CHUNK)
    second.launch(driver, block, 6 * CHUNK)
    del block
    calls.current_stream = second if asked_on == 'the same' else first
    large = allocator.malloc(9 * CHUNK)
    assert second.done == (asked_on == 'the same')  # those of the first stream are there else
    allocator.trim(0)
    del large, kept


def test_what_work_of_another_stream_reads_is_not_unmapped_when_many_streams_come(allocator, driver, calls):
    """The memory is never short: a program with new streams in each iteration, whose backward pass is on one."""
    main = calls.current_stream
    for number in range(1, 40):
        change_stream(calls, driver, fake.FakeStream(number))
        block = allocator.malloc(CHUNK)
        calls.current_stream.launch(driver, block, CHUNK)
        change_stream(calls, driver, main)
        main.launch(driver, block, CHUNK)
        del block
        gradient = allocator.malloc(CHUNK)
        main.launch(driver, gradient, CHUNK)
        del gradient


def test_work_given_while_an_event_is_recorded_comes_after_it(allocator, driver, calls, monkeypatch):
    """A block that dies on another thread, in the midst of settling, may be used by work behind the event."""
    fill(allocator)
    stream, blocks = calls.current_stream, [allocator.malloc(3 * CHUNK), allocator.malloc(3 * CHUNK)]
    del blocks[0]
    record = driver.cuEventRecord

    def recorded_while_another_thread_works(event, of):
        result = record(event, of)
        if blocks:
            stream.launch(driver, blocks[0], 3 * CHUNK)
            blocks.clear()
        return result

    driver.streams[stream.ptr] = stream
    monkeypatch.setattr(driver, 'cuEventRecord', recorded_while_another_thread_works)
    allocator.malloc(CHUNK)
    assert allocator.malloc(9 * CHUNK).size_bytes == 9 * CHUNK


def test_what_became_idle_before_events_were_recorded_is_waited_for(allocator, driver, calls):
    stream, block = calls.current_stream, allocator.malloc(9 * CHUNK)
    stream.launch(driver, block, 9 * CHUNK)
    del block
    kept = allocator.malloc(CHUNK)
    assert allocator.malloc(9 * CHUNK).size_bytes == 9 * CHUNK  # across its end: one chunk of it has to move
    assert stream.done <= 1
    del kept


def test_small_arrays_share_regions(allocator):
    blocks = [allocator.malloc(nbytes) for nbytes in (512, 1, MIB - 1, MIB // 2)]
    assert allocator.held_bytes() == virtual.REGION_BYTES
    assert allocator.used_bytes() == 512 + 512 + MIB + MIB // 2
    blocks.append(allocator.malloc(5 * MIB))
    assert allocator.held_bytes() == virtual.REGION_BYTES + 3 * CHUNK


def test_regions_of_small_arrays_come_back_when_they_are_needed(allocator):
    for nbytes in (512, MIB // 2):
        allocator.malloc(nbytes)
    assert allocator.malloc(10 * CHUNK).size_bytes == 10 * CHUNK


def test_a_small_array_for_which_no_region_has_room_has_what_there_is(allocator):
    kept = allocator.malloc(9 * CHUNK)
    small = allocator.malloc(512)
    assert allocator.used_bytes() == kept.size_bytes + small.size_bytes == 9 * CHUNK + 512


def test_a_small_array_finds_no_chunk(allocator):
    kept = allocator.malloc(10 * CHUNK)
    with pytest.raises(NoRoomError):
        allocator.malloc(512)
    assert allocator.used_bytes() == kept.size_bytes


def test_a_refusal_says_what_is_missing_beside_idle_chunks(allocator):
    allocator.limit_bytes = 10 * CHUNK
    blocks = [allocator.malloc(CHUNK) for _ in range(10)]
    del blocks[::3]  # four chunks are idle, no two of them behind addresses that touch
    for nbytes, missing_bytes in ((6 * CHUNK, 2 * CHUNK), (5 * CHUNK - 1, CHUNK), (11 * CHUNK, 7 * CHUNK)):
        with pytest.raises(NoRoomError) as refused:
            allocator.malloc(nbytes)
        assert refused.value.missing_bytes == missing_bytes
    assert len(blocks) == 6
    blocks.clear()


def test_chunks_survive_a_request_that_is_too_large(allocator, driver):
    kept = allocator.malloc(6 * CHUNK)
    allocator.malloc(3 * CHUNK)
    with pytest.raises(NoRoomError, match='chunks are needed'):
        allocator.malloc(5 * CHUNK)
    driver.calls.clear()
    assert allocator.malloc(4 * CHUNK).size_bytes == 4 * CHUNK
    assert 'cuMemCreate' not in driver.calls
    del kept


def test_more_than_the_limit_is_refused_without_asking_the_driver(allocator, driver):
    allocator.limit_bytes = 4 * CHUNK
    with pytest.raises(NoRoomError, match=r'10\.5 MB of chunks are needed, of 8\.4 MB'):
        allocator.malloc(5 * CHUNK)
    assert driver.calls == []


def test_a_higher_limit_has_more_addresses(calls, driver):
    calls.device.capacity_bytes = 400 * CHUNK
    allocator = VirtualAllocator(calls, MappingCalls(0, driver))
    allocator.limit_bytes = 10 * CHUNK
    first = allocator.malloc(9 * CHUNK)
    allocator.limit_bytes = 400 * CHUNK
    second = allocator.malloc(350 * CHUNK)
    assert (first.size_bytes, second.size_bytes) == (9 * CHUNK, 350 * CHUNK)
    assert driver.calls.count('cuMemAddressReserve') == 2
    del first, second
    allocator.close()
    driver.check_empty()


def test_trim_keeps_as_much_as_it_may(allocator):
    blocks = [allocator.malloc(count * CHUNK) for count in (2, 5)]
    del blocks
    allocator.trim(5 * CHUNK)
    assert allocator.held_bytes() == 5 * CHUNK
    allocator.trim(3 * CHUNK)
    assert allocator.held_bytes() == 3 * CHUNK
    allocator.trim(CHUNK)
    assert allocator.held_bytes() == CHUNK


def test_trim_leaves_the_chunks_that_live_blocks_share(allocator):
    blocks = [allocator.malloc(3 * MIB) for _ in range(3)]
    del blocks[1]
    allocator.trim(0)
    assert allocator.held_bytes() == 5 * CHUNK - CHUNK  # of [0, 9) MiB the chunk [4, 6) alone has nobody


# How large a chunk is

GB = 10**9
#: What the convolutions of a residual network write, at batch 640: (channels, side, how many).
MAPS = [(64, 112, 1), (64, 56, 7), (256, 56, 3), (128, 56, 1), (128, 28, 7), (512, 28, 4), (256, 28, 1), (256, 14, 11),
        (1024, 14, 6), (512, 14, 1), (512, 7, 5), (2048, 7, 3)]


def trained(limit_bytes=16 * GB, iterations=2):
    """Calls of the driver, and the most that rounding took, for maps that come and leave as under an eviction.

    Each map has batch normalisation's beside it; the oldest leave when there is no room, and come back in reverse.
    """
    calls = fake.FakeCalls(fake.FakeDevice(141 * GB))
    driver = fake.FakeDriver(calls.device)
    allocator = VirtualAllocator(calls, MappingCalls(0, driver))
    allocator.limit_bytes = limit_bytes
    sizes = [640 * channels * side * side * 4 for channels, side, count in MAPS for _ in range(2 * count)]
    live, most_lost = {}, 0
    for _ in range(iterations):
        for number, nbytes in [*enumerate(sizes), *reversed([*enumerate(sizes)])]:
            while number not in live:
                try:
                    live[number] = allocator.malloc(nbytes)
                except NoRoomError:
                    del live[next(iter(live))]
            most_lost = max(most_lost, allocator.used_bytes() - sum(sizes[each] for each in live))
    made = {name: driver.calls.count(name) for name in ('cuMemCreate', 'cuMemMap', 'cuMemUnmap')}
    live.clear()
    allocator.close()
    driver.check_empty()
    return made, most_lost


def test_chunks_that_suit_the_limit_take_few_calls_and_no_memory(monkeypatch):
    usual, lost = trained()
    monkeypatch.setattr(virtual, 'CHUNK_SHARE', 16 * GB // (2 * MIB))
    smaller, _ = trained()
    assert usual == {'cuMemCreate': 508, 'cuMemMap': 994, 'cuMemUnmap': 41}, 'docs/results/counted.md has these'
    assert smaller == {'cuMemCreate': 3814, 'cuMemMap': 9_807, 'cuMemUnmap': 40}
    assert lost == 0


@pytest.mark.parametrize(('limit_bytes', 'chunk_bytes'), [
    (None, 64 * MIB), (16 * GB, 30 * MIB), (4 * GB, 8 * MIB), (GB // 2, 2 * MIB), (10, 2 * MIB)])
def test_the_chunk_is_a_512th_of_the_limit(limit_bytes, chunk_bytes):
    calls = fake.FakeCalls(fake.FakeDevice(141 * GB))
    driver = fake.FakeDriver(calls.device)
    allocator = VirtualAllocator(calls, MappingCalls(0, driver))
    allocator.malloc(CHUNK)  # before a limit is known
    allocator.limit_bytes = limit_bytes
    with contextlib.suppress(NoRoomError):
        allocator.malloc(1)
    assert allocator.chunk_bytes == chunk_bytes
    allocator.close()
    driver.check_empty()


def test_chunks_stay_while_something_lives(calls, driver):
    allocator = VirtualAllocator(calls, MappingCalls(0, driver))
    calls.device.capacity_bytes = 64 * GB
    kept = allocator.malloc(CHUNK)
    allocator.limit_bytes = 16 * GB
    allocator.malloc(CHUNK)
    assert (allocator.chunk_bytes, kept.size_bytes) == (CHUNK, CHUNK)
    del kept
    allocator.limit_bytes = 11 * GB
    allocator.malloc(CHUNK)
    assert allocator.chunk_bytes == 22 * MIB
    allocator.close()
    driver.check_empty()


@pytest.mark.parametrize('name', ['cuMemAddressReserve', 'cuMemMap', 'cuMemSetAccess', 'cuMemCreate'])
def test_a_failed_call_leaves_everything_as_it_was(allocator, driver, name):
    driver.failing[name] = fake.FakeResult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(RuntimeError, match=f'{name} of .* failed with CUDA_ERROR_INVALID_VALUE'):
        allocator.malloc(3 * CHUNK)
    assert allocator.used_bytes() == 0
    assert allocator.malloc(10 * CHUNK).size_bytes == 10 * CHUNK


def test_a_failure_midway_unmaps_what_was_mapped(allocator, driver, monkeypatch):
    map_, count = driver.cuMemMap, []

    def fail_at_the_third(*arguments):
        count.append(arguments)
        if len(count) == 3:
            driver.failing['cuMemMap'] = fake.FakeResult.CUDA_ERROR_OUT_OF_MEMORY
        return map_(*arguments)

    fail_at_the_third.__name__ = 'cuMemMap'
    monkeypatch.setattr(driver, 'cuMemMap', fail_at_the_third)
    with pytest.raises(NoRoomError, match=r'cuMemMap of 2\.1 MB was refused'):
        allocator.malloc(4 * CHUNK)
    assert allocator.malloc(10 * CHUNK).size_bytes == 10 * CHUNK


@pytest.mark.parametrize('name', ['cuEventCreate', 'cuEventRecord'])
def test_an_event_that_cannot_be_recorded_loses_no_chunk(allocator, driver, name):
    blocks = fill(allocator)
    del blocks
    driver.failing[name] = fake.FakeResult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(RuntimeError, match=name):
        allocator.malloc(CHUNK)
    assert allocator.malloc(10 * CHUNK).size_bytes == 10 * CHUNK


@pytest.mark.parametrize('capacity_bytes', [20 * MIB, 4 << 30])
@pytest.mark.parametrize('sizes', [(2 * CHUNK, 2 * CHUNK), (2 * CHUNK, 512), (512,)])
def test_streams_without_blocks_are_let_go(sizes, capacity_bytes):
    """A program that makes a stream for each iteration had addresses for all of them, for good."""
    calls = fake.FakeCalls(fake.FakeDevice(capacity_bytes))
    driver = fake.FakeDriver(calls.device)
    allocator = VirtualAllocator(calls, MappingCalls(0, driver))
    kept = allocator.malloc(CHUNK)
    for number in range(1, 40):
        calls.current_stream = stream = fake.FakeStream(number)
        blocks = [allocator.malloc(each) for each in sizes]
        for block, nbytes in zip(blocks, sizes, strict=True):
            stream.launch(driver, block, nbytes)
        del blocks, block
        assert len(driver.reservations) <= virtual.MANY_SPACES
    assert allocator.used_bytes() == kept.size_bytes
    del kept
    allocator.close()
    driver.check_empty()


def test_blocks_may_die_in_any_thread(allocator):
    blocks = [allocator.malloc(2 * CHUNK) for _ in range(5)]
    thread = threading.Thread(target=blocks.clear)
    thread.start()
    thread.join()
    assert allocator.used_bytes() == 0
    assert allocator.malloc(10 * CHUNK).size_bytes == 10 * CHUNK


def test_close_leaves_what_lives(calls, driver):
    allocator = VirtualAllocator(calls, MappingCalls(0, driver))
    block, small = allocator.malloc(3 * CHUNK), allocator.malloc(512)
    allocator.close()
    assert allocator.held_bytes() == 3 * CHUNK + virtual.REGION_BYTES
    calls.current_stream.launch(driver, block, 3 * CHUNK)
    del block, small
    allocator.close()
    driver.check_empty()


@pytest.fixture
def contexts(calls, driver, monkeypatch):
    """The driver's events need a context; CuPy makes one current where the runtime is asked for anything."""
    thread = threading.local()
    for name in ('cuEventCreate', 'cuEventRecord', 'cuEventSynchronize', 'cuCtxSynchronize'):
        def checked(*arguments, call=getattr(driver, name)):  # noqa: B008
            fake.check(hasattr(thread, 'context'), 'no context')
            return call(*arguments)
        checked.__name__ = name
        monkeypatch.setattr(driver, name, checked)
    stream = calls.stream
    monkeypatch.setattr(calls, 'stream', lambda: [setattr(thread, 'context', True), stream()][1])


def in_a_thread(run):
    """Runs it in a thread of its own; gives what it has raised, or None."""
    failures = []

    def guarded():
        try:
            run()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    thread.join()
    return failures[0] if failures else None


@pytest.mark.usefixtures('contexts')
def test_the_first_request_after_another_limit_may_be_made_in_a_thread_without_a_context(calls, driver):
    allocator = VirtualAllocator(calls, MappingCalls(0, driver))
    allocator.limit_bytes = 1 << 30
    block = allocator.malloc(3 * CHUNK)
    calls.current_stream.launch(driver, block, 3 * CHUNK)
    del block
    allocator.limit_bytes = 8 << 30
    assert in_a_thread(lambda: allocator.malloc(CHUNK)) is None


@pytest.mark.usefixtures('contexts')
def test_the_last_array_may_end_in_a_thread_without_a_context(calls, driver):
    budget = AllocatorBudget(VirtualAllocator(calls, MappingCalls(0, driver)), calls)
    with fake.installed_budget(budget):
        kept = [budget(3 * CHUNK)]
    budget.close()
    assert budget.held_bytes() == 3 * CHUNK
    assert in_a_thread(kept.clear) is None
    driver.check_empty()


def play(allocator, driver, calls, draw, live, steps=40, streams=()):
    """Random requests, frees, work and trims; no two blocks that live share memory."""
    for _ in range(steps):
        if streams and draw.random() < 0.3:
            change_stream(calls, driver, draw.choice(streams))
        what = draw.random()
        if what < 0.4:
            nbytes = draw.randint(1, 7) * CHUNK if draw.random() < 0.7 else draw.randint(1, 7 * CHUNK)
            with contextlib.suppress(NoRoomError):
                live.append((allocator.malloc(nbytes), nbytes))
        elif what < 0.65 and live:
            live.pop(draw.randrange(len(live)))
        elif what < 0.9 and live:
            calls.current_stream.launch(driver, *draw.choice(live))
        elif what > 0.9:
            allocator.trim(draw.randint(0, 10) * CHUNK)
        parts = sorted(part for block, nbytes in live
                       for part in driver.physical(block.pointer, block.pointer + nbytes))
        assert all(one[0] != other[0] or one[2] <= other[1] for one, other in itertools.pairwise(parts))


def interrupt(driver, monkeypatch, name, at=1):
    """Has a KeyboardInterrupt come as one of the driver's calls of that name returns."""
    original, left = getattr(driver, name), [at]

    def interrupted(*arguments):
        result = original(*arguments)
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return result

    interrupted.__name__ = name
    monkeypatch.setattr(driver, name, interrupted)


@pytest.mark.parametrize('seed', range(200))
def test_any_sequence_keeps_the_rules(allocator, driver, calls, seed):
    """Of few chunks, so that most requests need what others have left, beside work that is not over."""
    play(allocator, driver, calls, random.Random(seed), [], 60)


@pytest.mark.parametrize('seed', range(100))
def test_any_sequence_on_several_streams_keeps_the_rules(allocator, driver, calls, seed):
    streams = [calls.current_stream, *map(fake.FakeStream, (7, 9))]
    play(allocator, driver, calls, random.Random(seed), [], 60, streams)


@pytest.mark.parametrize('seed', range(8))
@pytest.mark.parametrize('name', [
    'cuMemCreate', 'cuMemMap', 'cuMemSetAccess', 'cuMemUnmap', 'cuMemRelease', 'cuEventRecord', 'cuEventSynchronize'])
def test_an_interrupt_as_a_call_of_the_driver_returns_tears_nothing(calls, driver, monkeypatch, name, seed):
    draw, live, made = random.Random(seed), [], VirtualAllocator(calls, MappingCalls(0, driver))
    interrupt(driver, monkeypatch, name, draw.randint(1, 4))
    for _ in range(10):
        with contextlib.suppress(KeyboardInterrupt):
            play(made, driver, calls, draw, live)
    live.clear()
    made.close()
    assert made.held_bytes() == 0
    if name != 'cuMemCreate':  # whose handle is lost then
        driver.check_empty()


@pytest.mark.skipif(sys.gettrace() is not None, reason='a debugger or a coverage tool has the trace function')
@pytest.mark.parametrize('seed', range(2))
def test_an_interrupt_before_any_line_loses_nothing_that_is_known(seed):
    number, came = 1, True
    while came:
        calls = fake.FakeCalls(fake.FakeDevice(10 * CHUNK))
        driver = fake.FakeDriver(calls.device)
        allocator, draw, live = VirtualAllocator(calls, MappingCalls(0, driver)), random.Random(seed), []
        came = interrupted_at(number, functools.partial(play, allocator, driver, calls, draw, live), 'line', is_ours)
        play(allocator, driver, calls, draw, live)
        assert allocator.used_bytes() == sum(block.size_bytes for block, _ in live), number
        live.clear()
        assert allocator.used_bytes() == 0, number
        allocator.close()
        assert allocator.held_bytes() == 0, number
        left = len(driver.reservations) + len(driver.handles) + len(driver.events)
        assert left <= 1, number  # what the driver had given, or was to take back, as the interrupt came
        number += 1 + number // 15
    assert number > 100, 'the sequence has fewer lines than it should'


@pytest.mark.skipif(sys.gettrace() is not None, reason='a debugger or a coverage tool has the trace function')
@pytest.mark.parametrize('seed', range(2))
def test_a_handler_has_memory_of_its_own_or_is_refused(seed):
    """It asks three times before some line, as it would from a signal or the end of an object."""
    refused = 0
    for number in range(seed, 2500, 167):
        calls = fake.FakeCalls(fake.FakeDevice(10 * CHUNK))
        driver = fake.FakeDriver(calls.device)
        allocator, draw, live = VirtualAllocator(calls, MappingCalls(0, driver)), random.Random(seed), []
        lines = itertools.count()

        def handle(allocator=allocator, live=live):
            nonlocal refused
            for count in (2, 1, 3):
                try:
                    live.append((allocator.malloc(count * CHUNK), count * CHUNK))
                except (NoRoomError, ReentryError) as error:
                    refused += isinstance(error, ReentryError)

        with handled_before(lambda: next(lines) == number, handle, is_traced=is_ours):  # noqa: B023
            play(allocator, driver, calls, draw, live)
        play(allocator, driver, calls, draw, live)
        assert allocator.used_bytes() == sum(block.size_bytes for block, _ in live)
        live.clear()
        allocator.close()
        driver.check_empty()
    assert refused > 10


def is_ours(code):
    """Not finalizers, where an interrupt is lost; nor what takes the lock: between its body and its end none comes."""
    return (code.co_filename.startswith(str(pathlib.Path(virtual.__file__).parent))
            and code.co_name not in ('__del__', 'malloc', '_changing', 'total_of'))


def test_a_block_goes_nowhere_that_an_interrupt_has_unmapped(calls, driver, monkeypatch):
    allocator = VirtualAllocator(calls, MappingCalls(0, driver))
    blocks = [allocator.malloc(count * CHUNK) for count in (2, 1, 3)]
    del blocks[0]
    allocator.used_bytes()
    interrupt(driver, monkeypatch, 'cuMemUnmap')
    with pytest.raises(KeyboardInterrupt):
        allocator.trim(0)
    monkeypatch.undo()
    blocks.pop()
    small = allocator.malloc(CHUNK)  # while another size is kept
    calls.current_stream.launch(driver, small, CHUNK)
    del blocks, small
    allocator.close()
    driver.check_empty()


@pytest.mark.parametrize('seed', range(8))
@pytest.mark.parametrize('name', ['cuMemCreate', 'cuMemMap', 'cuMemSetAccess', 'cuMemUnmap', 'cuMemRelease',
                                  'cuEventRecord', 'cuEventSynchronize', 'cuCtxSynchronize'])
def test_failures_of_the_driver_tear_nothing(allocator, calls, driver, name, seed):
    draw, live = random.Random(seed), []
    streams = [calls.current_stream, fake.FakeStream(7)] if name == 'cuCtxSynchronize' else ()
    for _ in range(10):
        driver.failing[name] = fake.FakeResult.CUDA_ERROR_INVALID_VALUE
        if name == 'cuMemMap' and draw.random() < 0.5:
            driver.failing['cuMemUnmap'] = fake.FakeResult.CUDA_ERROR_INVALID_VALUE
        with contextlib.suppress(RuntimeError):
            play(allocator, driver, calls, draw, live, streams=streams)
    driver.failing.clear()
    live.clear()


def test_chunks_that_two_failures_have_left_are_in_one_place(allocator, calls, driver, monkeypatch):
    first, second, third = map(fake.FakeStream, (0, 7, 9))
    for stream in (first, second):
        calls.current_stream = stream
        allocator.malloc(5 * CHUNK)
    calls.current_stream, unmap, calls_made = third, driver.cuMemUnmap, []

    def fails_the_second_time(*arguments):
        calls_made.append(arguments)
        return (fake.FakeResult.CUDA_ERROR_INVALID_VALUE,) if len(calls_made) == 2 else unmap(*arguments)

    fails_the_second_time.__name__ = 'cuMemUnmap'
    with monkeypatch.context() as patched:
        patched.setattr(driver, 'cuMemUnmap', fails_the_second_time)
        with pytest.raises(RuntimeError, match='cuMemUnmap'):
            allocator.malloc(10 * CHUNK)  # the chunks of both other streams
    calls.current_stream = first
    driver.failing['cuMemMap'] = fake.FakeResult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(RuntimeError, match='cuMemMap'):
        allocator.malloc(5 * CHUNK)
    allocator.trim(7 * CHUNK)
    live = [allocator.malloc(CHUNK) for _ in range(10)]
    parts = [part for block in live for part in driver.physical(block.pointer, block.pointer + block.size_bytes)]
    assert len({handle for handle, *_ in parts}) == len(parts) == 10
    assert allocator.held_bytes() == 10 * CHUNK


def test_a_lower_limit_is_kept_where_small_arrays_hold_regions(allocator):
    kept = [allocator.malloc(512) for _ in range(2)]
    large = allocator.malloc(6 * CHUNK)
    del large
    allocator.limit_bytes = 4 * CHUNK
    allocator.trim(max(0, allocator.limit_bytes - allocator.used_bytes()))  # as the budget does
    assert allocator.held_bytes() <= allocator.limit_bytes
    del kept


def test_a_limit_that_was_lowered_amid_a_request_holds_at_the_next(allocator):
    large = allocator.malloc(6 * CHUNK)
    del large
    kept = allocator.malloc(CHUNK)
    allocator.limit_bytes = 2 * CHUNK  # and the trim that the budget asks for was refused
    kept = [kept, allocator.malloc(CHUNK)]
    assert allocator.held_bytes() <= 2 * CHUNK
    del kept


# Each of these plants a fault, and shows that the rules above would catch it.

def test_a_missing_wait_is_caught(driver, calls, monkeypatch):
    allocator = VirtualAllocator(calls, MappingCalls(0, driver))
    monkeypatch.setattr(allocator._chunks.timestamps, 'wait', lambda moment: None)
    with pytest.raises(fake.RuleBrokenError, match='unmaps what a kernel has yet to use'):
        crowd(allocator, lambda block: calls.current_stream.launch(driver, block, 3 * CHUNK))


def test_a_chunk_that_a_block_has_twice_is_caught(driver, calls, monkeypatch):
    allocator = VirtualAllocator(calls, MappingCalls(0, driver))
    monkeypatch.setattr(AddressSpace, 'shared', lambda space, pages: [])
    with pytest.raises(KeyError):
        test_a_block_has_a_chunk_once_that_is_behind_two_of_its_pages(allocator, driver)


def test_memory_that_crosses_streams_is_caught(allocator, driver, calls, monkeypatch):
    place = allocator._place
    first, second = fake.FakeStream(0), fake.FakeStream(7)
    monkeypatch.setattr(allocator, '_place', lambda key, stream: place((first.ptr, key[1]), first))
    calls.current_stream = first
    block = allocator.malloc(6 * CHUNK)
    first.launch(driver, block, 6 * CHUNK)
    del block
    calls.current_stream = second
    block = allocator.malloc(6 * CHUNK)
    with pytest.raises(fake.RuleBrokenError, match='another stream'):
        second.launch(driver, block, 6 * CHUNK)


def test_missing_access_is_caught(allocator, driver, calls, monkeypatch):
    monkeypatch.setattr(MappingCalls, 'allow', lambda *arguments: None)
    block = allocator.malloc(CHUNK)
    with pytest.raises(fake.RuleBrokenError, match='without access'):
        calls.current_stream.launch(driver, block, CHUNK)
