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

if str(PROGRAMME) not in sys.path:
    sys.path.append(str(PROGRAMME))
from conduct import GIVE_UP, GIVE_UP_SECONDS, Clock, Conductor  # noqa: E402
from programme import STAGES, Part, Programme, Row  # noqa: E402
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
        'doctor', 'link', 'in-core', 'batch-16', 'bits', 'in-core-16']
    assert [part.name for part in chosen(parts(), None, 'first')] == [
        'doctor', 'link', 'in-core', 'batch-640', 'bits', 'in-core-640']


def test_all_that_the_first_command_leaves_is_in_one_folder(first):
    assert sorted(each.name.partition('-')[0] for each in first[3].iterdir()) == ['log', 'no', 'no']
    assert 'row: training' in (first[3] / 'log-first.txt').read_text()


def test_keep_is_refused_within_the_budget_and_three_policies_train(first):
    rows = {row['policy']: row for row in part_of(first[0], 'batch-16')['rows']}
    assert list(rows) == ['keep', 'pooch', 'swap-all', 'superneurons']
    assert rows['keep']['outcome'] == 'refused'
    assert rows['keep']['floor_bytes'] > rows['keep']['budget_bytes']
    trained = [row for name, row in rows.items() if name != 'keep']
    assert [row['outcome'] for row in trained] == ['done'] * 3
    assert all(len(row['all_seconds']) == SMALL.iterations for row in trained)
    assert all(len(row['settle_seconds']) == 5 for row in trained)
    assert [row['phases'] for row in trained] == [['run']] * 3
    assert [row['plans'] for row in trained] == [1] * 3, 'nothing is planned while it times'
    assert rows['swap-all']['swapped_out_bytes'] > rows['pooch']['swapped_out_bytes'] > 0


def test_rows_of_one_network_share_a_process_though_one_was_refused(first):
    rows = part_of(first[0], 'batch-16')['rows']
    assert [row['fresh_process'] for row in rows] == [False] * 4
    assert [row['faults'] for row in rows[1:]] == [0] * 3, 'the parameters of a row before would count beside its own'


def test_in_core_rows_are_with_and_without_tf32_and_beside_plain_chainer(first):
    rows = part_of(first[0], 'in-core')['rows']
    assert [(row['policy'], row['tf32'], row['outcome']) for row in rows] == [
        ('keep', False, 'done'), ('keep', True, 'done'), ('plain', False, 'done')]
    row = part_of(first[0], 'batch-16')['rows'][1]
    beside = part_of(first[0], 'in-core-16')['rows'][0]
    assert row['overhead'] == pytest.approx(row['seconds'] / beside['seconds'] - 1)
    assert row['of_in_core_rate'][1] == 16


def test_pinned_memory_is_timed_or_the_file_says_why_not(first):
    rows = [row for row in part_of(first[0], 'link')['rows'] if row['row'] == 'host-alloc']
    assert [row['outcome'] for row in rows] == ['skipped']
    assert 'without a GPU' in rows[0]['reason']
    asked = [row.asks['nbytes'] for _, row in answers() if row.kind == 'host-alloc']
    assert asked == [GB, 8 * GB, 32 * GB]


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


def test_rows_settle_in_five_iterations():
    assert {row.asks['settle'] for _, row in answers() if row.kind == 'training'} == {5, 1}
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


# --- the clock -------------------------------------------------------------------------------------------------------


class Hands:
    """A clock that is set by hand, and a worker that moves it.

    Args:
        seconds_a_row: in a process that runs; a function of the asks, or a number.
        start_seconds: of a process.
        outcome: of each row.
    """

    def __init__(self, seconds_a_row=5.0, outcome='done', start_seconds=0.0):
        self.seconds = 0.0
        self.seconds_a_row, self.outcome, self.start_seconds = seconds_a_row, outcome, start_seconds
        self.limits, self.runs = [], False

    def now(self):
        return self.seconds

    def starts(self, alone):
        return alone or not self.runs

    def ask(self, kind, asks, most_seconds, *, alone=False):
        self.limits.append(most_seconds)
        fresh, self.runs = self.starts(alone), not alone
        took = self.seconds_a_row(asks) if callable(self.seconds_a_row) else self.seconds_a_row
        whole = took + self.start_seconds * fresh
        self.seconds += min(whole, most_seconds)
        if whole > most_seconds:
            self.runs = False
            return {'outcome': 'failed', 'reason': 'given up', 'row_seconds': most_seconds, 'fresh_process': fresh}
        return {'outcome': self.outcome, 'row_seconds': whole, 'fresh_process': fresh,
                'start_seconds': self.start_seconds * fresh}


def some(count, name='part', reserved=0.0, **row):
    def rows():
        for number in range(count):
            yield Row(kind='works', asks={'number': number}, like='works', **{'expected_seconds': 10.0,
                                                                              'start_seconds': 0.0, **row})
    return Part(name=name, title=name, kind='self-test', stage='first', rows=rows, reserved_seconds=reserved)


def conducted(parts, seconds, hands, host_bytes=10**12):
    noted = []
    conductor = Conductor(hands, Clock(seconds, hands.now), host_bytes,
                          lambda so_far: noted.append([len(part['rows']) for part in so_far]))
    return conductor.conduct(parts), noted


def test_a_row_that_cannot_be_expected_to_end_is_dropped_and_a_shorter_one_runs():
    hands = Hands(seconds_a_row=20.0)
    done, _ = conducted([some(2, 'a', expected_seconds=20), some(1, 'b', expected_seconds=5)], 35, hands)
    assert [[row['outcome'] for row in part['rows']] for part in done] == [['done', 'dropped'], ['dropped']]
    assert done[0]['rows'][1]['reason'] == (
        'it would take about 24 s (by what rows alike took here), and 15 s were left for it')
    assert hands.seconds == 20


def test_the_first_row_is_measured_and_the_others_are_expected_to_take_as_long():
    hands = Hands(seconds_a_row=30.0)
    part, = conducted([some(5, expected_seconds=5)], 100, hands)[0]
    # 5 s were stated, and 25 s are what it may take; 30 s fail. Nothing is known then but what was stated.
    assert [row['outcome'] for row in part['rows']][:1] == ['failed']
    hands = Hands(seconds_a_row=20.0)
    part, = conducted([some(6, expected_seconds=5)], 100, hands)[0]
    assert [row['outcome'] for row in part['rows']] == ['done'] * 4 + ['dropped'] * 2
    assert part['rows'][1]['expected_seconds'] == 24.0


def test_rows_of_another_batch_are_expected_in_proportion():
    """Twice as slow as stated at batch 128: so at 640 too."""
    programme = Programme('cuda', 16 * GB, FULL)
    rows = [programme.training('resnet50', batch, 'keep') for batch in (128, 640)]
    stated = [row.expected_seconds + row.start_seconds for row in rows]
    part = Part(name='a', title='a', kind='training', stage='first', rows=lambda: (row for row in rows))
    hands = Hands(seconds_a_row=2 * stated[0])
    done, = conducted([part], 10**4, hands)[0]
    assert done['rows'][1]['expected_seconds'] == pytest.approx(2 * rows[1].expected_seconds)


def test_a_row_in_a_process_that_runs_is_spared_the_start_and_the_first_iterations():
    from costs import SLACK, Costs
    row = Row(kind='training', like='a', expected_seconds=50, start_seconds=10)
    costs = Costs()
    costs.note(row, {'outcome': 'done', 'row_seconds': 80.0, 'fresh_process': True, 'start_seconds': 8.0,
                     'seconds': 2.0, 'settle_seconds': [32.0, 12.0, 2.0, 2.0, 2.0]})
    assert costs.expected(row, fresh=False)[0] == pytest.approx(SLACK * (80 - 8 - 30 - 10))
    assert costs.expected(row, fresh=True)[0] == pytest.approx(SLACK * 80)


def test_time_is_kept_for_the_parts_that_reserved_some():
    hands = Hands(seconds_a_row=10.0)
    done, _ = conducted([some(9, 'a'), some(2, 'b', reserved=30.0), some(9, 'c')], 100, hands)
    assert [[row['outcome'] for row in part['rows']].count('done') for part in done] == [6, 2, 1]


def test_a_row_that_takes_far_longer_than_expected_is_given_up():
    hands = Hands(seconds_a_row=1000.0)
    conducted([some(2)], 500, hands)
    assert hands.limits == [GIVE_UP * 10 + GIVE_UP_SECONDS] * 2


def test_rows_that_need_more_of_the_host_than_there_is_are_dropped():
    part, = conducted([some(1, host_bytes=154 * GB)], 100, Hands(), host_bytes=137 * GB)[0]
    assert part['rows'][0]['reason'] == 'it needs 154 GB of the host, which has 137 GB (--host-memory)'
    largest = next(row for part, row in answers('failed') if part.name == 'largest-batch')
    assert largest.host_bytes == pytest.approx(640 * 80.1e6)


@pytest.mark.parametrize('seconds_a_row', [1.0, 7.0, 40.0, 1000.0])
@pytest.mark.parametrize('stage', [*STAGES, None])
def test_the_programme_ends_in_its_time_whatever_rows_do(stage, seconds_a_row):
    hands = Hands(seconds_a_row, start_seconds=5.0)
    everything = chosen(Programme('cuda', 16 * GB, FULL).parts(), None, stage)
    done, _ = conducted(everything, 530, hands)
    assert hands.seconds <= 530
    assert [part['name'] for part in done] == [part.name for part in everything]
    assert all(part['rows'] for part in done), 'what did not run says why'


def test_a_pooch_row_of_70_s_leaves_time_for_the_others_of_the_first_command():
    """What was guessed of a card: 70 s for the first row out-of-core, which pins, and 25 s for those after it."""
    pinned = []

    def seconds(asks):
        if asks.get('batch') != 640 or asks.get('budget_bytes') is None:
            return 12.0
        pinned.append(asks['policy'])
        return 70.0 if len(pinned) == 1 else 25.0

    hands = Hands(seconds, start_seconds=10.0)
    done, _ = conducted(chosen(Programme('cuda', 16 * GB, FULL).parts(), None, 'first'), 530, hands)
    assert {row['outcome'] for part in done for row in part['rows']} == {'done'}


def test_results_are_noted_after_each_row():
    _, noted = conducted([some(2, 'a'), some(1, 'b', expected_seconds=500), some(1, 'c')], 100, Hands())
    assert noted == [[1], [2], [2], [2, 1], [2, 1], [2, 1, 1], [2, 1, 1]]


# --- the pace of a row -----------------------------------------------------------------------------------------------


def paced(seconds_each, until, settle=5, iterations=5, noted=None):
    """Settled and timed iterations of a row that has so many seconds."""
    from contextlib import nullcontext

    from pace import Pace
    clock = [0.0]
    each = iter(seconds_each)

    def iterate():
        took = next(each)
        clock[0] += took
        return took

    noted = {} if noted is None else noted
    settled, timed = Pace(until, lambda: clock[0]).run(
        iterate, settle, iterations, nullcontext(), lambda name, value: noted.update({name: list(value)}))
    return len(settled), len(timed)


def test_a_row_with_time_runs_all_its_iterations():
    assert paced([30, 9] + [2] * 20, 100) == (5, 5)


def test_a_row_that_is_short_of_time_runs_fewer_that_count():
    assert paced([30, 9] + [2] * 20, 54) == (5, 3)


def test_a_row_that_cannot_end_stops_when_it_knows_and_keeps_what_it_measured():
    from pace import OutOfTimeError
    noted = {}
    with pytest.raises(OutOfTimeError, match=r'6 iterations of 10.00 s or more were to come after 3, and 30 s'):
        paced([10] * 20, 60, noted=noted)
    assert noted['settle_seconds'] == [10, 10, 10]
    assert OutOfTimeError.outcome == 'dropped'


def test_a_first_iteration_that_compiles_does_not_end_a_row():
    assert paced([50, 5] + [1] * 20, 70) == (5, 5)
