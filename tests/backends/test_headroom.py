"""The default budget, and what a container leaves for the next computation."""
import contextlib
import mmap
import resource
import threading
import warnings

import numpy as np
import pytest

from chainer_ooc.backends.host import HostBackend, arena, groups, headroom, heap, limits
from chainer_ooc.backends.host.guard import Guard, data_bytes, have_blas_map_its_buffers
from chainer_ooc.backends.host.headroom import Headroom
from support.containers import LIMIT, MB, Container

pytestmark = pytest.mark.usefixtures('no_gap')

UNASKED, DIRTY = 16 * MB, 32 * MB  # of that limit


@pytest.fixture
def container(tmp_path):
    return Container(tmp_path)


@pytest.fixture
def contained(container, tmp_path, monkeypatch):
    """A backend in that container."""
    monkeypatch.setattr(groups, 'groups', lambda: container.found)
    monkeypatch.setattr(headroom.groups, 'groups', lambda: container.found)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        backend = HostBackend(str(tmp_path))
    monkeypatch.setattr(backend, '_headroom', Headroom(lambda: container.found))
    monkeypatch.setattr(backend, '_guard', Guard(backend._headroom, backend._blocks.serves))
    yield backend
    backend.close()


# Room for a computation


def test_there_is_room_up_to_what_is_allocated_unasked(container):
    room = Headroom(lambda: container.found)
    container.holds(600 * MB)
    assert room.has_room(LIMIT - 600 * MB - UNASKED, will_write=False)
    assert not room.has_room(LIMIT - 600 * MB - UNASKED + 1, will_write=False)


def test_a_container_may_vanish_while_it_is_asked(container, monkeypatch):
    monkeypatch.setattr(headroom, '_LOOK_AGAIN_SECONDS', -1.0)
    found = iter([container.found])
    room = Headroom(lambda: next(found, []))
    assert room.set_aside_bytes(1000) == 50 + UNASKED + DIRTY // 2
    assert room.set_aside_bytes(1000) == 100


def test_clean_pages_of_the_spill_file_are_room_and_dirty_ones_are_not(container):
    room = Headroom(lambda: container.found)
    container.holds(600 * MB, clean_bytes=424 * MB)
    assert room.has_room(300 * MB, will_write=False)
    container.holds(600 * MB, clean_bytes=224 * MB, dirty_bytes=200 * MB)
    assert room.has_room(200 * MB, will_write=False)
    assert not room.has_room(300 * MB, will_write=False)


def test_what_is_about_to_be_written_takes_room(container):
    room = Headroom(lambda: container.found)
    container.holds(600 * MB)
    assert room.has_room(LIMIT - 600 * MB - UNASKED - DIRTY, will_write=True)
    assert not room.has_room(LIMIT - 600 * MB - UNASKED - DIRTY + 1, will_write=True)


def test_without_a_container_there_is_always_room_and_nothing_to_write_early():
    room = Headroom(list)
    assert room.has_room(1 << 60, will_write=True)
    assert (room.dirty_bytes(), room.left_bytes(), room.in_container()) == (None, None, False)


def test_a_limit_that_changes_is_noticed(container, monkeypatch):
    now, asked = [0.0], []
    monkeypatch.setattr(headroom.time, 'monotonic', lambda: now[0])
    room = Headroom(lambda: asked.append(1) or (container.found if len(asked) > 1 else []))
    assert room.dirty_bytes() is None
    now[0] = 0.9
    assert room.dirty_bytes() is None
    now[0] = 1.1
    assert room.dirty_bytes() == DIRTY
    assert len(asked) == 2


def test_a_backend_asks_the_container_too(contained, container):
    container.holds(900 * MB)
    assert contained.has_room(100 * MB)
    assert not contained.has_room(124 * MB)


def test_swap_ins_under_way_take_room_that_their_blocks_do_not_have_yet(contained, container, monkeypatch):
    source = np.ones(64 * MB, np.uint8)
    copy, out = contained.swap_out(source)
    out.wait()
    held = contained._store._swap_in
    submitted = []
    monkeypatch.setattr(contained._store, '_swap_in', type('Held', (), {
        'submit': staticmethod(submitted.append), 'stop': held.stop})())
    container.holds(LIMIT - UNASKED - 100 * MB)
    assert contained.has_room(100 * MB)
    transfer = contained.swap_in(copy, contained.allocate(64 * MB))
    assert contained.has_room(36 * MB)
    assert not contained.has_room(37 * MB)
    held.submit(submitted.pop())
    transfer.wait()
    assert contained.has_room(100 * MB)


@pytest.mark.skipif(arena.available() is not None, reason=str(arena.available()))
def test_pages_that_are_kept_serve_before_room_is_denied(contained, container):
    contained.begin()
    contained.trim()
    array = contained.allocate(64 * MB)
    array[:] = 1
    del array
    container.holds(LIMIT)
    assert contained.has_room(64 * MB)
    assert not contained.has_room(65 * MB)
    assert contained._blocks.nbytes() == 64 * MB


def test_a_trim_has_the_spill_file_clean(contained, container, monkeypatch):
    cleaned = []
    monkeypatch.setattr(contained._file, 'clean', lambda: cleaned.append(1))
    contained.trim()
    assert cleaned == [1]
    monkeypatch.setattr(contained, '_headroom', Headroom(list))
    contained.trim()
    assert cleaned == [1]


def test_what_is_free_is_found_by_few_readings_of_the_system(contained, container, monkeypatch):
    # Each iteration asks, however short it is: groups that were found stay found, and no limit asks for the heap.
    read = []
    container.holds(LIMIT // 2)
    contained.free_bytes()
    monkeypatch.setattr(groups, 'read', lambda path, really=groups.read: read.append(path) or really(path))
    monkeypatch.setattr(heap, 'free_bytes', lambda: pytest.fail('the heap was asked'))
    monkeypatch.setattr(resource, 'getrlimit', lambda number: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    contained.free_bytes()
    group, = container.found
    assert sorted(read) == sorted(['/proc/meminfo', group.stat_path, group.used_path])


# The guard around a computation


@pytest.fixture
def restored():
    """Fails a test that leaves another limit behind, and repairs it."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    yield before
    after = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, before)
    assert after == before


@pytest.mark.usefixtures('restored')
def test_in_a_computation_the_system_refuses_what_the_container_would_kill_for(container):
    guard = Guard(Headroom(lambda: container.found))
    container.holds(LIMIT - 100 * MB)
    with guard:
        np.empty(80 * MB, np.uint8)
        with pytest.raises(MemoryError):
            np.empty(120 * MB, np.uint8)
    np.empty(120 * MB, np.uint8)


@pytest.mark.usefixtures('restored')
@pytest.mark.parametrize('left_bytes', [0, 2 * MB, 7 * MB])
def test_where_hardly_anything_is_left_there_are_small_buffers_and_no_arrays(container, contained, left_bytes):
    if arena.available():
        pytest.skip(arena.available())
    contained.begin()
    contained.limit(LIMIT, lambda nbytes: False)
    heap.trim()
    have_blas_map_its_buffers()  # once in a process, by an array that asks as well
    container.holds(LIMIT - left_bytes)
    with Guard(contained._headroom):
        with pytest.raises(MemoryError):
            np.empty(64 * MB, np.uint8)  # no free pages serve it
        held = [bytearray(64 << 10) for _ in range(32)]
    assert len(held) == 32
    contained.limit(None, lambda nbytes: False)


@pytest.mark.parametrize('make', [np.ones, np.zeros, np.empty])
def test_between_computations_an_array_is_refused_that_the_container_would_kill_for(container, contained, make):
    """Such as an optimizer's first state: room is made for it as for another, as long as there is something to free."""
    if arena.available():
        pytest.skip(arena.available())
    asked, kept_bytes = [], [LIMIT - 40 * MB]

    def make_room(nbytes):
        asked.append(nbytes)
        kept_bytes[0] -= 8 * MB
        container.holds(kept_bytes[0])
        return len(asked) < 4
    container.holds(*kept_bytes)
    contained.begin()
    contained.limit(LIMIT, make_room)
    contained.keep_at_most(0)
    held = [make(30 * MB, np.uint8)]  # 8 MB are left alone
    assert not asked
    held.append(make(48 * MB, np.uint8))
    assert asked == [48 * MB] * 2
    with pytest.raises(MemoryError):
        make(300 * MB, np.uint8)
    assert asked == [48 * MB] * 2 + [300 * MB] * 2
    del held
    make(40 * MB, np.uint8)  # of free pages: nothing is asked
    assert len(asked) == 4
    contained.limit(None, lambda nbytes: False)


@pytest.mark.skipif(arena.available() is not None, reason=str(arena.available()))
def test_a_computation_whose_arrays_ask_has_no_limit_around_it(container, contained, restored):
    """It was other threads' too, whose OpenBLAS ended the process, and that of the children that they started."""
    contained.begin()
    contained.limit(LIMIT, lambda nbytes: False)
    heap.trim()
    container.holds(LIMIT - 40 * MB)
    with contained.computing():
        assert resource.getrlimit(resource.RLIMIT_DATA) == restored
        mmap.mmap(-1, LIMIT).close()  # mapped, and not touched
        np.empty(30 * MB, np.uint8)
        contained.keep_at_most(0)
        with pytest.raises(MemoryError):
            np.empty(34 * MB, np.uint8)
    contained.limit(None, lambda nbytes: False)


@pytest.mark.skipif(arena.available() is not None, reason=str(arena.available()))
def test_a_computation_whose_arrays_come_from_elsewhere_has_one(container, contained, restored):
    """As where the program has a handler of NumPy's of its own."""
    container.holds(LIMIT - 40 * MB)
    with contained.computing():
        assert resource.getrlimit(resource.RLIMIT_DATA) != restored


def test_an_error_in_a_computation_takes_the_guard_away(container, restored):
    guard = Guard(Headroom(lambda: container.found))
    with contextlib.suppress(ZeroDivisionError), guard:
        assert resource.getrlimit(resource.RLIMIT_DATA) != restored
        1 / 0  # noqa: B018
    assert resource.getrlimit(resource.RLIMIT_DATA) == restored


def test_the_limit_is_back_when_the_last_of_several_computations_ends(container, restored):
    first, second = (Guard(Headroom(lambda: container.found)) for _ in range(2))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert resource.getrlimit(resource.RLIMIT_DATA) != restored, 'the second still computes'
    second.__exit__(None, None, None)
    assert resource.getrlimit(resource.RLIMIT_DATA) == restored
    with first:
        second.lift()  # as its session closes
        assert resource.getrlimit(resource.RLIMIT_DATA) != restored
    assert resource.getrlimit(resource.RLIMIT_DATA) == restored


def test_the_limit_is_back_when_the_last_thread_of_one_backend_ends_its_computation(container, restored):
    guard = Guard(Headroom(lambda: container.found))
    began, may_end = threading.Event(), threading.Event()

    def compute():
        with guard:
            began.set()
            may_end.wait(60)
    thread = threading.Thread(target=compute)
    with guard:
        thread.start()
        assert began.wait(60)
    assert resource.getrlimit(resource.RLIMIT_DATA) != restored, 'the thread still computes'
    may_end.set()
    thread.join()
    assert resource.getrlimit(resource.RLIMIT_DATA) == restored
    with guard:
        guard.lift()  # as its session closes
        assert resource.getrlimit(resource.RLIMIT_DATA) == restored


def test_a_tighter_limit_of_the_program_stays(container, restored):
    guard = Guard(Headroom(lambda: container.found))
    own = data_bytes() + 50 * MB, restored[1]
    resource.setrlimit(resource.RLIMIT_DATA, own)
    try:
        with guard:
            assert resource.getrlimit(resource.RLIMIT_DATA) == own
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, restored)


def test_without_a_container_there_is_no_guard(restored):
    with Guard(Headroom(list)):
        assert resource.getrlimit(resource.RLIMIT_DATA) == restored


def test_when_little_is_left_after_a_computation_the_heap_gives_back_what_is_free(container, monkeypatch):
    trims = []
    monkeypatch.setattr(heap, 'trim', lambda: trims.append(1))
    guard = Guard(Headroom(lambda: container.found))
    container.holds(LIMIT - UNASKED - DIRTY)
    with guard:
        pass
    assert not trims
    with guard:
        container.holds(LIMIT - UNASKED)
    assert trims == [1]


def test_a_closed_backend_leaves_no_guard(contained, restored):
    contained.computing().__enter__()
    contained.close()
    assert resource.getrlimit(resource.RLIMIT_DATA) == restored


# The default budget


def test_the_first_budget_is_all_but_what_is_set_aside_in_a_coarse_step():
    assert headroom.budget(None, 1000 * MB, 100 * MB) == 896 * MB  # 900 in steps of 8
    assert headroom.budget(None, 1023 * MB, 0) == 1016 * MB
    assert headroom.budget(None, 100, 200) == 1


@pytest.mark.parametrize('whole', [921, 1000, 1050, 1090])
def test_a_budget_stays_while_a_quarter_of_what_was_set_aside_is_there_and_little_can_be_added(whole):
    assert headroom.budget(896 * MB, whole * MB, 100 * MB) == 896 * MB


@pytest.mark.parametrize(('whole', 'budget'), [
    (920, 864),  # 50 of 100 are set aside then
    (500, 448),
    (1108, 1008),  # an eighth more
    (2000, 1888),
])
def test_a_budget_follows_what_is_free(whole, budget):
    assert headroom.budget(896 * MB, whole * MB, 100 * MB) == budget * MB


def test_a_budget_that_fell_stays_where_it_fell_to():
    for whole in range(905, 200, -7):
        fallen = headroom.budget(896 * MB, whole * MB, 50 * MB)
        assert headroom.budget(fallen, whole * MB, 50 * MB) == fallen
        assert headroom.budget(fallen, whole * MB - 10 * MB, 50 * MB) == fallen


def test_budgets_are_few_however_the_free_memory_changes():
    latest, budgets = None, set()
    for whole in np.random.default_rng(0).integers(950 * MB, 1050 * MB, 1000).tolist():
        latest = headroom.budget(latest, whole, whole // 20)
        budgets.add(latest)
    assert len(budgets) <= 5


def test_more_is_set_aside_in_a_container_only_for_what_is_dirty_and_unasked(container):
    assert Headroom(list).set_aside_bytes(1000 * MB) == 100 * MB
    assert Headroom(lambda: container.found).set_aside_bytes(1000 * MB) == 50 * MB + UNASKED + DIRTY // 2


def test_a_backend_counts_what_is_held_and_what_is_free(contained, container):
    container.holds(524 * MB, dirty_bytes=100 * MB)  # dirty pages can be taken back in the end
    assert contained.default_budget_bytes(200 * MB, None) == 640 * MB  # 200 + 500 - 25 - 16 - 16 = 643


def test_the_heap_is_given_back_before_another_budget_is_taken(contained, container, monkeypatch):
    def trim():
        trims.append(1)
        container.holds(524 * MB)

    trims = []
    monkeypatch.setattr(heap, 'trim', trim)
    container.holds(524 * MB)
    assert contained.default_budget_bytes(200 * MB, 640 * MB) == 640 * MB
    assert not trims
    container.holds(700 * MB)  # most of it is free in the heap
    assert contained.default_budget_bytes(200 * MB, 640 * MB) == 640 * MB
    assert trims == [1]


def test_what_the_program_allocates_and_frees_moves_the_budget(contained, container):
    container.holds(300 * MB)
    budget = contained.default_budget_bytes(0, None)
    container.holds(600 * MB)
    less = contained.default_budget_bytes(0, budget)
    assert less <= budget - 250 * MB
    container.holds(300 * MB)
    assert contained.default_budget_bytes(0, less) == budget


def test_outside_of_containers_a_tenth_of_what_is_free_is_set_aside(tmp_path, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        backend = HostBackend(str(tmp_path))
    monkeypatch.setattr(backend, '_headroom', Headroom(list))
    monkeypatch.setattr(limits, 'free_bytes', lambda *how: 1000 * MB)
    assert backend.default_budget_bytes(0, None) == 896 * MB
    backend.close()
