"""The command line on a terminal: nothing is wider than it, and what takes its time says so."""
import dataclasses
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import chainer_ooc  # before chainer

# isort: split
import pytest

from chainer_ooc.cli import COMMANDS, stage
from chainer_ooc.execute.tally import IterationStats
from support.command_line import run
from support.planning.drawn_trace import TRACE

ROOT = Path(__file__).resolve().parent.parent
PLANNED = ['--policy', 'swap-all', '--budget', '10MB']


@pytest.fixture
def file(tmp_path):
    """A trace whose calls have places in a model, as recorded ones do."""
    calls = tuple(dataclasses.replace(each, path=f'/predictor/stage{each.index}/0/widen/convolution',
                                      line=f'residual_networks.py:{each.index + 100}') for each in TRACE.calls)
    (tmp_path / 'trace.json').write_text(dataclasses.replace(TRACE, calls=calls).to_json())
    return str(tmp_path / 'trace.json')


def widths(text):
    return {len(line) for line in text.splitlines()}


@pytest.mark.parametrize('arguments', [
    ['policies'], ['doctor'], ['simulate', 'FILE', *PLANNED], ['plan', 'FILE', *PLANNED], ['compare', 'FILE'],
    ['explain', 'FILE', *PLANNED], ['recommend', 'FILE', '--budget', '20MB'],
    ['profile', 'alexnet', '--batchsize', '1', '--insize', '67'],
    *([name, '--help'] for name in COMMANDS), []], ids=' '.join)
def test_no_command_prints_a_line_of_more_than_80_columns(capsys, file, arguments):
    status, out, _ = run(capsys, *(file if each == 'FILE' else each for each in arguments))
    assert status == 0
    assert max(widths(out)) <= 80


def test_a_wider_terminal_is_used(capsys, file, monkeypatch):
    narrow = run(capsys, 'explain', file, *PLANNED)[1]
    monkeypatch.setattr('shutil.get_terminal_size', lambda *fallback, **named: os.terminal_size((200, 24)))
    wide = run(capsys, 'explain', file, *PLANNED)[1]
    assert narrow.split() != wide.split() or narrow.count('\n') > wide.count('\n')
    assert '/predictor/stage1/0/widen/convolution in residual_networks.py:101, swap: if kept' in wide


def on_terminal(*arguments, columns=80):
    """What a program writes to the terminal that its standard error is."""
    own, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack('HHHH', 24, columns, 0, 0))
    with subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=its) as process:
        os.close(its)
        seen = b''
        try:
            while piece := os.read(own, 4096):
                seen += piece
        except OSError:  # Linux's end of a terminal
            pass
    os.close(own)
    return process.returncode, seen.decode()


def screen(written):
    """What is left on one line of a terminal."""
    line = ''
    for part in re.split(r'(\r|\x1b\[K)', written):
        line = '' if part == '\x1b[K' else line if part == '\r' else part
    return line


def test_simulate_says_on_a_terminal_what_it_does_and_leaves_nothing(file):
    status, written = on_terminal('-m', 'chainer_ooc', 'simulate', file, *PLANNED)
    assert status == 0
    assert 'planning with swap-all ...' in written and 'looking for what is possible at best ...' in written
    assert screen(written) == ''


def test_profile_says_on_a_terminal_what_it_records(tmp_path):
    status, written = on_terminal('-m', 'chainer_ooc', 'profile', 'alexnet', '--batchsize', '1', '--insize', '67')
    assert status == 0
    assert written.index('making alexnet ...') < written.index('recording alexnet under keep ...')
    assert screen(written) == ''


def test_where_standard_error_is_no_terminal_nothing_is_written(capsys):
    with stage.stage('waiting'):
        assert list(stage.stages([1, 2], 'counting')) == [1, 2]
    assert capsys.readouterr().err == ''


def test_each_of_several_stages_has_its_number(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, 'isatty', lambda: True)
    assert list(stage.stages(['keep', 'auto'], 'simulating')) == ['keep', 'auto']
    err = capsys.readouterr().err
    assert 'simulating keep (1 of 2) ...' in err and 'simulating auto (2 of 2) ...' in err
    assert screen(err) == ''


def test_a_stage_ends_with_its_error(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, 'isatty', lambda: True)
    with pytest.raises(ValueError, match='no'), stage.stage('failing'):
        raise ValueError('no')
    assert screen(capsys.readouterr().err) == ''


def test_help_of_stats_has_every_attribute():
    documented = chainer_ooc.stats.__doc__
    assert all(re.search(rf'\b{field.name}\b', documented) for field in dataclasses.fields(IterationStats))
    assert 'gap' in documented
