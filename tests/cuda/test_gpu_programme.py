"""The GPU programme without a GPU: its command on the host, what it asks for, and its clock.

Figures are not tested, as times are not. What must hold is that no row takes another one with it, that nothing that was
asked for is missing from the files, that what was seen on the way is kept, and that no figure stands under a name that
no device gave.
"""
import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PROGRAMME = ROOT / 'benchmarks' / 'gpu'

from programme import STAGES, Programme  # noqa: E402
from run import chosen  # noqa: E402
from sizes import FULL, SMALL  # noqa: E402
from tables import COLUMNS  # noqa: E402

GB = 10**9


def called(*arguments, timeout=280, **environment):
    """The real command, in a process of its own."""
    environment = {**os.environ, 'OMP_NUM_THREADS': '1', 'CUDA_VISIBLE_DEVICES': '', **environment}
    return subprocess.run([sys.executable, str(PROGRAMME / 'run.py'), *map(str, arguments)], cwd=ROOT, timeout=timeout,
                          env=environment, capture_output=True, text=True, check=False)


def figures_in(folder):
    """The JSON and the Markdown of a folder."""
    (figures,), (tables,) = folder.glob('*.json'), folder.glob('*.md')
    assert figures.stem == tables.stem
    return json.loads(figures.read_text()), tables.read_text()


@pytest.fixture(scope='module')
def first(tmp_path_factory):
    """One call of the first command of docs/gpu.md, on the host; several tests look at what it leaves."""
    folder = tmp_path_factory.mktemp('first')
    done = called('--stage', 'first', '--device', 'host', '--out', folder)
    assert done.returncode == 0, done.stderr
    return (*figures_in(folder), done.stdout, folder)


@pytest.fixture(scope='module')
def failing(tmp_path_factory):
    """Rows that fail by intent."""
    folder = tmp_path_factory.mktemp('failing')
    done = called('--device', 'host', '--out', folder, '--parts', 'self-test')
    assert done.returncode == 0, done.stderr
    return (*figures_in(folder), folder)


def part_of(figures, name):
    return next(part for part in figures['parts'] if part['name'] == name)


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_first_command_has_its_parts_in_order(first):
    assert [part['name'] for part in first[0]['parts']] == [
        'doctor', 'link', 'chunks', 'in-core', 'batch-16', 'in-core-16', 'operations', 'bits',
        'torch-in-core']
    assert [part.name for part in chosen(parts(), None, 'first')] == [
        'doctor', 'link', 'chunks', 'in-core', 'batch-640', 'in-core-640', 'operations', 'bits',
        'torch-in-core']


def test_all_that_the_first_command_leaves_is_in_one_folder(first):
    assert sorted(each.name.partition('-')[0] for each in first[3].iterdir()) == ['log', 'no', 'no']
    assert 'row: training' in (first[3] / 'log-first.txt').read_text()


def test_keep_is_refused_within_the_budget_and_three_policies_train(first):
    found = part_of(first[0], 'batch-16')['rows']
    assert [row['policy'] for row in found] == ['keep', 'pooch', 'auto', 'swap-all']
    rows = {row['policy']: row for row in found}
    assert rows['keep']['outcome'] == 'refused'
    assert rows['keep']['floor_bytes'] > rows['keep']['budget_bytes']
    trained = [row for name, row in rows.items() if name != 'keep']
    assert [row['outcome'] for row in trained] == ['done'] * 3
    assert all(len(row['all_seconds']) == SMALL.iterations for row in trained)
    assert [len(row['settle_seconds']) for row in trained] == [9, 5, 5]
    assert all(len(row['followed']) == len(row['settle_seconds'] + row['all_seconds']) for row in trained)
    assert [row['phases'] for row in trained] == [['run']] * 3
    assert [row['plans'] for row in trained] == [1] * 3, 'nothing is planned while it times'
    assert rows['swap-all']['swapped_out_bytes'] > rows['pooch']['swapped_out_bytes'] > 0


def test_rows_say_which_functions_take_the_time(first):
    rows = [row for name in ('in-core', 'batch-16') for row in part_of(first[0], name)['rows']
            if row['outcome'] == 'done' and row['policy'] != 'plain']
    assert len(rows) == 5
    for row in rows:
        found = row['seconds_by_function']
        assert 'Convolution2DFunction' in list(found)[:3], 'the longest first'
        assert all(seconds > 0 for seconds in found['Convolution2DFunction'])


def test_rows_of_one_network_share_a_process_though_one_was_refused(first):
    rows = part_of(first[0], 'batch-16')['rows']
    assert [row['fresh_process'] for row in rows] == [False] * 4
    assert [row['faults'] for row in rows[1:]] == [0] * 3, 'the parameters of a row before would count beside its own'


def test_in_core_rows_are_with_and_without_tf32_and_beside_plain_chainer(first):
    rows = part_of(first[0], 'in-core')['rows']
    assert [(row['policy'], row['tf32'], row['outcome']) for row in rows] == [
        ('keep', False, 'done'), ('plain', False, 'done'), ('keep', True, 'done'), ('plain', True, 'done')]
    row = part_of(first[0], 'batch-16')['rows'][1]
    beside = part_of(first[0], 'in-core-16')['rows'][0]
    assert row['overhead'] == pytest.approx(row['seconds'] / beside['seconds'] - 1)
    assert row['of_in_core_rate'][1] == 16


def test_keep_and_plain_chainer_take_turns(tmp_path):
    done = called('--device', 'host', '--out', tmp_path, '--parts', 'turns')
    assert done.returncode == 0, done.stderr
    figures, tables = figures_in(tmp_path)
    rows = part_of(figures, 'turns')['rows']
    assert [(row['tf32'], row['outcome']) for row in rows] == [(False, 'done'), (True, 'done')]
    for row in rows:
        assert min(row[f'{policy}_{what}'] for policy in ('plain', 'keep') for what in ('seconds', 'host_seconds')) > 0
        assert len(row['ratios']) == len(row['host_ratios']) == SMALL.rounds
    assert 'ratio of each round' in tables


def test_in_core_training_is_measured_with_autotune_too():
    rows = [row.asks for part, row in answers() if part.name == 'autotune']
    assert [(asks['policy'], asks['tf32'], asks['autotune']) for asks in rows] == [
        ('keep', False, True), ('keep', True, True)]


def test_pinned_memory_is_timed_or_the_file_says_why_not(first):
    rows = [row for row in part_of(first[0], 'link')['rows'] if row['row'] == 'host-alloc']
    assert [row['outcome'] for row in rows] == ['skipped']
    assert 'without a GPU' in rows[0]['reason']
    asked = [row.asks['nbytes'] for _, row in answers() if row.kind == 'host-alloc']
    assert asked == [GB, 8 * GB, 32 * GB]


def test_calls_for_chunks_are_timed_or_the_file_says_why_not(first):
    rows = part_of(first[0], 'chunks')['rows']
    assert [row['outcome'] for row in rows] == ['skipped']
    assert 'without a GPU' in rows[0]['reason']
    assert [row.asks['nbytes'] for _, row in answers() if row.kind == 'chunks'] == [2 << 20, 8 << 20, 32 << 20]


def test_the_command_compares_bits(first):
    rows = part_of(first[0], 'bits')['rows']
    assert [row['policy'] for row in rows] == ['swap-all', 'unified']
    assert all(row['equal'] and not row['different'] for row in rows)
    assert rows[0]['swapped_out_bytes'] > 0
    assert 'unified' in FULL.bits_policies


def test_figures_of_the_host_are_no_figures_of_a_gpu(first):
    figures, markdown, said, _ = first
    assert figures['device']['device'].startswith('host')
    assert 'No GPU was used' in markdown
    assert '/no-gpu-host' in said
    assert 'resnet-16-narrow, batches 16 4' in said
    assert 'resnet-16-narrow, batches 16 4' in markdown


def test_markdown_has_a_table_for_each_part_and_a_line_for_each_row(first, failing):
    for figures, markdown in (first[:2], failing[:2]):
        for part in figures['parts']:
            _, _, section = markdown.partition(f"## {part['title']}\n")
            lines = [line for line in section.partition('\n## ')[0].splitlines() if line.startswith('|')]
            assert len(lines) == 2 + len(part['rows'])
            assert len({line.count('|') for line in lines}) == 1, 'a cell breaks the table'
    assert 'ValueError: this row fails by intent' in failing[1]


def test_without_a_device_there_are_no_figures(tmp_path):
    done = called('--out', tmp_path / 'none', '--minutes', 1)
    assert done.returncode == 1
    assert 'no device answered' in done.stderr
    assert [each.name for each in (tmp_path / 'none').iterdir()] == ['log-all.txt'], 'which says why'


def test_an_unknown_part_is_refused_with_those_that_there_are(tmp_path):
    done = called('--device', 'host', '--parts', 'batch-7', '--out', tmp_path)
    assert done.returncode != 0
    assert 'no part is called batch-7' in done.stderr
    assert 'batch-16' in done.stderr


def wheel(folder):
    """The smallest wheel there is: a module that says where it was installed."""
    import zipfile
    about = 'carried_here-1.dist-info'
    with zipfile.ZipFile(folder / 'carried_here-1-py3-none-any.whl', 'w') as file:
        file.writestr('carried_here.py', '')
        file.writestr(f'{about}/METADATA', 'Metadata-Version: 2.1\nName: carried-here\nVersion: 1\n')
        file.writestr(f'{about}/WHEEL', 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
        file.writestr(f'{about}/RECORD', '')


def test_the_command_for_a_bare_machine_brings_its_packages_along(tmp_path):
    carried, python = tmp_path / 'carried', tmp_path / 'python'
    carried.mkdir()
    wheel(carried)
    (carried / 'nvidia_cudnn_frontend-1-cp27-cp27m-manylinux1_x86_64.whl').touch()  # for a GPU's machine
    python.write_text(f"""#!/bin/sh
        case "$2" in
            pip) exec {sys.executable} "$@";;
            *) {sys.executable} -c 'import carried_here; print(carried_here.__file__)' && exec {sys.executable} "$@";;
        esac""")
    python.chmod(0o755)
    done = subprocess.run(
        ['sh', str(PROGRAMME / 'bare.sh'), 'first', str(tmp_path / 'out'), '--device', 'host', '--parts', 'doctor'],
        env={**os.environ, 'PYTHON': str(python), 'CARRIED': str(carried), 'TMPDIR': str(tmp_path),
             'OMP_NUM_THREADS': '1'},
        capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    where = pathlib.Path(done.stdout.splitlines()[0])
    assert where.name == 'carried_here.py'
    assert not where.parent.exists(), 'it is removed again'
    assert part_of(figures_in(tmp_path / 'out')[0], 'doctor')['rows'][0]['can_train'] is True


def test_the_guide_has_the_commands_that_there_are():
    text = (ROOT / 'docs' / 'gpu.md').read_text()
    usage = subprocess.run(['sh', str(PROGRAMME / 'bare.sh')], capture_output=True, text=True, check=False)
    assert usage.returncode == 2
    for command in ('pack', 'first', 'second', 'tests'):
        assert f'benchmarks/gpu/bare.sh {command}' in usage.stderr
        assert f'benchmarks/gpu/bare.sh {command}' in text
    assert (PROGRAMME / 'bare.sh').read_text().count('--minutes 8.75') == 1


# --- what was seen on the way ----------------------------------------------------------------------------------------


def test_rows_that_fail_cost_themselves_alone_and_say_all_that_is_known(failing):
    rows = {row['row']: row for row in part_of(failing[0], 'self-test')['rows']}
    assert [row['outcome'] for row in rows.values()] == ['failed', 'failed', 'failed', 'done']
    assert rows['fails']['reason'] == 'ValueError: this row fails by intent'
    assert "in _fails" in rows['fails']['traceback']
    assert 'SIGABRT' in rows['crashes']['reason']
    assert 'Fatal Python error: Aborted' in rows['crashes']['last_words']
    assert rows['hangs']['reason'].startswith('given up after 1')
    assert 'in _hangs' in rows['hangs']['last_words'], 'where it hung'
    log = (failing[2] / 'log-all.txt').read_text()
    assert 'this row fails by intent' in log
    assert 'in _hangs' in log


def test_each_row_says_what_it_ran_on_and_how(first):
    rows = [row for part in first[0]['parts'] for row in part['rows']]
    for row in rows:
        assert row['evidence']['before']['host']['MemAvailable'] > 0
        assert isinstance(row['evidence']['warnings'], list)
    refused = part_of(first[0], 'batch-16')['rows'][0]
    assert 'in train' in refused['traceback'], 'a row that was refused, too'
    warm_up = part_of(first[0], 'link')['rows'][0]
    assert warm_up['evidence']['im2col']['im2col_cpu'] > 0, 'the host has no cuDNN'
    assert 'went through im2col' in first[1]


def test_kernels_are_kept_as_one_file_and_used_by_the_next_run(tmp_path, monkeypatch):
    from kernels import Kernels
    monkeypatch.delenv('CUPY_CACHE_DIR', raising=False)
    with Kernels(tmp_path, None) as kernels:
        folder = pathlib.Path(os.environ['CUPY_CACHE_DIR'])
        (folder / 'a.cubin').write_bytes(b'kernel')
        kernels.keep()
        assert (tmp_path / 'kernels.tar.gz').exists(), 'before the end, which may never come'
        (folder / 'b.cubin').write_bytes(b'another')
    assert 'CUPY_CACHE_DIR' not in os.environ
    assert not folder.exists()
    (tmp_path / 'next').mkdir()
    with Kernels(tmp_path / 'next', tmp_path / 'kernels.tar.gz'):
        found = {each.name: each.read_bytes() for each in pathlib.Path(os.environ['CUPY_CACHE_DIR']).iterdir()}
    assert found == {'a.cubin': b'kernel', 'b.cubin': b'another'}


def test_kernels_that_make_the_file_too_large_stay_behind(tmp_path, monkeypatch, capsys):
    import kernels
    monkeypatch.setattr(kernels, 'MOST_BYTES', 100_000)
    monkeypatch.setenv('CUPY_CACHE_DIR', str(tmp_path / 'cache'))
    with kernels.Kernels(tmp_path, None):
        for number in range(10):
            (tmp_path / 'cache' / f'{number}.cubin').write_bytes(os.urandom(30_000 + number))
    assert (tmp_path / 'kernels.tar.gz').stat().st_size < 110_000
    assert 'are left behind' in capsys.readouterr().out


# --- the programme ---------------------------------------------------------------------------------------------------


def parts(sizes=FULL, **more):
    return Programme('cuda', 16 * GB, sizes, **more).parts()


def answers(outcome='done', **more):
    """Every row of every part, where each ends with the same outcome."""
    for part in parts(**more):
        rows = part.rows()
        try:
            row = next(rows)
            while True:
                yield part, row
                row = rows.send({'outcome': outcome})
        except StopIteration:
            continue


def test_what_is_reserved_fits_each_command():
    for stage in STAGES:
        assert sum(part.reserved_seconds for part in chosen(parts(), None, stage)) <= 0.7 * 9 * 60


def test_the_programme_has_what_was_asked_for():
    asked = {(row.asks.get('network'), str(row.asks.get('batch')), row.asks.get('policy')) for _, row in answers()}
    for batch in ('640', '512', '384', '256', '128'):
        for policy in ('keep', 'pooch', 'vdnn++', 'window', 'sublinear'):
            assert ('resnet50', batch, policy) in asked
    assert {('resnet50', '640', 'swap-all'), ('resnet50', '640', 'superneurons'), ('resnet50', '128', 'plain')} <= asked
    for network, batch in (('alexnet', '2304'), ('alexnet', '2688'), ('googlenet_bn', '384'), ('googlenet_bn', '896'),
                           ('resnext3d', '(448, 224, 256)')):
        assert {(network, batch, 'keep'), (network, batch, 'pooch')} <= asked
    assert {row.asks['mode'] for _, row in answers() if row.kind == 'torch'} == {
        'in-core', 'checkpoint', 'save_on_cpu'}
    allocators = [row.asks for part, row in answers() if part.name == 'allocators']
    assert [each['allocator'] for each in allocators] == ['pool', 'virtual', 'async', 'unified']
    assert {each['batch'] for each in allocators} == {640}, 'where the budget binds'


def test_in_core_rows_have_no_budget_but_where_they_are_to_fail():
    for part, row in answers():
        if row.kind == 'training' and part.name != 'batch-640':
            assert (row.asks['budget_bytes'] is None) == (row.asks['policy'] in ('plain', 'keep'))
    assert {row.asks['budget_bytes'] for part, row in answers() if part.name == 'batch-640'} == {16 * GB}


def test_rows_settle_in_five_iterations_but_for_the_one_whose_times_the_others_find():
    assert {row.asks['settle'] for _, row in answers() if row.kind == 'training'} == {5, 9, 1}
    assert [row.asks['policy'] for _, row in answers() if row.asks.get('settle') == 9] == ['pooch']
    assert {part.name for part, row in answers() if row.asks.get('settle') == 1} == {'largest-batch', 'deepest'}


def test_rows_pin_three_quarters_of_the_memory_that_the_machine_is_said_to_have():
    limited = [row.asks for _, row in answers(host_limit_bytes=96 * GB) if row.kind == 'training']
    assert {each.get('host_limit_bytes') for each in limited if each['budget_bytes']} == {96 * GB}
    assert {each.get('host_limit_bytes') for each in limited if not each['budget_bytes']} == {None}


def test_rows_go_through_json_and_every_kind_is_known():
    kinds = pytest.importorskip('kinds').KINDS
    for part, row in answers():
        assert json.loads(json.dumps(dict(row.asks))) is not None
        assert row.kind in kinds
        assert part.kind in COLUMNS


def test_each_policy_of_the_programme_is_one_of_the_package():
    from chainer_ooc.classify.policies import POLICIES
    asked = {row.asks['policy'] for _, row in answers() if row.kind == 'training'}
    assert asked - set(POLICIES) == {'plain'}
    assert set(POLICIES) <= asked


def test_the_readme_names_each_part_with_its_stage():
    text = (PROGRAMME / 'README.md').read_text()
    for part in parts():
        row, = (line for line in text.splitlines() if line.startswith('|') and f'`{part.name}`' in line)
        assert f'| {part.stage or "self-test"} |' in row.replace('by name', 'self-test')


def test_names_of_parts_are_their_own():
    names = [part.name for part in parts()]
    assert len(names) == len(set(names))
