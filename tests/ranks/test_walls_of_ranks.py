"""Behind a wall, MPI gets the memory that an exchange needs, though maps and kept pages have filled what there is."""
from support.ranks.launch import run

#: Nothing is left at this one where nobody makes room for MPI.
WALL_MEGABYTES = 60


def test_mpi_gets_its_buffers_behind_a_wall(ranks, tmp_path):
    expected = run(ranks, 'walled.py', 'plain', 0, folder=tmp_path)
    assert run(ranks, 'walled.py', 'auto', WALL_MEGABYTES, folder=tmp_path) == expected
