import io
import json
import os
import subprocess
import sys

import status_line
import watched_run
from options import Options
from training_run import Outcome

EVENTS = [
    {'event': 'begin', 'at': 100.0},
    {'event': 'iteration', 'start': 100.0, 'end': 102.5, 'iteration': 1, 'loss': (6.5).hex(),
     'swapped_out_bytes': 7, 'swapped_in_bytes': 6, 'faults': 1},
    {'event': 'end', 'parameters': 'abc'},
]
SAMPLES = [(99.0, {'RssAnon': 10, 'VmHWM': 15}), (101.0, {'RssAnon': 30, 'VmHWM': 40}), (102.6, {'VmHWM': 40})]


def test_a_run_is_put_together_from_journal_and_samples():
    run = watched_run.make_run('a', Options(policy='keep'), 0, '', EVENTS, SAMPLES)
    assert run.outcome is Outcome.FINISHED
    assert run.peak_bytes == 40
    assert [(sample.at_seconds, sample.resident_bytes) for sample in run.samples] == [(-1.0, 10), (1.0, 30)]
    assert (run.iterations[0].seconds, run.iterations[0].loss, run.iterations[0].faults) == (2.5, 6.5, 1)
    assert run.parameters == 'abc'


def test_a_run_that_died_keeps_the_last_line_that_it_printed():
    run = watched_run.make_run('a', Options(), 3, 'ResNet50\nMemoryError in iteration 1\n', EVENTS[:1], SAMPLES)
    assert run.outcome is Outcome.OUT_OF_MEMORY
    assert run.message == 'MemoryError in iteration 1'
    assert run.iterations == ()


def test_a_run_that_was_killed_in_silence_has_its_exit_status():
    run = watched_run.make_run('a', Options(), -9, '', [], [])
    assert run.outcome is Outcome.FAILED
    assert run.message == 'exit status -9'


def test_memory_of_a_process_is_read_from_outside():
    memory = watched_run.memory_of(os.getpid())
    assert memory['VmHWM'] > memory['RssAnon'] > 2**20


def test_a_process_that_is_gone_has_no_memory():
    process = subprocess.Popen([sys.executable, '-c', ''])
    process.wait()
    assert watched_run.memory_of(process.pid) == {}


def test_a_line_that_is_still_being_written_is_left_for_later(tmp_path):
    journal = tmp_path / 'journal'
    journal.write_text(json.dumps(EVENTS[0]) + '\n' + '{"event": "itera')
    assert watched_run.read_journal(journal) == EVENTS[:1]


def test_a_real_training_is_watched_to_its_end(tmp_path):
    shown = []
    options = Options(arch='googlenet', crop=32, batchsize=2, iterations=2)
    run = watched_run.run_watched('two iterations', options, tmp_path, shown.append)
    assert run.outcome is Outcome.FINISHED, run.message
    assert len(run.iterations) == 2
    assert len(run.parameters) == 64
    assert run.peak_bytes > 2**26
    assert any('starting' in line for line in shown)


def test_status_in_a_log_is_a_line_now_and_then(monkeypatch):
    seconds = iter([0.0, 4.0, 11.0, 11.0, 12.0, 13.0])
    monkeypatch.setattr(status_line.time, 'monotonic', lambda: next(seconds))
    out = io.StringIO()
    status = status_line.StatusLine(out)
    for number in range(3):
        status.show(f'step {number}')
    status.say('done')
    assert out.getvalue() == '  step 1\ndone\n'
