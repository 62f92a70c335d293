"""CuPy's arrays and their memory: real arrays of the installed CuPy, over host memory, so that no GPU is needed."""
import ctypes
import gc
import sys
import weakref

import numpy as np
import pytest

from chainer_ooc.backends import arrays
from chainer_ooc.backends.cuda import arrays as device_arrays
from chainer_ooc.backends.cuda.allocators.ledger import Owner
from chainer_ooc.backends.layout import Layout
from chainer_ooc.execute.storage.storage import Storage

cupy = pytest.importorskip('cupy', reason='CuPy is not installed')


class HostOwner(Owner):
    """Owns memory of the host, and notes its end in a list."""

    __slots__ = ('freed',)

    def __init__(self, nbytes, freed):
        memory, self.freed = np.zeros(nbytes, 'u1'), freed
        super().__init__(memory.ctypes.data, nbytes, 0, nbytes, memory)

    def __del__(self):
        self.freed.append(self.nbytes)


def block(nbytes, freed):
    """A new array of bytes with an owner, as our allocator gives it."""
    owner = HostOwner(nbytes, freed)
    return cupy.ndarray((nbytes,), 'u1', cupy.cuda.MemoryPointer(
        cupy.cuda.UnownedMemory(owner.pointer, nbytes, owner, 0), 0))


def made(shape, dtype='f4', freed=None):
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    flat = block(nbytes, [] if freed is None else freed)
    return arrays.view(flat, Layout(np.dtype(dtype), shape, np.empty(shape, dtype).strides, 0, True))


def content(array):
    """The numbers of a contiguous array, read where they are."""
    return np.frombuffer((ctypes.c_uint8 * array.nbytes).from_address(array.data.ptr), array.dtype)


VIEWS = [
    lambda a: a, lambda a: a[1:], lambda a: a[:, ::-1], lambda a: a.T, lambda a: a.reshape(-1), lambda a: a.ravel(),
    lambda a: a.view('u2'), lambda a: cupy.broadcast_to(a, (5, *a.shape)), lambda a: a[0], lambda a: a[..., None],
    lambda a: cupy.rollaxis(a, 2), lambda a: a.transpose(1, 2, 0)[1:, :2],
]


@pytest.mark.parametrize('number', range(len(VIEWS)))
def test_every_view_has_the_root_of_its_array_and_comes_back_as_it_lay(number):
    array = made((4, 3, 2))
    part = VIEWS[number](array)
    root = arrays.root_of(array)
    assert root is not None
    assert arrays.root_of(part) is root
    layout = arrays.layout_of(part, root)
    again = arrays.view(arrays.flat_bytes(root), layout)
    assert (again.shape, again.strides, again.dtype, again.data.ptr) == (
        part.shape, part.strides, part.dtype, part.data.ptr)
    assert arrays.root_of(again) is root


def test_a_view_made_without_a_base_has_the_root_all_the_same():
    array = made((4, 3, 2))
    part = cupy.ndarray((2,), 'f4', array.data + 8)
    assert part.base is None
    assert arrays.root_of(part) is arrays.root_of(array)
    assert arrays.layout_of(part, arrays.root_of(part)).offset_bytes == 8


def test_memory_of_another_allocator_is_never_moved():
    memory = np.zeros(64, 'u1')
    array = cupy.ndarray((16,), 'f4', cupy.cuda.MemoryPointer(
        cupy.cuda.UnownedMemory(memory.ctypes.data, 64, memory, 0), 0))
    assert arrays.is_array(array)
    assert arrays.is_on_device(array)
    assert arrays.root_of(array) is None


def test_an_array_of_nothing_has_no_root():
    assert arrays.root_of(made((4, 3, 2))[:0]) is None


def test_a_block_goes_back_with_the_last_array_on_it():
    freed = []
    array = made((4, 3, 2), freed=freed)
    root = weakref.ref(arrays.root_of(array))
    part = array.T[1:]
    del array
    gc.collect()
    assert (root() is None, freed) == (False, [])
    del part
    assert (root() is None, freed) == (True, [96])


def test_bytes_written_through_the_block_are_those_of_the_array():
    array = made((4, 3, 2))
    content(arrays.flat_bytes(arrays.root_of(array))).view('f4')[0] = 3.5
    assert content(array)[0] == 3.5


class Holder:
    """A place that holds an array."""

    def __init__(self, held):
        self.held = held

    def is_alive(self):
        return True

    def identity(self):
        return id(self)

    def get(self):
        return self.held


def storage_of(*held):
    root = arrays.root_of(held[0])
    storage = Storage(None, root)
    storage.slots = {(number, ''): Holder(each) for number, each in enumerate(held)}
    return storage


HOLDINGS = {
    'nobody': lambda a: None,
    'the array': lambda a: a,
    'a view': lambda a: a[1:],
    'a view of a view': lambda a: a.T[1:].view(),
    'its pointer': lambda a: a.data,
    'its memory': lambda a: a.data.mem,
    'its owner': lambda a: arrays.root_of(a),
    'an array without a base': lambda a: cupy.ndarray((2,), 'f4', a.data + 8),
}


@pytest.mark.parametrize('who', HOLDINGS)
@pytest.mark.parametrize('views', [(), ('T',), ('T', 'T'), ('reshape', 'T')])
def test_whoever_else_holds_the_block_is_noticed(who, views):
    array = made((4, 3, 2))
    parts = [array.T if each == 'T' else array.reshape(-1) for each in views]
    other = HOLDINGS[who](array)
    storage = storage_of(array, *parts)
    del array, parts
    assert storage.is_held_elsewhere() is (other is not None)
    del other
    assert not storage.is_held_elsewhere()


def test_numpy_arrays_are_none_of_a_device():
    array = np.zeros(4)
    assert arrays.is_array(array)
    assert not arrays.is_on_device(array)
    assert not arrays.is_array([1])


@pytest.mark.parametrize('dtype', ['u1', '?', 'f2', 'f4', 'f8', 'c8'])
@pytest.mark.parametrize('start', [0, 1, 2, 3])
def test_a_mark_reads_no_word_across_its_boundary(dtype, start):
    """A GPU refuses such a read, and all that comes after it; what runs on the host does not notice."""
    part = made((9, 5, 5), dtype)[start:].reshape(-1)
    words = device_arrays._words(part)
    assert words.data.ptr == part.data.ptr
    assert words.data.ptr % words.dtype.itemsize == 0
    assert words.nbytes == part.nbytes


@pytest.mark.parametrize('axes', [(0, 1, 2), (2, 0, 1), (1, 0, 2)])
def test_a_mark_copies_nothing_of_what_is_only_transposed(axes, monkeypatch):
    monkeypatch.setitem(sys.modules, 'cupy', np)
    array = np.arange(60, dtype='f4').reshape(3, 4, 5).transpose(axes)
    seen, words = [], device_arrays._words
    monkeypatch.setattr(device_arrays, '_words', lambda flat: [seen.append(flat), words(flat)][1])
    device_arrays.mark(array)
    assert np.shares_memory(seen[0], array)


@pytest.mark.parametrize('shape', [(), (1,), (7,), (4093,), (64, 8192), (3, 4099)])
@pytest.mark.parametrize('dtype', ['f4', 'f2', 'u1', 'f8'])
def test_a_mark_tells_changed_bits_and_parts_that_changed_places(shape, dtype, monkeypatch):
    monkeypatch.setitem(sys.modules, 'cupy', np)  # all that it does NumPy can do
    array = np.array(np.random.RandomState(0).uniform(1, 99, size=shape), dtype)
    before = device_arrays.mark(array)
    assert device_arrays.mark(array.copy()) == before
    seen = {int(before)}
    flat = array.reshape(-1)
    for place in {0, flat.size // 2, flat.size - 1}:
        flat[place] = 1 if flat[place] != 1 else 2
        assert device_arrays.mark(array) not in seen
        seen.add(int(device_arrays.mark(array)))
    if flat.size > 6:
        flat[[3, 5]] = flat[[5, 3]]
        assert device_arrays.mark(array) not in seen


def test_a_block_of_bytes_is_read_by_large_words():
    """Byte by byte, as its dtype has it, a GPU takes some ten times as long."""
    assert device_arrays._words(arrays.flat_bytes(arrays.root_of(made((4096,), 'u1')))).dtype.itemsize == 8
    assert device_arrays._words(made((4097,), 'u1')).dtype.itemsize == 1
    assert device_arrays._words(made((4098,), 'u1')).dtype.itemsize == 2


@pytest.mark.parametrize('axis', [0, 1, 2])
def test_a_mark_of_an_array_with_gaps_copies_a_part_at_a_time(axis, monkeypatch):
    monkeypatch.setitem(sys.modules, 'cupy', np)
    monkeypatch.setattr(device_arrays, 'PART_BYTES', 1000)
    copied, contiguous = [], np.ascontiguousarray
    monkeypatch.setattr(np, 'ascontiguousarray', lambda array: [copied.append(array.nbytes), contiguous(array)][1])
    whole = np.random.RandomState(0).uniform(1, 99, (12, 14, 16)).astype('f4')
    part = whole[(slice(None),) * axis + (slice(1, None, 2),)]
    before = device_arrays.mark(part)
    assert max(copied) <= 1000
    assert sum(copied) == part.nbytes
    assert device_arrays.mark(part) == before
    seen = {int(before)}
    for place in ((0, 0, 0), (3, 3, 3), (-1, -1, -1)):
        part[place] += 1
        assert int(device_arrays.mark(part)) not in seen
        seen.add(int(device_arrays.mark(part)))
    part[[0, 1]] = part[[1, 0]]
    assert int(device_arrays.mark(part)) not in seen
