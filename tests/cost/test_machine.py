"""Descriptions of machines: those of the package, a user's own, and what is wrong with one."""
import json

import pytest

from chainer_ooc.cost.machine import Machine, MachineError, machine_names, read_machine

NAMES = ('h100-pcie5', 'h200-sxm', 'k40c', 'p100-nvlink', 'v100-nvlink2', 'v100-pcie3')


def described(**changes):
    figure = {'value': 1000, 'source': 'a data sheet'}
    names = ('memory_bytes_per_second', 'write_bytes_per_second', 'read_bytes_per_second', 'latency_seconds',
             'near_bytes', 'reserve_bytes')
    figures = {'operations_per_second': {'float32': {'value': 2e12, 'source': 'a data sheet'}},
               **dict.fromkeys(names, figure), **changes}
    return {'name': 'mine', 'title': 'My machine',
            'figures': {name: value for name, value in figures.items() if value is not None}}


def written(folder, description):
    path = folder / 'machine.json'
    path.write_text(description if isinstance(description, str) else json.dumps(description))
    return str(path)


def test_the_machines_of_the_package():
    assert machine_names() == NAMES


@pytest.mark.parametrize('name', NAMES)
def test_each_machine_can_be_read(name):
    machine = read_machine(name)
    assert (machine.name, isinstance(machine, Machine)) == (name, True)
    assert machine.operations_per_second('float32') > 1e12
    assert machine.near_bytes > machine.usable_bytes > 10 * 2**30


def test_a_user_can_write_one(tmp_path):
    more = {'value': 9000, 'source': 'a figure that nobody asks for'}
    own = described(near_bytes={'value': 5000, 'source': 'counted'}, far_bytes=more)
    machine = read_machine(written(tmp_path, own))
    assert (machine.title, machine.near_bytes, machine.usable_bytes) == ('My machine', 5000, 4000)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(MachineError, match=f"there is no machine 'v200'.*{', '.join(NAMES)}"):
        read_machine('v200')


def test_another_dtype_is_refused_with_those_that_are_there(tmp_path):
    with pytest.raises(MachineError, match='no operations per second for float16, only for float32'):
        read_machine(written(tmp_path, described())).operations_per_second('float16')


@pytest.mark.parametrize(('change', 'complaint'), [
    ({'near_bytes': None}, 'near_bytes'),
    ({'near_bytes': {'value': 'much', 'source': 'x'}}, "'much' is no number"),
    ({'near_bytes': {'value': -1, 'source': 'x'}}, '-1 is no number'),
    ({'near_bytes': {'value': True, 'source': 'x'}}, 'True is no number'),
    ({'near_bytes': {'value': float('nan'), 'source': 'x'}}, 'nan is no number'),
    ({'near_bytes': {'value': float('inf'), 'source': 'x'}}, 'inf is no number'),
    ({'near_bytes': {'value': 10**400, 'source': 'x'}}, 'is no number'),
    ({'near_bytes': {'value': 1, 'source': ' '}}, 'has no source'),
    ({'memory_bytes_per_second': {'value': 0, 'source': 'x'}}, 'a rate below 1 per second'),
    ({'write_bytes_per_second': {'value': 1e-320, 'source': 'x'}}, 'a rate below 1 per second'),
    ({'operations_per_second': {'float32': {'value': 0, 'source': 'x'}}}, 'a rate below 1 per second'),
    ({'operations_per_second': None}, 'operations_per_second'),
])
def test_what_is_wrong_with_a_description_is_said(tmp_path, change, complaint):
    with pytest.raises(MachineError, match=f'is incomplete.*{complaint}'):
        read_machine(written(tmp_path, described(**change)))


@pytest.mark.parametrize('text', ['[]', '{}', '{"figures": 3}', 'null'])
def test_other_json_is_refused(tmp_path, text):
    with pytest.raises(MachineError, match='incomplete'):
        read_machine(written(tmp_path, text))


def test_what_is_no_json_is_refused(tmp_path):
    with pytest.raises(MachineError, match='is no JSON'):
        read_machine(written(tmp_path, 'near_bytes: 16 GB'))
