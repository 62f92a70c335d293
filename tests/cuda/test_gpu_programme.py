"""The GPU programme without a GPU: its command on the host, what it asks for, and its clock.

Figures are not tested, as times are not. What must hold is that no row takes another one with it, that nothing that was
asked for is missing from the files, and that no figure stands under a name that no device gave.
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
from conduct import Clock, conduct  # noqa: E402
from programme import FULL, SMALL, Part, Programme, Row  # noqa: E402
from run import chosen, stretch  # noqa: E402
from tables import COLUMNS  # noqa: E402

GB = 10**9


def called(*arguments, timeout=240):
    """The real command, in a process of its own."""
    environment = {**os.environ, 'OMP_NUM_THREADS': '1', 'CUDA_VISIBLE_DEVICES': ''}
    return subprocess.run([sys.executable, str(PROGRAMME / 'run.py'), *map(str, arguments)], cwd=ROOT, timeout=timeout,
                          env=environment, capture_output=True, text=True, check=False)


def files_in(folder):
    """The JSON and the Markdown of a folder that has nothing else in it."""
    found = sorted(folder.iterdir())
    assert [each.suffix for each in found] == ['.json', '.md']
    return json.loads(found[0].read_text()), found[1].read_text()


@pytest.fixture(scope='module')
def trial(tmp_path_factory):
    """One call of the command, whose files several tests look at."""
    folder = tmp_path_factory.mktemp('trial')
    done = called('--device', 'host', '--sizes', 'small', '--budget', '60MB', '--minutes', 3, '--out', folder,
                  '--parts', 'self-test', 'bits', 'batch-4')
    assert done.returncode == 0, done.stderr
    return (*files_in(folder), done.stdout)


def part_of(figures, name):
    return next(part for part in figures['parts'] if part['name'] == name)


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_trains_each_policy(trial):
    rows = {row['policy']: row for row in part_of(trial[0], 'batch-4')['rows']}
    assert list(rows) == ['keep', 'pooch', 'swap-all', 'plain']
    assert {row['outcome'] for row in rows.values()} == {'done'}
    assert all(len(row['all_seconds']) == SMALL.iterations for row in rows.values())
    assert rows['swap-all']['swapped_out_bytes'] > 0
    assert rows['swap-all']['phases'] == ['run']
    assert rows['swap-all']['overhead'] == pytest.approx(rows['swap-all']['seconds'] / rows['keep']['seconds'] - 1)
    assert 'overhead' not in rows['keep']


def test_the_command_compares_bits(trial):
    row, = part_of(trial[0], 'bits')['rows']
    assert row['equal'] and not row['different']
    assert row['swapped_out_bytes'] > 0


def test_rows_that_fail_cost_themselves_alone(trial):
    rows = {row['row']: row for row in part_of(trial[0], 'self-test')['rows']}
    assert [row['outcome'] for row in rows.values()] == ['failed', 'failed', 'failed', 'done']
    assert rows['fails']['reason'] == 'ValueError: this row fails by intent'
    assert 'SIGABRT' in rows['crashes']['reason']
    assert rows['hangs']['reason'] == 'given up after 3 s'


def test_parts_run_in_the_order_of_the_programme(trial):
    assert [part['name'] for part in trial[0]['parts']] == ['batch-4', 'bits', 'self-test']


def test_markdown_has_a_table_for_each_part_and_a_line_for_each_row(trial):
    figures, markdown, _ = trial
    for part in figures['parts']:
        _, _, section = markdown.partition(f"## {part['title']}\n")
        lines = [line for line in section.partition('\n## ')[0].splitlines() if line.startswith('|')]
        assert len(lines) == 2 + len(part['rows'])
        assert len({line.count('|') for line in lines}) == 1, 'a cell breaks the table'
    assert 'ValueError: this row fails by intent' in markdown


def test_figures_of_the_host_are_no_figures_of_a_gpu(trial, tmp_path):
    figures, markdown, said = trial
    assert figures['device']['device'].startswith('host')
    assert 'No GPU was used' in markdown
    assert '/no-gpu-host' in said


def test_without_a_device_there_is_no_file(tmp_path):
    done = called('--out', tmp_path / 'none', '--minutes', 1)
    assert done.returncode == 1
    assert 'no device answered' in done.stderr
    assert not (tmp_path / 'none').exists()


def test_an_unknown_part_is_refused_with_those_that_there_are(tmp_path):
    done = called('--device', 'host', '--parts', 'batch-7', '--out', tmp_path)
    assert done.returncode != 0
    assert 'no part is called batch-7' in done.stderr
    assert 'batch-640' in done.stderr


# --- the programme ---------------------------------------------------------------------------------------------------


def parts(sizes=FULL):
    return Programme('cuda', 16 * GB, sizes).parts()


def answers(outcome='done'):
    """Every row of every part, where each ends with the same outcome."""
    for part in parts():
        rows = part.rows()
        try:
            row = next(rows)
            while True:
                yield part, row
                row = rows.send({'outcome': outcome})
        except StopIteration:
            continue


def test_the_parts_that_eight_minutes_are_for_fit_in_them():
    extra = [part.name.startswith('policies-') or part.on_request for part in parts()]
    assert sum(part.most_seconds for part, is_extra in zip(parts(), extra, strict=True) if not is_extra) <= 8 * 60
    assert extra == sorted(extra), 'they come last'


def test_the_programme_has_what_was_asked_for():
    asked = {(row.asks.get('network'), str(row.asks.get('batch')), row.asks.get('policy')) for _, row in answers()}
    for batch in ('640', '512', '384', '256', '128'):
        for policy in ('plain', 'keep', 'pooch', 'swap-all', 'superneurons', 'vdnn++', 'window', 'sublinear'):
            assert ('resnet50', batch, policy) in asked
    for network, batch in (('alexnet', '2304'), ('alexnet', '2688'), ('googlenet_bn', '384'), ('googlenet_bn', '896'),
                           ('resnext3d', '(448, 224, 256)')):
        assert {(network, batch, 'keep'), (network, batch, 'pooch')} <= asked
    assert {row.asks['mode'] for _, row in answers() if row.kind == 'torch'} == {
        'in-core', 'checkpoint', 'save_on_cpu'}
    assert {row.asks['allocator'] for _, row in answers() if row.asks.get('allocator')} == {
        'pool', 'virtual', 'async', 'unified'}


def test_in_core_rows_have_no_budget_and_a_process_of_their_own():
    for _, row in answers():
        if row.kind == 'training':
            in_core = row.asks['policy'] in ('plain', 'keep')
            assert (row.asks['budget_bytes'] is None) == in_core
            assert row.alone or not in_core


def test_rows_go_through_json_and_every_kind_is_known():
    kinds = pytest.importorskip('kinds').KINDS
    for part, row in answers():
        assert json.loads(json.dumps(dict(row.asks))) is not None
        assert row.kind in kinds
        assert part.kind in COLUMNS


def test_each_policy_of_the_programme_is_one_of_the_package_or_to_come():
    from chainer_ooc.classify.policies import POLICIES
    asked = {row.asks['policy'] for _, row in answers() if row.kind == 'training'}
    assert asked - set(POLICIES) <= {'plain', 'auto'}
    assert set(POLICIES) - asked <= {'unified'}, 'managed memory is a row among the allocators'


def test_the_readme_states_each_part_with_its_seconds():
    text = (PROGRAMME / 'README.md').read_text()
    for part in parts():
        row, = (line for line in text.splitlines() if line.startswith('|') and f'`{part.name}`' in line)
        assert f'{part.most_seconds:.0f} s' in row


@pytest.mark.parametrize('names', [['policies'], ['bits', 'torch'], None])
def test_few_parts_may_use_all_the_time(names):
    everything = chosen(parts(), names)
    hands = Hands(seconds_a_row=10**9)
    times = stretch(everything, 480)
    done, _ = conducted(everything, 480, hands, times)
    assert times == 1 if names is None else times > 1
    assert names is None or {part['state'] for part in done} == {'done'}
    assert hands.seconds <= 480


def test_names_of_parts_are_their_own():
    names = [part.name for part in parts()]
    assert len(names) == len(set(names))


# --- the clock -------------------------------------------------------------------------------------------------------


class Hands:
    """A clock that is set by hand, and a worker that moves it."""

    def __init__(self, seconds_a_row=5.0, outcome='done'):
        self.seconds = 0.0
        self.seconds_a_row, self.outcome = seconds_a_row, outcome
        self.limits = []

    def now(self):
        return self.seconds

    def ask(self, kind, asks, most_seconds, *, alone=False):
        self.limits.append(most_seconds)
        if self.seconds_a_row > most_seconds:
            self.seconds += most_seconds
            return {'outcome': 'failed', 'reason': 'given up'}
        self.seconds += self.seconds_a_row
        return {'outcome': self.outcome}


def some(count, most_seconds, name='part', row_seconds=10.0):
    def rows():
        for number in range(count):
            yield Row(kind='works', asks={'number': number}, most_seconds=row_seconds)
    return Part(name=name, title=name, kind='self-test', most_seconds=most_seconds, rows=rows)


def conducted(parts, seconds, hands, stretch=1.0):
    noted = []
    done = conduct(parts, hands, Clock(seconds, hands.now), stretch,
                   lambda so_far: noted.append([len(part['rows']) for part in so_far]))
    return done, noted


def test_a_part_that_may_take_longer_than_is_left_is_left_out_and_a_shorter_one_runs():
    hands = Hands()
    done, _ = conducted([some(4, 30, 'a'), some(1, 50, 'b'), some(1, 10, 'c')], 40, hands)
    assert [part['state'] for part in done] == ['done', 'left out', 'done']
    assert done[1]['reason'] == 'it may take 50 s and 20 s were left; run again with --parts b'
    assert done[1]['rows'] == []


def test_rows_that_a_part_has_no_time_for_are_rows_with_that_reason():
    hands = Hands(seconds_a_row=6.0)
    part, = conducted([some(4, 13)], 100, hands)[0]
    assert [row['outcome'] for row in part['rows']] == ['done', 'done', 'not run', 'not run']
    assert part['rows'][2] == {'row': 'works', 'number': 2, 'outcome': 'not run', 'reason': "the part's 13 s were over"}


def test_a_row_gets_no_more_than_its_part_has_left():
    hands = Hands(seconds_a_row=6.0)
    conducted([some(3, 15)], 100, hands)
    assert hands.limits == [10, 9, 3]
    assert hands.seconds == 15


@pytest.mark.parametrize('seconds_a_row', [1.0, 7.0, 1000.0])
def test_the_programme_ends_in_its_time_whatever_rows_do(seconds_a_row):
    hands = Hands(seconds_a_row)
    everything = Programme('cuda', 16 * GB, FULL).parts()
    done, _ = conducted(everything, 480, hands)
    assert hands.seconds <= 480
    assert [part['name'] for part in done] == [part.name for part in everything]


def test_more_minutes_stretch_parts_and_rows():
    hands = Hands(seconds_a_row=15.0)
    part, = conducted([some(2, 20)], 1000, hands, stretch=2.0)[0]
    assert [row['outcome'] for row in part['rows']] == ['done', 'done']
    assert hands.limits == [20, 20]


def test_results_are_noted_after_each_row():
    _, noted = conducted([some(2, 50, 'a'), some(1, 500, 'b'), some(1, 20, 'c')], 100, Hands())
    assert noted == [[1], [2], [2], [2, 0], [2, 0, 1], [2, 0, 1]]
