"""Mappings of the spill file: what they cost, who may write to them, and when their space is given back."""
import errno
import gc
import mmap
import os
import resource
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from chainer_ooc.backends.host import HostBackend
from chainer_ooc.backends.host.limits import kilobyte_fields
from chainer_ooc.backends.spill import mapping
from chainer_ooc.errors import SpillError

pytestmark = pytest.mark.usefixtures('no_gap')

MB = 1 << 20


def mapped(backend, nbytes=8 * MB, value=1):
    copy, transfer = backend.swap_out(np.full(nbytes, value, np.uint8))
    transfer.wait()
    return copy, backend.map(copy)


def mapped_files():
    """Bytes of this process's mappings of files without a name."""
    total = 0
    with open('/proc/self/maps', encoding='ascii') as lines:
        for line in lines:
            if '(deleted)' in line and ' rw-s ' in line:
                first, last = (int(each, 16) for each in line.split()[0].split('-'))
                total += last - first
    return total


def test_a_mapping_is_no_private_memory_and_holds_no_descriptor(backend):
    copy, transfer = backend.swap_out(np.zeros(64 * MB, np.uint8))
    transfer.wait()
    before = kilobyte_fields('/proc/self/status')['VmData'], os.listdir('/proc/self/fd')
    array = backend.map(copy)
    array += 1
    data_bytes, descriptors = kilobyte_fields('/proc/self/status')['VmData'], os.listdir('/proc/self/fd')
    assert data_bytes - before[0] < MB
    assert descriptors == before[1]


def test_the_last_view_takes_the_mapping_with_it(backend):
    copy, array = mapped(backend)
    view = array[:10].reshape(2, 5)
    assert mapped_files() == 8 * MB
    del array
    assert mapped_files() == 8 * MB
    del view
    assert mapped_files() == 0
    assert (backend.map(copy) == 1).all()


def test_closing_leaves_mappings_to_their_owner_and_nothing_else(tmp_path):
    made = HostBackend(str(tmp_path))
    _, array = mapped(made)
    made.close()
    assert (array == 1).all()
    assert mapped_files() == 8 * MB
    del array
    assert mapped_files() == 0


def test_space_is_given_back_when_released_and_unmapped(backend):
    copy, array = mapped(backend)
    backend.release(copy)
    del copy
    other, beside = mapped(backend, value=2)
    assert backend.describe()['spill_file_bytes'] == 16 * MB
    assert (array == 1).all()
    del array
    third, last = mapped(backend, value=3)  # takes the place of the first
    assert backend.describe()['spill_file_bytes'] == 16 * MB
    assert (beside == 2).all() and (last == 3).all()
    del other, third


def test_what_is_mapped_does_not_count_as_free(backend):
    copy, array = mapped(backend)
    backend.release(copy)
    before = backend._store.free_bytes()
    del array
    assert backend._store.free_bytes() - before >= 7 * MB  # others write to the file system, too


def test_the_system_is_told_to_read_ahead(backend, monkeypatch):
    told, libc = [], mapping.libc()

    class Libc:
        mmap, munmap = libc.mmap, libc.munmap

        @staticmethod
        def madvise(address, nbytes, advice):
            told.append((address, nbytes, advice))
            return libc.madvise(address, nbytes, advice)
    monkeypatch.setattr(mapping, 'libc', Libc)
    _, array = mapped(backend, 3 * MB)
    assert told == [(array.ctypes.data, 3 * MB, mmap.MADV_WILLNEED)]


def test_what_a_forked_child_writes_does_not_reach_the_parent(backend):
    copy, array = mapped(backend)
    child = os.fork()
    if not child:
        status = 1
        try:
            array[::4096] = 9
            status = 0 if (array[::4096] == 9).all() and (array[1::4096] == 1).all() else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (array == 1).all()
    assert (backend.map(copy) == 1).all()


def test_a_file_that_cannot_be_mapped_is_told_and_its_copy_can_still_be_read(backend, monkeypatch):
    copy, array = mapped(backend, MB)
    del array

    def refuse(*arguments):
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
    with monkeypatch.context() as patch:
        patch.setattr(mapping, '_map', refuse)
        with pytest.raises(SpillError, match=r'mapping the spill file in .* failed: No such device') as caught:
            backend.map(copy)
    assert caught.value.errno == errno.ENODEV
    assert not copy.place.mapped
    into = backend.allocate(MB)
    backend.swap_in(copy, into).wait()
    assert (into == 1).all()


def test_addresses_that_are_refused_are_a_memory_error():
    program = '''
        import resource, sys, numpy as np
        from chainer_ooc.backends.host import HostBackend
        backend = HostBackend(sys.argv[1])
        copy, transfer = backend.swap_out(np.ones(64 << 20, np.uint8))
        transfer.wait()
        limit = int(open('/proc/self/statm').read().split()[0]) * 4096 + (16 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        try:
            backend.map(copy)
        except MemoryError as error:
            print(error)
        backend.close()
    '''
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
    ran = subprocess.run([sys.executable, '-c', textwrap.dedent(program), '/var/tmp'], capture_output=True, text=True,
                         timeout=60, check=True)
    assert 'no 67108864 bytes of addresses' in ran.stdout and 'ulimit -v' in ran.stdout


def test_a_mapping_in_a_cycle_is_unmapped_by_the_collector(backend):
    class Owner:
        pass

    owner = Owner()
    owner.myself = owner
    copy, owner.array = mapped(backend)
    backend.release(copy)
    del owner
    gc.collect()
    assert mapped_files() == 0
    assert not copy.place.mapped
