"""Pinned pages of our own: mapped, kept from forked children, touched by threads, registered; and all of it undone."""
import ctypes
import errno
import itertools
import mmap
import threading
from types import SimpleNamespace

import pytest

from chainer_ooc.backends import libc as libc_module
from chainer_ooc.backends.cuda import pages
from chainer_ooc.backends.cuda.pages import HUGE_PAGE_BYTES, HostPages
from support.forked import forked
from support.host_runtime import NOT_SUPPORTED, OUT_OF_MEMORY, HostRuntime, flags_of, mappings

MB = 1 << 20
NBYTES = 5 * MB + 1000


@pytest.fixture
def runtime():
    made = HostRuntime()
    before = mapped_bytes()
    yield made
    assert made.left_behind() == []
    assert mapped_bytes() - before < MB


@pytest.fixture
def host(runtime):
    return HostPages(runtime)


def mapped_bytes():
    """Of what no forked child has; nothing else in these tests is kept from one."""
    return sum(end - start for start, end, flags in mappings() if 'dc' in flags and 'pf' not in flags)


def all_mapped_bytes():
    return sum(end - start for start, end, _ in mappings())


class Libc:
    """The C library, whose calls are noted and may be refused."""

    def __init__(self, **refused):
        self.calls, self._refused, self._real = [], refused, pages.libc()

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append((name, *arguments))
            if name in self._refused and self._refused[name] in (None, arguments[-1]):
                ctypes.set_errno(errno.ENOMEM)
                return ctypes.c_void_p(-1).value if name == 'mmap' else -1
            return getattr(self._real, name)(*arguments)
        return call


def with_libc(monkeypatch, **refused):
    libc = Libc(**refused)
    for module in (pages, libc_module):
        monkeypatch.setattr(module, 'libc', lambda: libc)
    return libc


# --- what is pinned --------------------------------------------------------------------------------------------------


def test_the_pages_used_are_registered_from_a_huge_page_on_and_written_to(host, runtime):
    address = host.pin(NBYTES)
    assert address % HUGE_PAGE_BYTES == 0
    assert runtime.calls == [('hostRegister', address, 5 * MB + mmap.PAGESIZE, 1)]
    assert address in pages._MAPPED
    ctypes.memset(address, 7, NBYTES)
    assert ctypes.string_at(address + NBYTES - 1, 1) == b'\7'
    host.unpin(address)
    assert runtime.names() == ['hostRegister', 'hostUnregister']
    assert flags_of(address, NBYTES) is None


@pytest.mark.parametrize('beyond', [0, 1, 256, 511])
def test_nothing_is_mapped_beside_the_pages_used_wherever_a_mapping_begins(host, monkeypatch, beyond):
    class Elsewhere(Libc):
        """Mappings begin so many pages beyond a huge page's start."""

        def mmap(self, at, nbytes, *arguments):
            whole = self._real.mmap(at, nbytes + 2 * HUGE_PAGE_BYTES, *arguments)
            start = -(-whole // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES + beyond * mmap.PAGESIZE
            if start > whole:
                self._real.munmap(whole, start - whole)
            self._real.munmap(start + nbytes, whole + 2 * HUGE_PAGE_BYTES - start)
            return start

    libc = Elsewhere()
    for module in (pages, libc_module):
        monkeypatch.setattr(module, 'libc', lambda: libc)
    before = all_mapped_bytes()
    address = host.pin(NBYTES)
    assert address % HUGE_PAGE_BYTES == 0
    assert all_mapped_bytes() - before in range(5 * MB, 5 * MB + MB)
    host.unpin(address)
    assert all_mapped_bytes() - before < MB


def test_huge_pages_are_asked_for(host):
    address = host.pin(NBYTES)
    with open('/sys/kernel/mm/transparent_hugepage/enabled') as file:
        offered = '[never]' not in file.read()
    assert {'hg', 'dc'} <= flags_of(address, NBYTES) or not offered
    host.unpin(address)


def test_without_huge_pages_it_is_pinned_all_the_same(host, runtime, monkeypatch):
    with_libc(monkeypatch, madvise=mmap.MADV_HUGEPAGE)
    address = host.pin(NBYTES)
    assert address in pages._MAPPED
    host.unpin(address)


def test_what_is_smaller_than_a_huge_page_is_left_to_cuda(host, runtime):
    address = host.pin(HUGE_PAGE_BYTES - 1)
    assert address not in pages._MAPPED
    host.unpin(address)
    assert runtime.names() == ['hostAlloc', 'freeHost']
    assert runtime.calls[0] == ('hostAlloc', HUGE_PAGE_BYTES - 1, 1)


def test_cuda_lets_go_of_memory_before_it_is_unmapped(host, runtime, monkeypatch):
    """The other order is noted by `HostRuntime`, whenever something is asked of it; here it is seen at once."""
    address = host.pin(NBYTES)
    seen, unregister = [], runtime.hostUnregister
    monkeypatch.setattr(runtime, 'hostUnregister',
                        lambda at: seen.append(flags_of(at, NBYTES) is not None) or unregister(at), raising=False)
    host.unpin(address)
    assert seen == [True]


def test_memory_that_cuda_does_not_let_go_of_stays_mapped(host, runtime):
    address = host.pin(NBYTES)
    runtime.statuses['hostUnregister'] = [700]
    with pytest.raises(RuntimeError, match='700'):
        host.unpin(address)
    assert flags_of(address, NBYTES) is not None
    host.unpin(address)


def test_what_one_driver_has_pinned_another_may_unpin(runtime):
    address = HostPages(runtime).pin(NBYTES)
    HostPages(runtime).unpin(address)
    assert runtime.names() == ['hostRegister', 'hostUnregister']
    assert pages.of(runtime) is pages.of(runtime)


# --- threads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(('cores', 'ranks', 'threads'), [(1, 1, 1), (2, 1, 1), (4, 1, 2), (16, 1, 8), (64, 1, 8),
                                                         (16, 4, 2), (4, 16, 1)])
def test_half_of_the_cores_touch_pages(cores, ranks, threads, monkeypatch):
    monkeypatch.setattr(pages, 'own_cores', lambda: cores)
    monkeypatch.setattr(pages, 'share', lambda number: number // ranks)
    assert pages.threads() == threads


@pytest.fixture
def touched(monkeypatch):
    """Who wrote what, as start and end; each waits for so many others as `together` says, so that they come too."""
    noted = SimpleNamespace(spans=[], together=threading.Barrier(1))

    def fill(address, value, nbytes):
        noted.together.wait(20)
        noted.spans.append((address, address + nbytes, threading.get_ident()))
        return ctypes.memset(address, value, nbytes)
    monkeypatch.setattr(pages, 'fill', fill)
    monkeypatch.setattr(pages, 'LEAST_PART_BYTES', HUGE_PAGE_BYTES)
    return noted


@pytest.mark.parametrize(('threads', 'parts'), [(1, 1), (3, 3), (8, 5)])
def test_all_pages_are_touched_once_by_so_many_threads(threads, parts, touched, host, monkeypatch):
    monkeypatch.setattr(pages, 'threads', lambda: threads)
    touched.together = threading.Barrier(parts)
    address = host.pin(9 * MB)
    assert len({thread for *_, thread in touched.spans}) == len(touched.spans) == parts
    spans = sorted(span[:2] for span in touched.spans)
    assert (spans[0][0], spans[-1][1]) == (address, address + 9 * MB)
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(spans))
    assert all(start % HUGE_PAGE_BYTES == 0 for start, _ in spans)
    host.unpin(address)


def test_small_regions_are_touched_by_the_caller_alone(host, monkeypatch):
    monkeypatch.setattr(pages, 'threads', lambda: 8)
    by = []
    monkeypatch.setattr(pages, 'fill', lambda *_: by.append(threading.get_ident()))
    host.unpin(host.pin(pages.LEAST_PART_BYTES))
    assert by == [threading.get_ident()]


def test_where_no_thread_can_be_started_the_caller_touches_all(touched, host, monkeypatch):
    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(pages, 'threads', lambda: 4)
    monkeypatch.setattr(pages._thread, 'start_new_thread', refuse)
    address = host.pin(8 * MB)
    assert {thread for *_, thread in touched.spans} == {threading.get_ident()}
    assert sum(end - start for start, end, _ in touched.spans) == 8 * MB
    host.unpin(address)


# --- refusals: nothing is left ---------------------------------------------------------------------------------------


@pytest.mark.parametrize('refused', [{'mmap': None}, {'madvise': mmap.MADV_DONTFORK}])
def test_what_cannot_be_mapped_is_left_to_cuda_this_once(host, runtime, refused, monkeypatch):
    before = all_mapped_bytes()
    with monkeypatch.context() as patch:
        with_libc(patch, **refused)
        address = host.pin(NBYTES)
    assert runtime.names() == ['hostAlloc']
    host.unpin(address)
    assert all_mapped_bytes() - before < MB
    address = host.pin(NBYTES)
    assert address in pages._MAPPED
    host.unpin(address)


def test_no_memory_is_a_refusal_and_is_asked_for_again(host, runtime):
    runtime.statuses['hostRegister'] = [OUT_OF_MEMORY]
    with pytest.raises(RuntimeError, match='cudaError 2'):
        host.pin(NBYTES)
    assert (runtime.names(), mapped_bytes()) == (['hostRegister'], 0)
    host.unpin(host.pin(NBYTES))
    assert runtime.names() == ['hostRegister', 'hostRegister', 'hostUnregister']


@pytest.mark.parametrize('status', [NOT_SUPPORTED, 1, 304])
def test_where_nothing_can_be_registered_cuda_allocates_from_then_on(host, runtime, status):
    runtime.statuses['hostRegister'] = [status]
    addresses = [host.pin(NBYTES) for _ in range(2)]
    assert runtime.names() == ['hostRegister', 'hostAlloc', 'hostAlloc']
    assert mapped_bytes() == 0
    for address in addresses:
        host.unpin(address)


def test_a_device_that_has_failed_says_nothing_of_registering(host, runtime):
    runtime.statuses |= {'hostRegister': [700], 'hostAlloc': [700]}
    with pytest.raises(RuntimeError, match='700'):
        host.pin(NBYTES)
    assert mapped_bytes() == 0
    address = host.pin(NBYTES)
    assert address in pages._MAPPED
    host.unpin(address)


def test_a_device_that_knows_registered_memory_by_another_address_gets_cudas(host, runtime):
    runtime.same_address = False
    host.unpin(host.pin(NBYTES))
    assert runtime.names() == ['hostAlloc', 'freeHost']


def test_pages_that_the_host_says_it_has_not_are_not_touched(host, runtime, monkeypatch):
    """The system would end a process for that; CUDA may refuse."""
    monkeypatch.setattr(pages.limits, 'free_bytes', lambda: NBYTES - 1)
    runtime.statuses['hostAlloc'] = [OUT_OF_MEMORY]
    with pytest.raises(RuntimeError, match='cudaError 2'):
        host.pin(NBYTES)
    assert runtime.names() == ['hostAlloc']
    monkeypatch.setattr(pages.limits, 'free_bytes', lambda: NBYTES)
    host.unpin(host.pin(NBYTES))


# --- interrupts ------------------------------------------------------------------------------------------------------


def test_an_interrupt_while_pages_are_touched_waits_for_the_threads_and_leaves_nothing(host, runtime, monkeypatch):
    main, ended, all_write = threading.get_ident(), [], threading.Barrier(3)

    def fill(address, value, nbytes):
        all_write.wait(20)
        if threading.get_ident() == main:
            raise KeyboardInterrupt
        threading.Event().wait(0.1)
        ended.append(ctypes.memset(address, value, nbytes))  # it is still mapped, or this is the end of the process
    monkeypatch.setattr(pages, 'fill', fill)
    monkeypatch.setattr(pages, 'threads', lambda: 3)
    monkeypatch.setattr(pages, 'LEAST_PART_BYTES', HUGE_PAGE_BYTES)
    with pytest.raises(KeyboardInterrupt):
        host.pin(6 * MB)
    assert len(ended) == 2
    assert (runtime.registered, mapped_bytes()) == ({}, 0)


def test_a_thread_that_begins_after_an_interrupt_touches_nothing(host, monkeypatch):
    late, filled = [], []

    def fill(*arguments):
        filled.append(arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(pages, 'fill', fill)
    monkeypatch.setattr(pages, 'threads', lambda: 2)
    monkeypatch.setattr(pages, 'LEAST_PART_BYTES', HUGE_PAGE_BYTES)
    monkeypatch.setattr(pages._thread, 'start_new_thread', lambda call, arguments: late.append(call))
    with pytest.raises(KeyboardInterrupt):
        host.pin(4 * MB)
    late.pop()()
    assert len(filled) == 1


def test_after_a_second_interrupt_memory_that_threads_touch_stays_mapped(host, runtime, monkeypatch):
    main, goes_on, ended = threading.get_ident(), threading.Event(), threading.Event()
    both_write = threading.Barrier(2)

    def fill(address, value, nbytes):
        both_write.wait(20)
        if threading.get_ident() == main:
            raise KeyboardInterrupt
        assert goes_on.wait(20)
        ctypes.memset(address, value, nbytes)
        ended.set()

    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(pages, 'fill', fill)
    monkeypatch.setattr(pages, 'threads', lambda: 2)
    monkeypatch.setattr(pages, 'LEAST_PART_BYTES', HUGE_PAGE_BYTES)
    with monkeypatch.context() as patch:
        patch.setattr(pages, 'time', SimpleNamespace(sleep=interrupt))
        with pytest.raises(KeyboardInterrupt):
            host.pin(4 * MB)
    (address,) = pages._MAPPED
    goes_on.set()
    assert ended.wait(20)
    assert flags_of(address, 4 * MB) is not None
    pages._unmap(address)


@pytest.mark.parametrize('after', [False, True])
def test_an_interrupt_beside_registering_leaves_nothing_registered_or_mapped(host, runtime, after, monkeypatch):
    register = runtime.hostRegister

    def interrupted(*arguments):
        if after:
            register(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runtime, 'hostRegister', interrupted, raising=False)
        with pytest.raises(KeyboardInterrupt):
            host.pin(NBYTES)
    assert (runtime.registered, mapped_bytes()) == ({}, 0)


# --- forks -----------------------------------------------------------------------------------------------------------


def in_a_child(host, address):
    """What a forked child has of pinned pages: whether they are mapped there, and what unpinning them asks CUDA."""
    def look():
        mapped = flags_of(address, NBYTES) is not None
        host._runtime.calls.clear()
        own = mmap.mmap(-1, NBYTES)  # may lie where the parent's are
        host.unpin(address)
        own[:] = bytes(NBYTES)
        return f'{mapped} {host._runtime.names()}'.encode()

    with forked(look) as ask:
        return ask().decode()


def test_a_forked_child_has_no_such_mapping_and_unmaps_nothing(host):
    address = host.pin(NBYTES)
    assert in_a_child(host, address) == "False ['freeHost']"
    ctypes.memset(address, 1, NBYTES)
    host.unpin(address)
