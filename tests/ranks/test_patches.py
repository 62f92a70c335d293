"""Patches 0040 to 0043, and 0046: ChainerMN on today's NumPy. Of 0044 and 0045 other files here tell."""
import numpy as np
import pytest

from support.ranks.launch import run


@pytest.fixture(scope='session')
def left(ranks, tmp_path_factory):
    return run(ranks, 'patched.py', folder=tmp_path_factory.mktemp('patched'))


def test_a_multi_node_iterator_gives_all_ranks_the_same_batches(left):
    batches, position, detail = left[0]['iterator']
    assert batches == [[0, 1, 2], [3, 4, 5]]
    assert position == 6
    assert all(each['iterator'] == (batches, position, pytest.approx(detail)) for each in left)


def test_a_position_beyond_float32_arrives_as_it_is(left):
    assert {each['position'] for each in left} == {2**24 + 1}


def test_collectives_and_messages_have_the_bits_of_float16(left):
    own = [np.array([1.5, -0.25, 3], 'e') * (rank + 1) for rank in range(len(left))]
    for rank, each in enumerate(left):
        found, before = each['float16'], own[rank - 1]
        expected = {
            'allgather': own, 'bcast': own[0], 'gather': own if rank == 0 else None,
            'alltoall': [other + np.float16(rank) for other in own], 'scatter': own[0] + np.float16(rank),
            'allreduce': sum(other.astype('f') for other in own).astype('e'), 'recv': [before, 2 * before]}
        for name, values in expected.items():
            np.testing.assert_equal(found[name] if values is None else np.array(found[name]),
                                    values if values is None else np.array(values), err_msg=f'{name}, rank {rank}')
            assert values is None or np.array(found[name]).dtype == np.float16


def test_gradients_of_float16_are_unpacked_from_a_buffer_of_float32(left):
    for each in left:
        np.testing.assert_array_equal(np.concatenate(each['unpacked']), np.arange(5, dtype='e'))
        assert {array.dtype for array in each['unpacked']} == {np.dtype('e')}


def test_losses_are_averaged_over_ranks_and_iterations(left):
    mean = 2 + (len(left) - 1) / 2
    assert [float(each['observed']) for each in left] == [mean] * len(left)
