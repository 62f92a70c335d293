"""What ranks on one machine share: memory, container, disk and cores."""
import itertools
import sys
import types
import warnings

import pytest

from chainer_ooc.backends.host import groups, limits
from chainer_ooc.backends.host.headroom import Headroom
from chainer_ooc.backends.spill import filesystem
from chainer_ooc.backends.spill.spill_file import SpillFile
from chainer_ooc.ranks import threads
from chainer_ooc.ranks.node import VARIABLES, Node, _at_start, launched, node, share

MPICH = {'MPI_LOCALNRANKS': '4', 'MPI_LOCALRANKID': '3'}


@pytest.fixture(autouse=True)
def asked_anew():
    """A process asks its environment once: a launcher does not change what it has said."""
    _at_start.cache_clear()
    yield
    _at_start.cache_clear()


def launch(monkeypatch, ranks):
    """From now on a launcher has started so many ranks on this machine."""
    monkeypatch.setenv('MPI_LOCALNRANKS', str(ranks))
    _at_start.cache_clear()


@pytest.fixture
def four(monkeypatch):
    """This process is the last of four ranks."""
    for name, value in MPICH.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def alone(monkeypatch):
    """No launcher has started this process, and no communicator was made."""
    for name in itertools.chain(*VARIABLES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, 'chainer._ooc', raising=False)


@pytest.mark.parametrize(('environment', 'expected'), [
    ({}, Node()),
    (MPICH, Node(4, 3)),
    ({'OMPI_COMM_WORLD_LOCAL_SIZE': '2', 'OMPI_COMM_WORLD_LOCAL_RANK': '1'}, Node(2, 1)),
    ({'MV2_COMM_WORLD_LOCAL_SIZE': '8', 'MV2_COMM_WORLD_LOCAL_RANK': '0'}, Node(8, 0)),
    ({'MPI_LOCALNRANKS': 'many'}, Node()),
    ({'MPI_LOCALNRANKS': '0', 'MPI_LOCALRANKID': '0'}, Node()),
    ({'MPI_LOCALNRANKS': '2', 'MPI_LOCALRANKID': '2'}, Node()),
])
def test_launchers_say_how_many_ranks_a_machine_has(environment, expected):
    assert launched(environment) == expected


@pytest.mark.usefixtures('alone')
@pytest.mark.parametrize(('told', 'expected'), [((1, 0), Node()), ((3, 2), Node(3, 2))])
def test_a_communicator_says_it_where_no_launcher_does(monkeypatch, told, expected):
    monkeypatch.setitem(sys.modules, 'chainer._ooc', types.SimpleNamespace(node=told))
    assert node() == expected


@pytest.mark.usefixtures('four')
@pytest.mark.parametrize(('told', 'expected'), [((2, 1), Node(4, 3)), ((6, 5), Node(6, 5))])
def test_the_larger_number_holds_since_a_communicator_may_be_of_some_ranks(monkeypatch, told, expected):
    monkeypatch.setitem(sys.modules, 'chainer._ooc', types.SimpleNamespace(node=told))
    assert node() == expected


@pytest.mark.usefixtures('alone')
def test_one_rank_has_all():
    assert (node(), share(1001)) == (Node(), 1001)


@pytest.mark.usefixtures('alone')
def test_memory_of_the_machine_and_of_its_container_is_divided_and_that_of_a_process_is_not(monkeypatch):
    status = {'/proc/self/status': {'VmData': 100, 'VmSize': 100}, '/proc/meminfo': {'MemAvailable': 8000}}
    monkeypatch.setattr(limits, 'kilobyte_fields', status.__getitem__)
    monkeypatch.setattr(limits.resource, 'getrlimit', lambda _: (700, 700))
    monkeypatch.setattr(groups, 'groups', lambda: [types.SimpleNamespace(left_bytes=lambda: 4000)])
    expected = {'RLIMIT_DATA': 600, 'RLIMIT_AS': 600, 'MemAvailable': 8000, 'cgroup': 4000}
    assert limits.limits_bytes() == expected
    launch(monkeypatch, 4)
    assert limits.limits_bytes() == {**expected, 'MemAvailable': 2000, 'cgroup': 1000}


@pytest.mark.usefixtures('alone')
def test_ranks_that_ask_a_container_at_once_get_their_shares(monkeypatch):
    mb = 1 << 20
    group = types.SimpleNamespace(limit_bytes=1024 * mb, left_now_bytes=lambda enough=0, dirty=0: 200 * mb)
    headroom = Headroom(lambda: [group])
    assert headroom.has_room(80 * mb, will_write=False)
    assert (headroom.left_bytes(), headroom.dirty_bytes()) == (200 * mb, 32 * mb)
    launch(monkeypatch, 4)
    assert not headroom.has_room(80 * mb, will_write=False)
    assert headroom.has_room(30 * mb, will_write=False)
    assert (headroom.left_bytes(), headroom.dirty_bytes()) == (50 * mb, 8 * mb)


@pytest.mark.usefixtures('alone')
def test_a_disk_is_divided_and_the_rank_that_asks_last_has_its_share_too(tmp_path, monkeypatch):
    free = {'bytes': 1000}
    monkeypatch.setattr(filesystem, 'free_space', lambda _: free['bytes'])
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        file = SpillFile(str(tmp_path))
    assert file.free_bytes(0) == 1000
    launch(monkeypatch, 2)
    assert file.free_bytes(0) == 500
    free['bytes'] = 520  # the other one has taken 480
    assert file.free_bytes(0) == 500
    assert file.free_bytes(300) == 260  # half of what is free now is more than what is left of the share
    free['bytes'] = 90  # somebody else has filled the disk
    assert file.free_bytes(0) == 90
    file.close()


@pytest.mark.parametrize(('ranks', 'environment', 'own_cores', 'cores', 'threads_to_export'), [
    (1, {}, 2, 2, None),
    (2, {}, 2, 2, 1),
    (2, {'OMP_NUM_THREADS': '1'}, 2, 2, None),
    (2, {'OMP_NUM_THREADS': '4'}, 8, 8, None),
    (2, {'OMP_NUM_THREADS': '1', 'OPENBLAS_NUM_THREADS': '8'}, 8, 8, 4),
    (2, {}, 4, 8, None),  # bound by the launcher, four cores each
])
def test_more_threads_than_cores_are_advised_against(ranks, environment, own_cores, cores, threads_to_export):
    told = threads.advice(Node(ranks), environment, own_cores, cores)
    assert told.endswith(f'export OMP_NUM_THREADS={threads_to_export} before mpiexec' if threads_to_export else '')
    assert bool(told) == (threads_to_export is not None)


def test_more_ranks_than_cores_are_advised_against_where_each_has_one_thread():
    told = threads.advice(Node(4), {'OMP_NUM_THREADS': '1'}, 2, 2)
    assert told.startswith('4 ranks') and told.endswith('start at most 2 ranks here')


def test_the_first_rank_of_a_machine_warns_and_no_other(monkeypatch):
    monkeypatch.setattr(threads, 'here', lambda: 'too many')
    monkeypatch.setattr(threads, 'node', lambda: Node(2, 1))
    threads.warn()
    monkeypatch.setattr(threads, 'node', lambda: Node(2, 0))
    with pytest.warns(threads.ThreadsWarning, match='too many'):
        threads.warn()
