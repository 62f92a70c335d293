"""Addresses over chunks: any sequence of blocks, against a picture of every unit."""
import copy

from hypothesis import given
from hypothesis import strategies as st

from chainer_ooc.backends.cuda.allocators.address_space import AddressSpace, BlockPlace, Chunk
from chainer_ooc.backends.cuda.allocators.allocator import UNIT_BYTES
from chainer_ooc.backends.cuda.allocators.ledger import Owner

CHUNK = 4 * UNIT_BYTES
PAGES = 12
UNITS = 4 * PAGES


def picture(blocks):
    """The number of the block of each unit, or None."""
    found = [None] * UNITS
    for number, place in blocks.items():
        for unit in range(place.offset // UNIT_BYTES, (place.offset + place.size_bytes) // UNIT_BYTES):
            assert found[unit] is None, 'two blocks share a unit'
            found[unit] = number
    return found


def place_of(space, offset, size):
    place = BlockPlace(Owner(space.address + offset, size, 0, size))
    place.offset, place.size_bytes, place.space = offset, size, space
    return place


def pages_with_users(blocks):
    return {unit // 4 for unit, block in enumerate(picture(blocks)) if block is not None}


def back(space, pages, chunks, idle):
    """Puts idle chunks behind the pages that lack one, as the allocator does; whether there were enough."""
    for page in space.shared(pages):
        space.remove(page)
    lacking = [page for run in space.runs(pages) for page in run]
    theirs = {space.chunk(page) for page in pages}
    found = [chunk for chunk in chunks if chunk not in theirs and (chunk in idle or not chunk.pages)]
    if len(found) < len(lacking):
        return False
    for page, chunk in zip(lacking, found, strict=False):
        if space.chunk(page) is not None:
            space.remove(page)
        space.put(page, chunk)
        idle[chunk] = None
    return True


def known(space, chunks):
    """All that a space has counted, and what chunks say of themselves."""
    return ([copy.copy(vars(space)[name]) for name in ('_users', '_starts', '_ends', '_by_size')],
            [(chunk.space is space, sorted(chunk.pages), chunk.used_by) for chunk in chunks if chunk.pages])


@given(st.data())
def test_any_sequence_of_blocks(data):
    idle, blocks = {}, {}
    space = AddressSpace(1 << 20, PAGES * CHUNK, CHUNK, None, idle)
    chunks = [Chunk(number) for number in range(data.draw(st.integers(1, PAGES)))]
    for number in range(data.draw(st.integers(1, 25))):
        if blocks and data.draw(st.booleans()):
            place = blocks.pop(data.draw(st.sampled_from(sorted(blocks))))
            touched = set(space.pages(place.offset, place.size_bytes))
            assert set(space.give(place)) == touched - pages_with_users(blocks)
        size = data.draw(st.integers(1, UNITS)) * UNIT_BYTES
        before = picture(blocks)
        longest = max((len(run) for run in ''.join(' x'[each is not None] for each in before).split('x')), default=0)
        offset = space.place(size)
        assert (offset is None) == (longest * UNIT_BYTES < size)
        if offset is None:
            continue
        assert before[offset // UNIT_BYTES:(offset + size) // UNIT_BYTES] == [None] * (size // UNIT_BYTES)
        if back(space, space.pages(offset, size), chunks, idle):
            blocks[number] = place_of(space, offset, size)
            space.take(blocks[number])
        used = [space.chunk(page) for page in pages_with_users(blocks)]
        assert len({*used}) == len(used), 'two pages with users have the same chunk'
        assert {chunk for chunk in chunks if chunk.pages and chunk not in used} == {*idle}
        counted = known(space, chunks)
        for chunk in chunks:
            chunk.pages.clear()
            chunk.used_by = -1
        space.recount()
        assert known(space, chunks) == counted
    for place in blocks.values():
        space.give(place)
    assert space.place(PAGES * CHUNK) == 0


def test_the_place_that_lacks_the_fewest_chunks_is_taken_and_of_these_the_smallest():
    idle = {}
    space = AddressSpace(0, PAGES * CHUNK, CHUNK, None, idle)
    for page in (0, 1, 2, 5, 6, 9, 3, 7, 8):
        chunk = Chunk(page)
        space.put(page, chunk)
        idle[chunk] = None
    for page in (3, 7, 8):  # blocks that live, so that there are extents of 3, 3 and 3 pages
        space.take(place_of(space, page * CHUNK, CHUNK))
    assert space.place(3 * CHUNK) == 0
    assert space.place(2 * CHUNK) == 0
    space.take(place_of(space, 0, 3 * CHUNK))
    assert space.place(2 * CHUNK) == 5 * CHUNK  # from the end of the extent [4, 7)
    assert space.place(3 * CHUNK) == 4 * CHUNK
