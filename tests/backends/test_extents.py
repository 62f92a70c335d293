"""The extents of the spill file: nothing overlaps, neighbours join, all space comes back."""
import itertools

from hypothesis import given
from hypothesis import strategies as st

from chainer_ooc.backends.spill.extents import ALIGNMENT_BYTES, Extents, aligned

PAGE = ALIGNMENT_BYTES


def take(extents, nbytes):
    start, growth = extents.place(nbytes)
    before = extents.end_bytes
    extents.take(start, nbytes)
    assert extents.end_bytes == before + growth
    return start


def layout(extents):
    """The free extents as (start, size)."""
    return [(start, end - start) for start, end in extents._free]


def test_sizes_are_rounded_up_to_pages():
    assert [aligned(nbytes) for nbytes in (0, 1, PAGE, PAGE + 1)] == [0, PAGE, PAGE, 2 * PAGE]


def test_released_space_is_used_again():
    extents = Extents()
    first, second = take(extents, 3 * PAGE), take(extents, PAGE)
    extents.give(first, 3 * PAGE)
    assert take(extents, 3 * PAGE) == first
    assert second == 3 * PAGE
    assert extents.end_bytes == 4 * PAGE


def test_the_tightest_free_extent_is_taken():
    # |.....|A|...|B|....|C|    a copy of three pages goes between A and B
    extents = Extents()
    starts = [(take(extents, pages * PAGE), pages) for pages in (5, 1, 3, 1, 4, 1)]
    for start, pages in starts[::2]:
        extents.give(start, pages * PAGE)
    assert take(extents, 3 * PAGE) == starts[2][0]
    assert take(extents, 2 * PAGE) == starts[4][0]


def test_three_neighbours_join_into_one():
    # |A|B|C|D| -> give A, C, then B: one extent of three pages
    extents = Extents()
    a, b, c, _ = (take(extents, PAGE) for _ in range(4))
    for start in (a, c, b):
        extents.give(start, PAGE)
    assert layout(extents) == [(0, 3 * PAGE)]


def test_a_free_extent_at_the_end_is_extended_rather_than_passed_over():
    # |A|..|   a copy of three pages starts in the gap and grows the file by one page
    extents = Extents()
    take(extents, PAGE)
    gap = take(extents, 2 * PAGE)
    extents.give(gap, 2 * PAGE)
    assert extents.place(3 * PAGE) == (gap, PAGE)
    assert take(extents, 3 * PAGE) == gap
    assert extents.end_bytes == 4 * PAGE


def test_placing_alone_changes_nothing():
    extents = Extents()
    extents.place(10 * PAGE)
    assert (extents.end_bytes, extents.free_bytes) == (0, 0)


def test_an_empty_copy_takes_no_space():
    extents = Extents()
    extents.give(take(extents, 0), 0)
    assert (extents.end_bytes, layout(extents)) == (0, [])


@given(st.lists(st.one_of(st.integers(0, 9 * PAGE).map(lambda n: ('take', n)),
                          st.integers(0, 99).map(lambda n: ('give', n))), max_size=120))
def test_no_overlap_no_gap_and_all_comes_back(steps):
    extents, used = Extents(), []
    for step, number in steps:
        if step == 'take':
            used.append((take(extents, number), number))
        elif used:
            extents.give(*used.pop(number % len(used)))
        _check(extents, used)
    for start, nbytes in used:
        extents.give(start, nbytes)
    assert layout(extents) == ([(0, extents.end_bytes)] if extents.end_bytes else [])


def _check(extents, used):
    """Used and free extents tile the file, and no two free ones touch."""
    free = layout(extents)
    tiles = sorted([(start, aligned(nbytes)) for start, nbytes in used if nbytes] + free)
    position = 0
    for start, size in tiles:
        assert start == position
        position += size
    assert position == extents.end_bytes
    assert sum(size for _, size in free) == extents.free_bytes
    assert all(start + size != after for (start, size), (after, _) in itertools.pairwise(free))
