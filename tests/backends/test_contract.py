"""One suite for all backends: the guarantees C1 to C10 of `chainer_ooc.backends.base`.

A backend joins by a line in BACKENDS; what only one of them promises is tested beside this file.
"""
import gc
import json
import os
import threading
import warnings
import weakref

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from chainer_ooc.backends import arrays
from chainer_ooc.backends.base import Backend, Bandwidth, FarCopy
from chainer_ooc.backends.cuda import CudaBackend
from chainer_ooc.backends.host import HostBackend
from chainer_ooc.errors import SpillError
from support.chaos import ChaosBackend
from support.examples import examples
from support.fake_driver import FakeDriver

MB = 1 << 20


def _host(folder):
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # the folder for temporary files may be a RAM disk
        return HostBackend(str(folder))


def _chaos(seed):
    return lambda folder: ChaosBackend(seed)


def _cuda(seed, host_limit_bytes):
    """The last one's copies go to pinned memory and to the file by turns."""
    def make(folder):
        driver = FakeDriver(seed)
        made = CudaBackend(str(folder), host_limit_bytes=host_limit_bytes, driver=driver)
        made.misuses = driver.misuses
        return made
    return make


BACKENDS = {
    'host': _host,
    **{f'chaos-{seed}': _chaos(seed) for seed in range(4)},
    **{f'cuda-pinned-{seed}': _cuda(seed, 1 << 30) for seed in range(4)},
    **{f'cuda-disk-{seed}': _cuda(seed, 0) for seed in range(2)},
    **{f'cuda-both-{seed}': _cuda(seed, 25 * MB) for seed in range(2)},
}


@pytest.fixture(params=BACKENDS)
def backend(request, tmp_path):
    made = BACKENDS[request.param](tmp_path)
    yield made
    made.close()
    assert getattr(made, 'misuses', []) == [], 'the test asked for more than the contract promises'


@pytest.fixture
def has_mappings(request, backend):
    if isinstance(backend, CudaBackend) and 'pinned' not in request.node.callspec.id:
        pytest.skip('a GPU cannot map the spill file')


needs_mappings = pytest.mark.usefixtures('has_mappings')


def filled(backend, nbytes, seed=0):
    array = backend.allocate(nbytes)
    array[:] = np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)
    return array


def out(backend, array):
    copy, transfer = backend.swap_out(array)
    transfer.wait()
    return copy


def back(backend, copy):
    into = backend.allocate(copy.nbytes)
    into[:] = 0xEE
    backend.swap_in(copy, into).wait()
    return into


@pytest.mark.parametrize('nbytes', [0, 1, 4095, 4096, 4097, 20 * MB + 3])
def test_bytes_come_back_as_they_went(backend, nbytes):
    array = filled(backend, nbytes)
    copy = out(backend, array)
    assert copy.nbytes == nbytes
    assert np.array_equal(back(backend, copy), array)


def test_allocate_gives_flat_writable_bytes(backend):
    array = backend.allocate(5 * MB + 1)
    assert (array.dtype, array.shape) == (np.uint8, (5 * MB + 1,))
    assert array.flags.c_contiguous
    assert array.flags.writeable


def test_room_is_there_for_what_can_be_allocated(backend):
    assert backend.has_room(0)
    assert backend.has_room(MB)
    assert not backend.has_room(1 << 62)


def test_swap_in_waits_for_its_swap_out(backend):
    # swap-out   [ one 24 MB ][ two 24 MB ][ last ]
    # swap-in                                      [ last ]     asked for before any of them has ended
    others = [filled(backend, 24 * MB, seed) for seed in range(2)]
    last = filled(backend, MB, 9)
    swaps = [backend.swap_out(array) for array in others]
    copy, _ = backend.swap_out(last)
    into = backend.allocate(MB)
    backend.swap_in(copy, into).wait()
    assert np.array_equal(into, last)
    assert all(transfer.done for _, transfer in swaps)


def test_a_far_copy_may_be_read_many_times(backend):
    array = filled(backend, MB)
    copy = out(backend, array)
    targets = [backend.allocate(MB) for _ in range(3)]
    for transfer in [backend.swap_in(copy, into) for into in targets]:
        transfer.wait()
    assert all(np.array_equal(into, array) for into in targets)


def test_what_is_written_to_the_source_afterwards_does_not_reach_the_copy(backend):
    array = filled(backend, MB)
    before = array.copy()
    copy = out(backend, array)
    array[:] = 0
    assert np.array_equal(back(backend, copy), before)


def test_copies_do_not_share_space(backend):
    arrays = [filled(backend, nbytes, seed) for seed, nbytes in enumerate([1, 4097, MB, 3 * MB, 4096])]
    copies = [out(backend, array) for array in arrays]
    for copy, array in zip(copies, arrays, strict=True):
        assert np.array_equal(back(backend, copy), array)


@pytest.mark.parametrize('hold', ['source', 'into'])
def test_done_means_that_the_backend_holds_the_array_no_more(backend, hold):
    array = filled(backend, 8 * MB)
    reference = weakref.ref(array)
    copy, transfer = backend.swap_out(array)
    if hold == 'into':
        transfer.wait()
        array = backend.allocate(8 * MB)
        reference = weakref.ref(array)
        transfer = backend.swap_in(copy, array)
    while not transfer.done:  # until then it is the caller who keeps it
        pass
    del array
    assert reference() is None


def test_transfers_of_a_direction_end_in_order(backend):
    arrays = [filled(backend, nbytes) for nbytes in (24 * MB, MB, 8 * MB, 1)]
    swaps = [backend.swap_out(array) for array in arrays]
    swaps[2][1].wait()
    assert [transfer.done for _, transfer in swaps[:3]] == [True] * 3


def test_waiting_again_returns_again(backend):
    array = filled(backend, MB)
    copy, transfer = backend.swap_out(array)
    assert transfer.nbytes == copy.nbytes == MB
    transfer.wait()
    transfer.wait()
    assert transfer.done
    assert transfer.seconds > 0


def test_the_moments_of_a_copy_are_those_of_the_copy_itself(backend):
    begun, array = backend.timestamp(), filled(backend, MB)
    copy, transfer = backend.swap_out(array)
    transfer.wait()
    into = backend.allocate(MB)
    for each in (transfer, backend.swap_in(copy, into)):
        each.wait()
        if each.moments is not None:  # a device may not know them
            assert backend.seconds_between(*each.moments) == pytest.approx(each.seconds, rel=0.01, abs=1e-6)
            assert backend.seconds_between(begun, each.moments[0]) >= 0


def test_a_swap_in_that_has_started_survives_release_and_new_copies(backend):
    # caller     out(a)  in(a) release(a)  out(b) out(c)         b and c must not take a's space before it is read
    array = filled(backend, 24 * MB, 1)
    copy = out(backend, array)
    into = backend.allocate(array.nbytes)
    earlier = backend.allocate(array.nbytes)
    reads = [backend.swap_in(copy, earlier), backend.swap_in(copy, into)]
    backend.release(copy)
    others = [filled(backend, 24 * MB, seed) for seed in (2, 3)]
    copies = [backend.swap_out(other)[0] for other in others]
    for read in reads:
        read.wait()
    assert np.array_equal(earlier, array)
    assert np.array_equal(into, array)
    for far, other in zip(copies, others, strict=True):
        assert np.array_equal(back(backend, far), other)


def test_a_copy_released_in_flight_ends_without_an_error(backend):
    # A copy that nobody can read any more needs its source no longer either.
    transfers = []
    for seed in range(3):
        copy, transfer = backend.swap_out(filled(backend, 16 * MB, seed))
        backend.release(copy)
        transfers.append(transfer)
    for transfer in transfers:
        transfer.wait()
    array = filled(backend, MB)
    assert np.array_equal(back(backend, out(backend, array)), array)


@needs_mappings
@pytest.mark.parametrize('nbytes', [0, 1, 4097, 20 * MB + 3])
def test_a_mapping_has_the_bytes_of_its_copy(backend, nbytes):
    array = filled(backend, nbytes)
    mapped = backend.map(out(backend, array))
    assert (mapped.dtype, mapped.shape) == (np.uint8, (nbytes,))
    assert mapped.flags.c_contiguous and mapped.flags.writeable
    assert np.array_equal(mapped, array)


@needs_mappings
def test_mapping_waits_for_the_swap_out(backend):
    array = filled(backend, 24 * MB)
    copy, transfer = backend.swap_out(array)
    assert np.array_equal(backend.map(copy), array)
    assert transfer.done


@needs_mappings
def test_what_is_written_to_a_mapping_is_the_content_of_its_copy(backend):
    copy = out(backend, filled(backend, MB))
    mapped = backend.map(copy)
    mapped[:] = 7
    assert (back(backend, copy) == 7).all()
    assert (backend.map(copy) == 7).all()


@needs_mappings
def test_the_memory_of_a_mapping_can_be_found(backend):
    mapped = backend.map(out(backend, filled(backend, 4 * MB)))
    part = mapped[64:1064].view(np.float32).reshape(10, 25).T
    assert arrays.root_of(part) is mapped
    assert np.shares_memory(arrays.view(mapped, arrays.layout_of(part, mapped)), part)


@needs_mappings
def test_a_mapping_survives_release_and_new_copies(backend):
    # caller     out(a)  map(a) release(a)  out(b) out(c)         b and c must not take a's space
    array = filled(backend, 24 * MB, 1)
    copy = out(backend, array)
    part = backend.map(copy)[5:]  # a view is enough
    backend.release(copy)
    del copy
    others = [filled(backend, 24 * MB, seed) for seed in (2, 3)]
    copies = [out(backend, other) for other in others]
    assert np.array_equal(part, array[5:])
    part[:] = 0
    for far, other in zip(copies, others, strict=True):
        assert np.array_equal(back(backend, far), other)


@needs_mappings
def test_a_mapping_survives_close(backend):
    array = filled(backend, MB)
    mapped = backend.map(out(backend, array))
    backend.close()
    assert np.array_equal(mapped, array)
    mapped[:] = 1


@needs_mappings
def test_a_mapping_of_nothing_is_refused(backend):
    copy = out(backend, filled(backend, MB))
    backend.release(copy)
    for nothing in (copy, FarCopy(8)):
        with pytest.raises(ValueError, match='cannot map a copy that is released or of another backend'):
            backend.map(nothing)


def test_a_backend_without_mappings_says_so(backend):
    with pytest.raises(SpillError, match=r'the \w+ backend cannot map far memory; set chainer\.config\.ooc to another'):
        Backend.map(backend, FarCopy(8))


def test_release_may_be_repeated_and_refuses_later_swap_ins(backend):
    copy = out(backend, filled(backend, MB))
    backend.release(copy)
    backend.release(copy)
    with pytest.raises(ValueError, match='released'):
        backend.swap_in(copy, backend.allocate(MB))


def test_release_from_other_threads_and_callbacks(backend):
    class Owner:
        pass

    copies = [out(backend, filled(backend, MB, seed)) for seed in range(20)]
    owners = [Owner() for _ in copies[:10]]
    for owner, copy in zip(owners, copies, strict=False):
        owner.myself = owner  # only the garbage collector frees it
        weakref.finalize(owner, backend.release, copy)
    threads = [threading.Thread(target=backend.release, args=(copy,)) for copy in copies[10:] * 2]
    for thread in threads:
        thread.start()
    del owners, owner
    gc.collect()
    for thread in threads:
        thread.join()
    for copy in copies:
        with pytest.raises(ValueError, match='released'):
            backend.swap_in(copy, backend.allocate(MB))
    array = filled(backend, MB)
    assert np.array_equal(back(backend, out(backend, array)), array)


def test_reserve_takes_what_fits_and_says_what_does_not(backend):
    backend.reserve(0)
    backend.reserve(MB)
    with pytest.raises(SpillError, match=r'\(needed .*GB, free .*\); \w+ .*') as caught:
        backend.reserve(1 << 60)
    assert isinstance(caught.value, OSError)


@pytest.mark.parametrize('array', [
    np.zeros(4, np.float32), np.zeros((2, 2), np.uint8), np.zeros(8, np.uint8)[::2],
], ids=['float32', '2-D', 'strided'])
def test_swap_out_refuses_other_arrays(backend, array):
    with pytest.raises(ValueError, match='uint8, 1-D and C-contiguous'):
        backend.swap_out(array)


def test_swap_in_refuses_what_it_cannot_fill(backend):
    copy = out(backend, filled(backend, 8))
    fixed = np.zeros(8, np.uint8)
    fixed.flags.writeable = False
    for into in (np.zeros(7, np.uint8), np.zeros(9, np.uint8), np.zeros(2, np.float32), fixed):
        with pytest.raises(ValueError, match='must be'):
            backend.swap_in(copy, into)
    with pytest.raises(ValueError, match='another backend'):
        backend.swap_in(FarCopy(8), np.zeros(8, np.uint8))


def test_a_source_may_be_read_only(backend):
    array = filled(backend, MB)
    array.flags.writeable = False
    assert np.array_equal(back(backend, out(backend, array)), array)


def test_free_bytes_is_an_amount(backend):
    assert backend.free_bytes() > 0
    backend.trim()
    assert isinstance(backend.free_bytes(), int)


def test_bandwidth_is_measured_once(backend):
    first = backend.bandwidth()
    assert isinstance(first, Bandwidth)
    assert min(first.write_bytes_per_second, first.read_bytes_per_second, first.latency_seconds) > 0
    assert first.slowdown >= 0
    assert backend.bandwidth() is first


def test_a_machine_has_one_name(backend):
    assert backend.machine() == backend.machine() != ''
    assert '\n' not in backend.machine()


def test_describe_can_be_written_as_json(backend):
    described = backend.describe()
    assert json.loads(json.dumps(described)) == described
    assert described['device'] == backend.name
    assert isinstance(described['warnings'], list)


def test_close_waits_for_the_transfers_and_leaves_nothing(backend):
    # The autouse fixture sees to threads and descriptors.
    array = filled(backend, 24 * MB)
    copy, written = backend.swap_out(array)
    into = backend.allocate(array.nbytes)
    read = backend.swap_in(copy, into)
    backend.close()
    assert written.done
    assert read.done
    assert np.array_equal(into, array)
    backend.close()


def test_a_closed_backend_says_so(backend):
    array = filled(backend, 8)
    copy = out(backend, array)
    backend.close()
    for call in (lambda: backend.swap_out(array), lambda: backend.swap_in(copy, array), lambda: backend.map(copy),
                 lambda: backend.reserve(1)):
        with pytest.raises(SpillError, match='closed'):
            call()
    backend.release(copy)


def test_a_forked_child_can_use_nothing_and_ends(backend):
    array = filled(backend, 24 * MB)
    copy, transfer = backend.swap_out(array)
    child = os.fork()
    if not child:
        status = 1
        try:
            status = _refusals_in_child(backend, copy, transfer)
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    transfer.wait()
    assert np.array_equal(back(backend, copy), array)


def _refusals_in_child(backend, copy, transfer):
    array = np.zeros(copy.nbytes, np.uint8)
    calls = [lambda: backend.swap_out(array), lambda: backend.swap_in(copy, array), lambda: backend.map(copy),
             lambda: backend.reserve(1)]
    if not transfer.done:
        calls.append(transfer.wait)
    for call in calls:
        try:
            call()
        except SpillError as error:
            if 'forked' not in str(error):
                return 2
        else:
            return 3
    backend.release(copy)
    backend.close()
    return 0


STEPS = st.lists(st.tuples(st.sampled_from(['out', 'in', 'in and release', 'release', 'drop', 'wait']),
                           st.integers(0, 200_000), st.integers(0, 7)), max_size=40)


@examples(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_any_order_of_steps_keeps_every_copy_whole(backend, steps):
    far, pending, expected_reads, sources = [], [], [], []
    for number, (step, nbytes, which) in enumerate(steps):
        if step == 'out':
            array = filled(backend, nbytes, number)
            copy, transfer = backend.swap_out(array)
            far.append((copy, array))
            sources.append(array)  # until the end: some transfers are not waited for before
            pending.append(transfer)
        elif step == 'wait':
            for transfer in pending:
                transfer.wait()
        elif far:
            copy, content = far[which % len(far)]
            if step.startswith('in'):
                into = backend.allocate(copy.nbytes)
                pending.append(backend.swap_in(copy, into))
                expected_reads.append((into, content))
            if step != 'in':
                del far[which % len(far)]
            if step.endswith('release'):
                backend.release(copy)
            del copy  # 'drop' leaves it to the garbage collector
    for transfer in pending:
        transfer.wait()
    expected_reads += [(back(backend, copy), content) for copy, content in far]
    assert all(np.array_equal(into, content) for into, content in expected_reads)
