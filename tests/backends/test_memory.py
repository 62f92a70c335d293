"""Near memory on the host: what is free, what is resident, and that freed arrays leave the process."""
import os
import pathlib
import platform
import resource
import subprocess
import sys
import textwrap
import warnings

import numpy as np
import pytest

from chainer_ooc.backends.host import HostBackend, block, groups, heap, limits
from support import resident

MB = 1 << 20
TESTS = str(pathlib.Path(__file__).resolve().parents[1])  # where `support` is


def run(script):
    """Runs a script in a process of its own, as what it sets stays set; returns its output lines."""
    done = subprocess.run([sys.executable, '-W', 'ignore', '-c', textwrap.dedent(script)], capture_output=True,
                          text=True, check=False, timeout=120, env={**os.environ, 'PYTHONPATH': TESTS})
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.skipif(not heap.is_glibc(), reason='needs glibc')
@pytest.mark.parametrize(('megabytes', 'count', 'mapped_megabytes'), [(32, 12, 32), (3, 120, 32), (3, 120, 1)])
def test_swapping_out_lowers_resident_memory_by_nine_tenths_of_the_bytes(megabytes, count, mapped_megabytes):
    trims = mapped_megabytes > megabytes  # smaller arrays may stay in the heap until it is trimmed
    left = run(f'''
        import numpy as np
        from chainer_ooc.backends.host import HostBackend, heap
        from support import resident
        heap.MAPPED_BYTES = {mapped_megabytes} << 20
        backend = HostBackend()
        before = resident.private_bytes()
        arrays, pins = [], []
        for _ in range({count}):
            arrays.append(np.full({megabytes} << 20, 7, np.uint8))
            pins.append(bytearray(1 << 17))  # stays, so that the heap cannot just end earlier
        full = resident.private_bytes()
        copies = []
        while arrays:
            copy, transfer = backend.swap_out(arrays.pop())
            transfer.wait()
            copies.append(copy)
        if {trims}:
            backend.trim()
        print(full - before, resident.private_bytes() - before)
        into = backend.allocate({megabytes} << 20)
        backend.swap_in(copies[0], into).wait()
        assert (into == 7).all()
        backend.close()
    ''')
    full, after = map(int, left)
    assert full >= 0.95 * megabytes * count * MB
    assert after <= 0.1 * megabytes * count * MB


def test_more_than_the_wall_allows_goes_through_when_it_is_swapped_out():
    # 20 arrays of 32 MB under a wall of 200 MB above what the process has; without swapping the seventh fails.
    output = run('''
        import resource
        import numpy as np
        from chainer_ooc.backends.host import HostBackend, limits
        backend = HostBackend()
        backend.swap_out(np.zeros(8, np.uint8))[1].wait()
        wall = limits.kilobyte_fields('/proc/self/status')['VmData'] + (200 << 20)
        resource.setrlimit(resource.RLIMIT_DATA, (wall, wall))
        try:
            kept = [np.full(32 << 20, 1, np.uint8) for _ in range(20)]
        except MemoryError:
            print('plain: MemoryError')
        kept, copies = None, []
        for value in range(20):
            array = backend.allocate(32 << 20)
            array[:] = value
            copy, transfer = backend.swap_out(array)
            del array
            transfer.wait()
            copies.append(copy)
        for value, copy in enumerate(copies):
            into = backend.allocate(copy.nbytes)
            backend.swap_in(copy, into).wait()
            assert (into == value).all()
        backend.close()
        print('swapped: fine')
    ''')
    assert ' '.join(output) == 'plain: MemoryError swapped: fine'


def test_free_bytes_follows_the_limit_on_data_and_what_is_allocated():
    before, after, address_space = map(int, run('''
        import resource
        import numpy as np
        from chainer_ooc.backends.host import limits
        wall = limits.kilobyte_fields('/proc/self/status')['VmData'] + (100 << 20)
        resource.setrlimit(resource.RLIMIT_DATA, (wall, wall))
        print(limits.free_bytes())
        array = np.zeros(40 << 20, np.uint8)
        print(limits.free_bytes())
        wall = limits.kilobyte_fields('/proc/self/status')['VmSize'] + (30 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (wall, wall))
        print(limits.free_bytes())
    '''))
    assert 95 * MB <= before <= 100 * MB
    assert before - after == pytest.approx(40 * MB, abs=2 * MB)
    assert address_space <= 30 * MB


@pytest.mark.usefixtures('no_arena')
def test_an_allocation_that_fails_is_tried_again_after_a_trim(monkeypatch, tmp_path):
    backend = _backend(tmp_path)
    trims, make = [], block.make

    def needs_a_trim(nbytes):
        if not trims:
            raise MemoryError
        return make(nbytes)

    monkeypatch.setattr(block, 'make', needs_a_trim)
    monkeypatch.setattr(heap, 'trim', lambda: trims.append(1))
    assert backend.allocate(MB).shape == (MB,)
    trims.clear()
    monkeypatch.setattr(heap, 'trim', lambda: None)
    with pytest.raises(MemoryError):
        backend.allocate(MB + 1)
    backend.close()


def _backend(folder):
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        return HostBackend(str(folder))


@pytest.mark.usefixtures('no_arena')
def test_a_block_is_resident_as_far_as_it_goes_and_leaves_with_its_last_view(backend):
    before = resident.private_bytes()
    arrays = [backend.allocate(4 * MB + 4096) for _ in range(16)]
    for array in arrays:
        array[:] = 1
    assert resident.private_bytes() - before == pytest.approx(64 * MB, abs=4 * MB)
    views = [array[:8].view(np.float32) for array in arrays]
    del arrays, array
    assert resident.private_bytes() - before >= 60 * MB
    del views
    assert resident.private_bytes() - before <= 4 * MB


@pytest.mark.skipif(not heap.is_glibc() or heap.free_bytes() == 0, reason='needs a glibc that tells what it holds free')
def test_what_a_model_is_built_with_leaves_no_holes_once_training_is_to_come():
    def free_megabytes(setting):
        free_bytes, = run(f"""
            import chainer_ooc
            import chainer
            import numpy as np
            from chainer_ooc.backends.host import heap
            np.zeros(20 << 20, np.uint8)  # glibc keeps arrays in the heap that are smaller than one that was freed
            {setting}
            made = [np.zeros(1 << 20, np.uint8) for _ in range(40)]
            before = heap.free_bytes()
            del made[::2]
            print(heap.free_bytes() - before)
            """)
        return int(free_bytes) / MB

    assert free_megabytes('') >= 18
    assert free_megabytes("chainer.config.ooc = 'swap-all'") < 1
    assert free_megabytes("chainer.global_config.ooc = 'swap-all'") < 1
    assert free_megabytes("chainer.config.ooc = None") >= 18


def test_while_there_is_a_backend_the_heap_stays_as_it_is(tmp_path, monkeypatch):
    backend = _backend(tmp_path)
    monkeypatch.setattr(heap, 'libc', lambda: pytest.fail('the C library was called'))
    heap.leave_no_holes()
    monkeypatch.undo()
    backend.close()


def test_without_glibc_nothing_is_set_and_the_reason_is_shown(monkeypatch, tmp_path):
    def musl(name):
        raise ValueError('unrecognized configuration name')

    monkeypatch.setattr(heap.os, 'confstr', musl)
    monkeypatch.setattr(heap, 'libc', lambda: pytest.fail('the C library was called'))
    heap.trim()
    backend = _backend(tmp_path)
    assert any('not glibc' in warning for warning in backend.describe()['warnings'])
    backend.close()


def test_a_refused_setting_is_shown(monkeypatch):
    class Refusing:
        def mallopt(self, name, value):
            return 0

    monkeypatch.setattr(heap, 'is_glibc', lambda: True)
    monkeypatch.setattr(heap, 'libc', Refusing)
    assert 'refused' in heap.return_freed_memory()


@pytest.fixture
def undescribed():
    """Forgets what the machine is called, before and after."""
    limits.describe_machine.cache_clear()
    yield
    limits.describe_machine.cache_clear()


def test_a_machine_is_its_processor_its_cores_and_its_memory(undescribed, monkeypatch):
    files = {'/proc/cpuinfo': b'processor\t: 0\nmodel name\t: Some  CPU @ 2.00GHz\nmodel name\t: Another\n',
             '/proc/meminfo': b'MemTotal:       16294912 kB\nMemFree:  1 kB\n'}
    monkeypatch.setattr(groups, 'read', files.get)
    monkeypatch.setattr(os, 'cpu_count', lambda: 8)
    assert limits.describe_machine() == 'Some CPU @ 2.00GHz, 8 cores, 16.69 GB'


def test_a_machine_that_tells_nothing_has_a_name_all_the_same(undescribed, monkeypatch):
    monkeypatch.setattr(groups, 'read', lambda path: b'')
    monkeypatch.setattr(platform, 'machine', lambda: 'aarch64')
    monkeypatch.setattr(os, 'cpu_count', lambda: None)
    assert limits.describe_machine() == 'aarch64, 1 cores, memory unknown'


def test_without_proc_there_is_no_limit_to_know(monkeypatch):
    monkeypatch.setattr(groups, 'read', lambda path: b'')
    monkeypatch.setattr(resource, 'getrlimit', lambda number: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert limits.free_bytes() == sys.maxsize
    with pytest.raises(OSError, match='Linux only'):
        resident.rss_bytes()


def test_the_peak_can_be_set_back():
    before = resident.private_bytes()
    array = np.ones(64 * MB, np.uint8)
    assert resident.private_bytes() - before >= 60 * MB
    del array
    high = resident.peak_rss_bytes()
    if not resident.reset_peak_rss():
        pytest.skip('the system does not let a process set its peak back')
    assert resident.peak_rss_bytes() <= high - 50 * MB
    assert resident.rss_bytes() >= resident.private_bytes()
