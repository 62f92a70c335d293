"""report: the files that it writes of a trace or of a run, and what it says of files that are neither."""
import json
import re
import subprocess
import sys
from pathlib import Path

import chainer_ooc  # noqa: F401  before chainer

# isort: split
import pytest

from chainer_ooc.report import contents
from support.command_line import BARE, run, run_json
from support.planning.drawn_run import run_of
from support.planning.drawn_trace import MB, TRACE

ROOT = Path(__file__).resolve().parent.parent
NUMBERS = re.compile('<script type="application/json" id="numbers">(.*?)</script>', re.DOTALL)


@pytest.fixture
def trace(tmp_path):
    (tmp_path / 'trace.json').write_text(TRACE.to_json())
    return str(tmp_path / 'trace.json')


@pytest.fixture
def ran(tmp_path):
    (tmp_path / 'run.json').write_text(run_of().to_json())
    return str(tmp_path / 'run.json')


@pytest.fixture
def out(tmp_path):
    return tmp_path / 'report.html'


def numbers(page):
    return json.loads(NUMBERS.search(page.read_text(encoding='utf-8')).group(1))


def test_a_trace_gives_a_page_and_a_table(capsys, trace, out):
    status, text, err = run(capsys, 'report', trace, '-o', str(out), '--policy', 'swap-all', '--budgets', '9MB,13MB')
    assert (status, err) == (0, '')
    assert text.splitlines()[0] == 'swap-all'
    assert text.split()[-3:] == ['written', 'to', str(out)]
    found = numbers(out)
    assert (found['title'], found['policy'], found['measured']) == ('trace', 'swap-all', None)
    assert [each['budget_bytes'] for each in found['courses']] == [9 * MB, 13 * MB]


def test_json_has_each_budget_and_the_files(capsys, trace, out):
    found = run_json(capsys, 'report', trace, '-o', str(out), '--policy', 'swap-all', '--budget', '9MB')
    assert found['files'] == [str(out)]
    assert found['rows'][found['shown']]['budget_bytes'] == 9 * MB
    assert {'seconds', 'lower_bound_seconds', 'gap', 'peak_bytes', 'stall_seconds', 'keep', 'swap', 'recompute'} <= set(
        found['rows'][0])


def test_a_run_is_shown_under_its_own_plan_with_what_was_measured(capsys, ran, out):
    found = run_json(capsys, 'report', ran, '-o', str(out))
    assert (found['policy'], found['measured_seconds'], found['measured_peak_bytes']) == ('swap-all', 6.5, 8 * MB)
    assert found['rows'][found['shown']]['budget_bytes'] == 9 * MB
    assert numbers(out)['measured']['seconds'] == 6.5


def test_a_run_under_another_budget_has_nothing_measured_beside_it(capsys, ran, out):
    assert run_json(capsys, 'report', ran, '-o', str(out), '--budget', '11MB')['measured_seconds'] is None


def test_a_run_has_nothing_measured_beside_the_plan_of_another_policy(capsys, ran, out):
    found = run_json(capsys, 'report', ran, '-o', str(out), '--policy', 'keep', '--budgets', '13MB')
    assert found['measured_seconds'] is None


@pytest.mark.usefixtures('matplotlib')
def test_perfetto_and_png_go_to_files_of_their_own(capsys, trace, out, tmp_path):
    events, picture = tmp_path / 'trace.perfetto', tmp_path / 'still.png'
    found = run_json(capsys, 'report', trace, '-o', str(out), '--policy', 'keep', '--budgets', '13MB', '--perfetto',
                     str(events), '--png', str(picture))
    assert found['files'] == [str(out), str(events), str(picture)]
    assert b'copies out' in events.read_bytes()
    assert picture.read_bytes()[:4] == b'\x89PNG'


def test_without_matplotlib_png_says_how_to_get_it(capsys, trace, out, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, 'matplotlib.figure', None)
    status, _, err = run(capsys, 'report', trace, '-o', str(out), '--policy', 'keep', '--budgets', '13MB', '--png',
                         str(tmp_path / 'still.png'))
    assert status == 1
    assert re.fullmatch(r"error: drawing needs matplotlib, .*pip install 'chainer-ooc\[examples\]'.*\n", err)


def test_it_needs_no_chainer(trace, out):
    command = [sys.executable, '-c', BARE, 'report', trace, '-o', str(out), '--policy', 'keep', '--budgets', '13MB']
    done = subprocess.run(command, text=True, capture_output=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, '')


@pytest.mark.parametrize(('content', 'message'), [
    ('', 'no JSON'), ('{}', 'the key "format" is not'), ('\x80', 'it is no text'),
    ('{"format": "chainer_ooc run", "version": 9}', 'run of version 9, this release reads 1; let it run again'),
    ('{"format": "chainer_ooc run", "version": 1}', 'not a trace'),
    (run_of().to_json().replace('"copy-out", 1,', '"copy-out", 7,'), 'tasks, row 6, subject: 7 is no feature map'),
    (run_of().to_json().replace('"swap-in"]', '"patience"]'), "stalls, row 0, cause: 'patience' is none of swap-in"),
    (run_of().to_json().replace('"near_bytes": [3000000, ', '"near_bytes": ['), 'near_bytes: 5 values for 6 positions'),
])
def test_what_is_neither_is_said_in_one_line(capsys, tmp_path, out, content, message):
    file = tmp_path / 'some.json'
    file.write_text(content, encoding='latin-1')
    status, text, err = run(capsys, 'report', str(file), '-o', str(out))
    assert (status, text) == (1, '')
    assert err.startswith(f'error: cannot read the trace or run {file}: ') and err.count('\n') == 1
    assert message in err
    assert not out.exists()


@pytest.mark.parametrize(('given', 'status', 'message'), [
    (['--budget', '8MB'], 1, 'raise --budget, choose another policy'),
    (['--budgets', '13MB,8MB'], 1, 'raise --budgets, choose another policy'),
    (['-o', '/dev/full'], 1, 'cannot write to /dev/full: No space left on device; name another file'),
    (['-o', '/'], 1, 'cannot write to /: Is a directory'),
    (['--perfetto', '/nowhere/file'], 1, 'there is no folder /nowhere'),
    (['--png', 'still.docx'], 1, "cannot write to still.docx: Format 'docx' is not supported"),
    (['--policy', 'Pooch'], 2, "did you mean 'pooch'?"),
])
def test_what_cannot_be_done_is_said_in_one_line(capsys, trace, out, given, status, message):
    if '--png' in given:
        pytest.importorskip('matplotlib')
    found, _, err = run(capsys, 'report', trace, '-o', str(out), '--policy', 'swap-all', '--budgets', '13MB', *given)
    assert (found, err.count('\n')) == (status, 1)
    assert message in err


@pytest.mark.parametrize('given', [['--machine', 'v100-pcie3'], ['--batch', '64']])
def test_a_run_is_of_its_own_machine_and_batch(capsys, ran, out, given):
    status, _, err = run(capsys, 'report', ran, '-o', str(out), *given)
    assert status == 2
    assert 'a run is of its own machine and batch' in err
    assert not out.exists()


@pytest.mark.parametrize('given', [['-o', 'run.json'], ['-o', 'page', '--perfetto', './page'], ['--png', 'run.json']])
def test_no_file_takes_the_place_of_another(capsys, ran, tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    before = Path(ran).read_bytes()
    status, _, err = run(capsys, 'report', ran, *given)
    assert (status, Path(ran).read_bytes()) == (2, before)
    assert f'{given[-1].removeprefix("./")} is named twice' in err and err.count('\n') == 1


def test_a_folder_is_no_trace(capsys, tmp_path, out):
    status, _, err = run(capsys, 'report', str(tmp_path), '-o', str(out))
    assert status == 1
    assert err.startswith(f'error: cannot read the trace or run {tmp_path}: Is a directory')


def test_the_page_of_resnet50_is_small_and_needs_no_scipy(capsys, tmp_path, out, monkeypatch):
    """Its size grows with the number of calls and maps, not with theirs."""
    monkeypatch.setattr(contents, 'known_bound', lambda problem: None)
    file = tmp_path / 'resnet50.json'
    command = [sys.executable, '-m', 'chainer_ooc', 'profile', 'resnet50', '--batchsize', '2', '--insize', '64',
               '--workspace', '32MB', '--save', str(file)]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    run_json(capsys, 'report', str(file), '-o', str(out), '--policy', 'swap-all', '--min-bytes', '0')
    assert [each['bound_seconds'] for each in numbers(out)['courses']] == [None] * 7
    assert 100_000 < out.stat().st_size < 400_000
