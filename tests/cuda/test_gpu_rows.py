"""Rows of the GPU programme in processes that crash or hang, and the files that they end up in."""
import pathlib
import sys
import textwrap
import time

import pytest

from processes import OWN_MARGIN_SECONDS, Worker
from results import Files
from searches import largest
from tables import with_comparisons

GB = 10**9
DEVICE = {'device': 'NVIDIA Imagined 9000', 'is_gpu': True}


# --- processes -------------------------------------------------------------------------------------------------------


@pytest.fixture
def worker(tmp_path):
    """A worker whose process says its number, and can be told to die in several ways."""
    script = tmp_path / 'script.py'
    script.write_text(textwrap.dedent("""\
        import json, os, pathlib, subprocess, sys, time
        out = int(sys.argv[1])
        for line in sys.stdin:
            row = json.loads(line)
            print('noise that is no answer', flush=True)
            if row['kind'] == 'exit':
                sys.exit('the last word')
            if row['kind'] == 'silence':
                child = subprocess.Popen(['sleep', '60'], pass_fds=(out,))
                pathlib.Path(__file__).with_name('child').write_text(str(child.pid))
                time.sleep(60)
            if row['kind'] == 'half':
                os.write(out, b'{"outcome": "do')
                os._exit(3)
            outcome = 'failed' if row['kind'] == 'failure' else 'done'
            os.write(out, json.dumps({'outcome': outcome, 'process': os.getpid(), **row['asks']}).encode() + b'\\n')
        """))
    with Worker([sys.executable, str(script)]) as made:
        yield made


def test_rows_share_a_process_until_one_asks_to_be_alone(worker):
    first, second, alone, after = (worker.ask('row', {}, 20, alone=alone)['process']
                                   for alone in (False, False, True, False))
    assert first == second
    assert len({first, alone, after}) == 3


@pytest.mark.parametrize('outcome', ['refused', 'dropped', 'skipped'])
def test_a_row_that_ended_well_without_figures_leaves_its_process_to_the_next(worker, outcome):
    before = worker.ask('row', {}, 20)
    refused = worker.ask('row', {'outcome': outcome}, 20)
    after = worker.ask('row', {}, 20)
    assert (refused['outcome'], before['process']) == (outcome, after['process'])
    assert [row['fresh_process'] for row in (before, refused, after)] == [True, False, False]


def test_what_processes_print_is_kept_one_after_the_other(tmp_path, worker):
    log = tmp_path / 'log.txt'
    with Worker(worker._command, log) as kept:
        kept.ask('exit', {}, 20)
        assert kept.ask('exit', {}, 20)['last_words'].count('the last word') == 1
    assert log.read_text().count('the last word') == 2


def test_a_row_knows_when_it_has_to_be_over(tmp_path):
    script = tmp_path / 'script.py'
    script.write_text('import json, os, sys, time\nfor line in sys.stdin:\n'
                      '    left = json.loads(line)["until"] - time.monotonic()\n'
                      '    os.write(int(sys.argv[1]), json.dumps({"outcome": "done", "left": left}).encode() + b"\\n")')
    with Worker([sys.executable, str(script)]) as made:
        assert 15 < made.ask('row', {}, 20)['left'] < 20 - OWN_MARGIN_SECONDS


@pytest.mark.parametrize(('kind', 'reason'), [
    ('exit', 'the process died (exit status 1): the last word'), ('half', 'the process died (exit status 3)')])
def test_a_death_is_a_reason_and_the_next_row_runs(worker, kind, reason):
    found = worker.ask(kind, {}, 20)
    assert found['outcome'] == 'failed'
    assert found['reason'].startswith(reason)
    assert worker.ask('row', {'figure': 7}, 20)['figure'] == 7


def test_a_process_whose_row_failed_is_not_used_again(worker):
    before = worker.ask('row', {}, 20)['process']
    assert worker.ask('failure', {}, 20)['process'] == before
    assert worker.ask('row', {}, 20)['process'] != before


def test_a_hang_ends_in_time_with_all_that_it_started(worker, tmp_path):
    began = time.monotonic()
    found = worker.ask('silence', {}, 1.5)
    assert found['reason'] == 'given up after 2 s'
    assert time.monotonic() - began < 10
    assert not runs((tmp_path / 'child').read_text())
    assert worker.ask('row', {}, 20)['outcome'] == 'done'


def runs(number):
    """Whether a process is there and no zombie, a moment later at the latest."""
    for _ in range(50):
        try:
            state = pathlib.Path(f'/proc/{number}/stat').read_text().rpartition(')')[2].split()[0]
        except FileNotFoundError:
            return False
        if state in 'ZX':
            return False
        time.sleep(0.02)
    return True


def test_closing_leaves_no_process(worker):
    number = worker.ask('row', {}, 20)['process']
    worker.close()
    worker.close()
    assert not runs(number)


# --- results ---------------------------------------------------------------------------------------------------------


def row_of(policy, seconds, **more):
    return {'row': 'training', 'network': 'n', 'batch': 4, 'policy': policy, 'outcome': 'done', 'seconds': seconds,
            **more}


def test_overhead_is_beside_keep_of_the_same_network_and_batch():
    part = {'rows': [row_of('keep', 2.0), row_of('pooch', 3.0), row_of('pooch', 9.0, batch=8),
                     {**row_of('lms', 1.0), 'outcome': 'failed'}, row_of('keep', 4.0, budget_bytes=GB)]}
    rows = with_comparisons([part])[0]['rows']
    assert [row.get('overhead') for row in rows] == [None, 0.5, None, None, 1.0]


def test_the_rate_is_beside_in_core_at_the_largest_batch_that_trained():
    part = {'rows': [row_of('keep', 2.0, images_per_second=100.0, tf32=False),
                     row_of('keep', 2.0, images_per_second=300.0, tf32=True),
                     row_of('keep', 9.0, batch=2, images_per_second=500.0, tf32=False),
                     row_of('pooch', 9.0, batch=64, images_per_second=80.0, tf32=False)]}
    rows = with_comparisons([part])[0]['rows']
    assert rows[3]['of_in_core_rate'] == (0.8, 4)
    assert 'overhead' not in rows[3]


@pytest.mark.parametrize(('driver_bytes', 'within'), [(15 * GB, True), (17 * GB, False)])
def test_the_drivers_word_decides_what_is_within_the_budget(driver_bytes, within):
    row = row_of('pooch', 1.0, device='cuda', budget_bytes=16 * GB, driver_peak_bytes=driver_bytes, peak_bytes=GB)
    found, = with_comparisons([{'rows': [row]}])[0]['rows']
    assert found['within_budget'] is within
    on_host, = with_comparisons([{'rows': [{**row, 'device': 'host'}]}])[0]['rows']
    assert 'within_budget' not in on_host


def test_without_in_core_there_is_no_overhead():
    rows = with_comparisons([{'rows': [{**row_of('keep', 2.0), 'outcome': 'failed'}, row_of('pooch', 3.0)]}])[0]['rows']
    assert all('overhead' not in row for row in rows)


def test_files_are_named_by_the_device(tmp_path):
    files = Files(tmp_path, DEVICE, {})
    files.write([])
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        'gpu-nvidia-imagined-9000.json', 'gpu-nvidia-imagined-9000.md']
    assert 'NVIDIA Imagined 9000' in files.markdown.read_text()


def test_a_file_cut_short_says_so(tmp_path):
    files = Files(tmp_path, DEVICE, {})
    part = {'name': 'a', 'title': 'A', 'kind': 'self-test', 'state': 'running',
            'rows': [{'row': 'works', 'outcome': 'failed', 'reason': 'a | b\nc'}]}
    files.write([part])
    text = files.markdown.read_text()
    assert 'Cut short' in text
    assert '| works | failed | a / b c |' in text


@pytest.mark.parametrize('limit', [0, 640, 767, 768, 1000, 1919, 1920, 5000])
def test_search_finds_the_largest_that_works(limit):
    tried = []
    search = largest(lambda size: size, 640, 1920, 128)
    try:
        size = next(search)
        while True:
            tried.append(size)
            size = search.send({'outcome': 'done' if size <= limit else 'failed'})
    except StopIteration:
        pass
    works = [size for size in tried if size <= limit]
    assert len(tried) == len(set(tried)) <= 6
    if 640 <= limit < 1920:
        assert limit - max(works) < 128 or max(works) + 128 > limit
    assert max(works, default=0) == (0 if limit < 640 else max(works))
