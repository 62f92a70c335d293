"""`simulate` for several ranks: what an exchange adds to an iteration, and out-of-core beside in-core."""
import dataclasses

import pytest

from chainer_ooc.trace import ArrayForm
from support.command_line import run, run_json
from support.planning.drawn_trace import MB, TRACE

#: Each call reads 1 MB of parameters as well.
FORMS = ArrayForm('|u1', (8, 5)), ArrayForm('<f4', (MB // 4,))
WITH_PARAMETERS = dataclasses.replace(TRACE, calls=tuple(
    dataclasses.replace(each, inputs=(*each.inputs, -1), arguments=FORMS) for each in TRACE.calls))
COMMAND = ('--policy', 'swap-all', '--budget', '9MB')


@pytest.fixture
def file(tmp_path):
    (tmp_path / 'trace.json').write_text(WITH_PARAMETERS.to_json())
    return str(tmp_path / 'trace.json')


def simulate(capsys, file, *more):
    return run_json(capsys, 'simulate', file, *COMMAND, *more)


def test_ranks_have_their_images_in_the_time_of_one_and_its_exchange(capsys, file):
    alone = simulate(capsys, file)
    across = simulate(capsys, file, '--ranks', '1,2', '--network', '1MB')['across']
    one, two = across['rows']
    assert across['exchange_bytes'] == 3 * MB
    assert across['network_bytes_per_second'] == 1e6
    assert (one['ranks'], one['seconds'], one['exchange_seconds']) == (1, alone['seconds'], 0)
    assert one['images_per_second'] == pytest.approx(alone['images_per_second'])
    assert two['exchange_seconds'] == pytest.approx(3, abs=1e-3)  # 2 x half of 3 MB at 1 MB/s
    assert two['after_seconds'] == pytest.approx(17 + 3, abs=1e-3)
    assert two['seconds'] == pytest.approx(17 + 1, abs=1e-3)  # those of the last step; the others go beside
    assert two['after_images_per_second'] == pytest.approx(2 * 8 / 20, abs=1e-3)


def test_in_core_has_the_largest_batch_that_fits(capsys, file):
    assert simulate(capsys, file, '--ranks', '2', '--network', '1MB')['across']['in_core_batch'] is None
    command = ('simulate', file, '--policy', 'swap-all', '--ranks', '2', '--network', '1MB', '--batch', '16')
    found = {size: run_json(capsys, *command, '--budget', f'{size}MB')['across'] for size in (13, 20, 40)}
    assert [each['in_core_batch'] for each in found.values()] == [8, 12, 16]  # 1 + 12 MB of batch 8
    assert found[40]['rows'][0]['in_core_seconds'] == pytest.approx(2 * 9 + 1, abs=1e-3)


def test_a_row_has_each_key_whatever_fits(capsys, file):
    command = ('simulate', file, '--policy', 'swap-all', '--ranks', '2', '--network', '1MB', '--budget')
    both, plan_alone, none = (run_json(capsys, *command, each)['across']['rows'][0] for each in ('20MB', '9MB', '1MB'))
    assert [*both] == [*plan_alone] == [*none]
    assert None not in both.values()
    assert {key for key, value in plan_alone.items() if value is None} == {
        key for key in both if key.startswith('in_core_')}


def test_without_a_plan_there_is_in_core_alone_and_without_either_nothing(capsys, file):
    command = ('simulate', file, '--policy', 'swap-all', '--budget', '1MB', '--ranks', '2', '--network', '1MB')
    row, = run_json(capsys, *command)['across']['rows']
    assert {key for key, value in row.items() if value is not None} == {'ranks'}
    status, out, _ = run(capsys, *command)
    assert status == 0
    assert out.splitlines()[-1].split() == ['2', *7 * '-']


def test_the_table_has_a_row_for_each_number_of_ranks(capsys, file):
    status, out, _ = run(capsys, 'simulate', file, '--policy', 'swap-all', '--budget', '13MB', '--ranks', '1,1024',
                         '--network', '1GB')
    assert status == 0
    assert 'in-core at batch 8' in ' '.join(out.split())
    assert [line.split()[0] for line in out.splitlines()[-2:]] == ['1', '1,024']


@pytest.mark.parametrize(('more', 'said'), [
    (['--ranks', '4'], 'add --network 100Gbit'), (['--network', '1Gbit'], 'add --ranks'),
    (['--ranks', '0', '--network', '1Gbit'], 'at least 1'), (['--ranks', '2', '--network', 'fast'], 'no speed')])
def test_what_cannot_be_used_is_refused_with_the_next_step(capsys, file, more, said):
    status, _, err = run(capsys, 'simulate', file, *COMMAND, *more)
    assert status == 2
    assert said in err


def test_an_exchange_that_was_measured_is_part_of_the_time_on_this_machine_and_on_no_other(capsys, tmp_path):
    trace = dataclasses.replace(WITH_PARAMETERS, exchange_bytes=3 * MB, exchange_seconds=3.0)
    (tmp_path / 'trace.json').write_text(trace.to_json())
    found = simulate(capsys, str(tmp_path / 'trace.json'))
    assert (found['seconds'], found['exchange_seconds'], found['images_per_second']) == (17, 3, 8 / 20)
    assert found['in_core_images_per_second'] == 8 / 12
    assert simulate(capsys, str(tmp_path / 'trace.json'), '--machine', 'v100-pcie3')['exchange_seconds'] == 0


def test_a_trace_that_does_not_tell_its_batch_is_refused(capsys, tmp_path):
    maps = (dataclasses.replace(TRACE.maps[0], shape=()), *TRACE.maps[1:])
    (tmp_path / 'trace.json').write_text(dataclasses.replace(WITH_PARAMETERS, maps=maps).to_json())
    status, _, err = run(capsys, 'simulate', str(tmp_path / 'trace.json'), *COMMAND, '--ranks', '2',
                         '--network', '1GB')
    assert status == 2
    assert 'does not tell its batch' in err
