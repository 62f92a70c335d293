"""Views and the memory under them: what is described is laid out again exactly so (P4)."""
import gc
import mmap
import sys
import warnings
import weakref

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from chainer_ooc.backends import arrays
from chainer_ooc.backends.arrays import flat_bytes, layout_of, root_of, view
from chainer_ooc.backends.cuda import arrays as device_arrays
from chainer_ooc.backends.host import HostBackend, block
from chainer_ooc.backends.host.arrays import COLUMNS
from chainer_ooc.backends.layout import Layout
from chainer_ooc.execute.memory.residency import Residency
from chainer_ooc.execute.storage.account import find
from chainer_ooc.execute.storage.slots import AttributeSlot
from chainer_ooc.execute.storage.states import State
from support.examples import examples

RECORD = np.dtype([('a', 'u1'), ('b', '<f4'), ('c', '>i2', (3,))])


def counted(shape=(4, 6, 8), dtype='f4', order='C'):
    return np.array(np.arange(np.prod(shape)).reshape(shape), dtype, order=order)


def read_only(array):
    array.flags.writeable = False
    return array


VIEWS = {
    'itself': lambda a: a,
    'a slice': lambda a: a[1:3, :, 2:5],
    'every other': lambda a: a[:, ::2, 1::3],
    'backwards': lambda a: a[::-1],
    'backwards by threes': lambda a: a[:, :, ::-3],
    'all backwards': lambda a: a[::-1, ::-1, ::-1],
    'transposed': lambda a: a.T,
    'axes turned': lambda a: a.transpose(1, 2, 0),
    'reshaped': lambda a: a.reshape(2, -1),
    'of other items': lambda a: a.view('u2'),
    'an axis more': lambda a: a[:, None, :, None, 0],
    'broadcast': lambda a: np.broadcast_to(a[1, :, :1], (5, 6, 8)),
    'one element': lambda a: a[1, 2, 3:4],
    'no dimension': lambda a: a[1, 2, 3, ...],
    'nothing in the middle': lambda a: a[2:2],
    'nothing at the end': lambda a: a[4:],
    'its diagonal': lambda a: a[0].diagonal(),
    'a view of a view': lambda a: a[1:][::-1].T[2:, ::2],
    'read-only': lambda a: read_only(a[1:]),
}

WITHOUT_A_COPY_IN_C_ORDER_ONLY = ('reshaped', 'of other items')


@pytest.mark.parametrize('order', ['C', 'F'])
@pytest.mark.parametrize('name', VIEWS)
def test_a_view_is_laid_out_again_over_a_copy_of_the_bytes(name, order):
    root = counted(order=order)
    array = VIEWS[name](root.T if name in WITHOUT_A_COPY_IN_C_ORDER_ONLY and order == 'F' else root)
    assert root_of(array) is root
    again = view(flat_bytes(root).copy(), layout_of(array, root))
    assert (again.dtype, again.shape, again.strides) == (array.dtype, array.shape, array.strides)
    assert again.flags.writeable == array.flags.writeable
    assert np.array_equal(again, array)


def test_a_layout_says_dtype_shape_strides_and_offset_in_bytes():
    root = counted((4, 6))
    # row 3 backwards, every other:  23 21 19
    assert layout_of(root[3, ::-2], root) == Layout(np.dtype('f4'), (3,), (-8,), 4 * 23, True)
    assert layout_of(root, root) == Layout(np.dtype('f4'), (4, 6), (24, 4), 0, True)
    wide = np.broadcast_to(root[:, :1], (4, 6))
    assert layout_of(wide, root) == Layout(np.dtype('f4'), (4, 6), (24, 0), 0, False)


def test_equal_layouts_are_equal_keys():
    root = counted((4, 6))
    assert len({layout_of(root[1:], root), layout_of(root[1:], root), layout_of(root[2:], root)}) == 2


@pytest.mark.parametrize('dtype', ['?', 'i1', '>u4', 'f2', 'f8', 'c8', 'M8[s]', 'S5', 'U3', 'V7', RECORD], ids=str)
def test_items_of_every_kind_keep_their_bytes(dtype):
    root = np.zeros((3, 5), dtype)
    flat_bytes(root)[:] = np.arange(root.nbytes) % 2
    array = root[::-1, 1:4]
    again = view(flat_bytes(root).copy(), layout_of(array, root))
    assert (again.dtype, again.strides) == (root.dtype, array.strides)
    assert again.tobytes() == array.tobytes()


@pytest.mark.parametrize('field', ['a', 'b', 'c'])
def test_a_field_of_a_structure_is_a_view_with_an_offset(field):
    root = np.zeros(7, RECORD)
    root['b'], root['c'] = np.arange(7), np.arange(21).reshape(7, 3)
    assert root_of(root[field]) is root
    again = view(flat_bytes(root).copy(), layout_of(root[field], root))
    assert again.dtype == root[field].dtype
    assert np.array_equal(again, root[field])


@pytest.mark.parametrize('owner', [
    counted(order='F'), counted((3,), 'f8'), counted(()), counted((1, 5, 1)),
    counted((4, 6, 8)).transpose(1, 2, 0).copy(order='K'), read_only(counted())],
    ids=['F order', 'one dimension', 'none', 'axes of one', 'K order', 'read-only'])
def test_the_bytes_of_an_owner_in_any_order_are_its_own(owner):
    flat = flat_bytes(owner)
    assert (flat.dtype, flat.ndim, flat.nbytes) == (np.uint8, 1, owner.nbytes)
    assert flat.flags.c_contiguous
    assert flat.ctypes.data == owner.ctypes.data


def test_a_root_with_gaps_has_no_flat_bytes():
    assert flat_bytes(counted()[:, ::2]) is None
    assert flat_bytes(np.broadcast_to(counted((1, 4)), (3, 4))) is None


class Subclass(np.ndarray):
    pass


def of_subclass():
    return np.zeros(4).view(Subclass)


UNMOVABLE = {
    'no array': lambda: [1.0],
    'None': lambda: None,
    'a scalar of NumPy': lambda: np.float32(3),
    'Python objects': lambda: np.zeros(4, object),
    'a structure with Python objects': lambda: np.zeros(4, [('a', 'f4'), ('b', 'O')]),
    'numbers of a structure with Python objects': lambda: np.zeros(4, [('a', 'f4'), ('b', 'O')])['a'],
    'a subclass': of_subclass,
    'a plain view of a subclass': lambda: of_subclass()[1:].view(np.ndarray),
    'a masked array': lambda: np.ma.zeros(4),
    'bytes of Python': lambda: np.frombuffer(b'12345678', 'f4'),
    'a bytearray': lambda: np.frombuffer(bytearray(8), 'f4'),
    'a mapping of somebody else': lambda: np.frombuffer(mmap.mmap(-1, 4096), 'f4'),
    'strides of its own making': lambda: np.lib.stride_tricks.as_strided(np.zeros(8), (3,), (8,)),
    'no bytes': lambda: np.zeros((0, 4)),
    'a view of no bytes': lambda: np.zeros((0, 4))[:, 1:],
    'items of no size': lambda: np.zeros(4, 'V0'),
}


@pytest.mark.parametrize('kind', UNMOVABLE)
def test_what_cannot_be_moved_has_no_root(kind):
    assert root_of(UNMOVABLE[kind]()) is None


def test_a_mapped_file_has_no_root(tmp_path):
    mapped = np.memmap(tmp_path / 'file', 'f4', 'w+', shape=(8,))
    assert root_of(mapped) is None
    assert root_of(np.asarray(mapped)) is None
    del mapped
    gc.collect()


def test_a_block_of_a_swap_in_is_a_root(residency):
    flat = residency.backend.allocate(block.LEAST_MAPPED_BYTES)
    assert root_of(flat) is flat
    array = view(flat, Layout(np.dtype('f4'), (8, 4), (16, 4), 64, True))
    assert root_of(array[::-1]) is flat
    assert layout_of(array[::-1], flat).offset_bytes == 64 + 7 * 16


# --- through a spill file and back -----------------------------------------------------------------------------------


class Holder:
    """Has arrays as attributes, as a function that hides them."""

    _ooc = None


def shuffled(draw, array):
    return array.transpose(draw(st.permutations(range(array.ndim))))


def sliced(draw, array):
    return array[tuple(
        slice(None, None, draw(st.sampled_from([1, 1, 2, -1, -2]))) if draw(st.booleans())
        else slice(draw(st.integers(0, size)), draw(st.integers(0, size))) for size in array.shape)]


def widened(draw, array):
    return np.broadcast_to(array, (draw(st.integers(0, 3)), *array.shape))


def picked(draw, array):
    return array[draw(st.integers(0, len(array) - 1))] if array.ndim > 1 and len(array) else array


def lengthened(draw, array):
    return np.expand_dims(array, draw(st.integers(0, array.ndim)))


STEPS = st.sampled_from([shuffled, sliced, sliced, widened, picked, lengthened])


@st.composite
def families(draw):
    """A function that gives an array and views of it. Hypothesis holds what is drawn, so that no array may be."""
    drawn = []

    def first(strategy):
        drawn.append(draw(strategy))
        return drawn[-1]

    def build():
        again = iter(drawn)
        return family_of(lambda strategy: next(again))

    family_of(first)
    return build


def family_of(draw):
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    dtype = draw(st.sampled_from(['f4', 'f8', '>i2', '?', 'c16', RECORD]))
    owner = np.empty(shape, dtype, order=draw(st.sampled_from('CF')))
    flat_bytes(owner)[:] = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 2, owner.nbytes)
    family = [owner] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(0 if family else 1, 4))):
        array = owner
        for step in draw(st.lists(STEPS, max_size=4)):
            array = step(draw, array)
        if draw(st.integers(0, 3)) == 0:
            array = read_only(array[...])
        family.append(array)
    return family


def seen(array, root):
    return layout_of(array, root), array.tobytes(), array.flags.c_contiguous, array.flags.f_contiguous


def hidden_family(residency, family):
    """Hides a family on a holder; returns it, the storage, what is expected back, and the root's weak reference."""
    holder = Holder()
    root = root_of(family[0])
    storage = residency.register(root, root, None, 0, from_outside=False)
    expected = {}
    for number, array in enumerate(family):
        assert find(array) is storage
        setattr(holder, f'array{number}', array)
        expected[f'array{number}'] = seen(array, root)
        storage.add_slots(AttributeSlot(holder, f'array{number}'))
    return holder, storage, expected, weakref.ref(root)


@pytest.fixture
def residency(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # the folder for temporary files may be a RAM disk
        backend = HostBackend(str(tmp_path))
    yield Residency(backend)
    backend.close()


def assert_came_back(holder, storage, expected):
    root = storage.root()
    for name, then in expected.items():
        array = holder.__dict__[name]
        assert root_of(array) is root
        assert seen(array, root) == then
    assert not holder._ooc


@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_family_of_views_comes_back_equal_from_the_spill_file(residency, data):
    holder, storage, expected, root = hidden_family(residency, data.draw(families())())
    for _ in range(2):  # the second trip starts from a block of the first
        assert storage.state is State.RESIDENT
        assert residency.swap_out(storage)
        residency.settle()
        assert storage.state is State.AWAY
        assert root() is None, 'the memory is still held'
        assert not [name for name in expected if name in holder.__dict__]
        storage.fetch()
        assert_came_back(holder, storage, expected)
        root = storage.root
        storage.expose()  # as if written to: the copy is not used again


def test_views_of_one_block_share_it_again_afterwards(residency):
    owner = counted((4, 6))
    holder, storage, expected, _ = hidden_family(residency, [owner, owner[::-1], owner[1:3].T])
    del owner
    assert residency.swap_out(storage)
    residency.settle()
    storage.fetch()
    assert_came_back(holder, storage, expected)
    holder.array0[2, 5] = -1
    assert holder.array1[1, 5] == holder.array2[5, 1] == -1


@pytest.mark.usefixtures('no_arena')
def test_arrays_above_the_mapping_size_come_back_on_a_mapping(residency):
    owner = np.arange(block.LEAST_MAPPED_BYTES, dtype='f4').reshape(512, -1)
    holder, storage, expected, _ = hidden_family(residency, [owner.T, owner[::-7, ::3]])
    del owner
    assert residency.swap_out(storage)
    residency.settle()
    storage.fetch()
    assert_came_back(holder, storage, expected)
    assert type(storage.root().base) is block.HeapBlock


@pytest.mark.parametrize('dtype', ['f8', 'f4', 'f2', 'u1'])
@pytest.mark.parametrize('columns', [*COLUMNS, 2 * COLUMNS[0], 1024, 10])
@pytest.mark.parametrize('mark', [arrays.checksum, device_arrays.mark])
def test_a_mark_tells_rows_that_changed_places(mark, columns, dtype, monkeypatch):
    monkeypatch.setitem(sys.modules, 'cupy', np)
    words = -(-8 // np.dtype(dtype).itemsize)  # rows of whole words, of which the sums are
    array = np.array(np.random.RandomState(0).uniform(1, 99, size=(64, columns * words)), dtype)
    before = int(mark(array))
    for changed in (array[::-1], array[[1, 0, *range(2, 64)]], np.roll(array, 1, axis=0)):
        assert int(mark(changed.copy())) != before


@pytest.mark.parametrize('mark', [arrays.checksum, device_arrays.mark])
@pytest.mark.parametrize('classes', [10, 4093, 4099, 8186])
def test_a_mark_tells_other_labels(mark, classes, monkeypatch):
    """One label went up by three and another down: sums of rows and first moments are the same."""
    monkeypatch.setitem(sys.modules, 'cupy', np)
    one_hot = np.eye(classes, dtype='f4')
    assert int(mark(one_hot[[5, 2, 8, 1] * 16])) != int(mark(one_hot[[8, 2, 5, 1] * 16]))
    assert int(mark(one_hot[[5, 2, 5, 1] * 16])) != int(mark(one_hot[[8, 2, 2, 1] * 16]))
