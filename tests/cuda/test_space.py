"""Addresses over chunks: any sequence of blocks, against a picture of every unit."""
from hypothesis import given
from hypothesis import strategies as st

from chainer_ooc.backends.cuda.allocators.space import UNIT_BYTES, Space

CHUNK = 4 * UNIT_BYTES
CHUNKS = 12
UNITS = 4 * CHUNKS


def picture(blocks):
    """The number of the block of each unit, or None."""
    found = [None] * UNITS
    for number, (offset, size) in blocks.items():
        for unit in range(offset // UNIT_BYTES, (offset + size) // UNIT_BYTES):
            assert found[unit] is None, 'two blocks share a unit'
            found[unit] = number
    return found


@given(st.data())
def test_any_sequence_of_blocks(data):
    space, blocks, mapped = Space(1 << 20, CHUNKS * CHUNK, CHUNK, None), {}, set()
    for number in range(data.draw(st.integers(1, 25))):
        if blocks and data.draw(st.booleans()):
            left = data.draw(st.sampled_from(sorted(blocks)))
            offset, size = blocks.pop(left)
            users = {unit // 4 for unit, block in enumerate(picture(blocks)) if block is not None}
            touched = set(range(offset // CHUNK, -(-(offset + size) // CHUNK)))
            assert set(space.give(offset, size)) == touched - users
            assert {chunk for run, _ in space.idle() for chunk in run} == mapped - users
            for chunk in sorted(mapped - users):
                if data.draw(st.booleans()):
                    assert space.remove(chunk) == f'chunk {chunk}'
                    mapped.remove(chunk)
        size = data.draw(st.integers(1, UNITS)) * UNIT_BYTES
        before = picture(blocks)
        longest = max((len(run) for run in ''.join(' x'[each is not None] for each in before).split('x')), default=0)
        found = space.place(size)
        assert (found is None) == (longest * UNIT_BYTES < size)
        if found is None:
            continue
        offset, missing = found
        chunks = space.chunks(offset, size)
        assert missing == space.missing(offset, size) == len(set(chunks) - mapped)
        if not missing:  # the smallest of the extents in which nothing is missing, from their ends
            assert before[offset // UNIT_BYTES:(offset + size) // UNIT_BYTES] == [None] * (size // UNIT_BYTES)
        runs = list(space.runs(chunks))
        assert [chunk for run in runs for chunk in run] == sorted(set(chunks) - mapped)
        for run in runs:
            for chunk in run:
                space.put(chunk, f'chunk {chunk}')
                mapped.add(chunk)
        users = {unit // 4 for unit, block in enumerate(before) if block is not None}
        space.take(offset, size)
        blocks[number] = offset, size
        picture(blocks)
        assert {chunk for run, _ in space.idle() for chunk in run} == mapped - users - set(chunks)
    for offset, size in blocks.values():
        space.give(offset, size)
    assert {chunk for run, _ in space.idle() for chunk in run} == mapped
    assert space.place(CHUNKS * CHUNK) == (0, CHUNKS - len(mapped))


def test_the_place_that_lacks_the_fewest_chunks_is_taken_and_of_these_the_smallest():
    space = Space(0, CHUNKS * CHUNK, CHUNK, None)
    for chunk in (0, 1, 2, 5, 6, 9):
        space.put(chunk, chunk)
    for chunk in (3, 7, 8):  # blocks that live, so that there are extents of 3, 3 and 3 chunks
        space.put(chunk, chunk)
        space.take(chunk * CHUNK, CHUNK)
    assert space.place(3 * CHUNK) == (0, 0)
    assert space.place(2 * CHUNK) == (0, 0)
    space.take(0, 3 * CHUNK)
    assert space.place(2 * CHUNK) == (5 * CHUNK, 0)  # from the end of the extent [4, 7)
    assert space.place(3 * CHUNK) == (4 * CHUNK, 1)
