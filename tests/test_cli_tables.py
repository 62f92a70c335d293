"""``tables``: what is chosen, printed and written. The figures come from a experiments of formulas."""
import dataclasses
import json
import types

import chainer_ooc  # before chainer

# isort: split
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from chainer_ooc.cli import model as cli_model
from chainer_ooc.cli import tables
from chainer_ooc.errors import OocError
from support.command_line import run, run_json
from support.fake_experiments import FakeExperiments


@pytest.fixture(autouse=True)
def experiments(monkeypatch):
    monkeypatch.setattr(tables, 'Experiments', FakeExperiments)
    few = tuple(each for each in tables.TABLES if each.paper in ('pooch', 'window-va'))
    monkeypatch.setattr(tables, 'TABLES', few)


def test_one_table_is_chosen_by_paper_and_figure(capsys):
    found = run_json(capsys, 'tables', '--paper', 'pooch', '--figure', '17')
    assert [(each['paper'], each['figure']) for each in found['tables']] == [('pooch', '17')]
    assert found['within'] + found['outside'] > 0
    assert found == run_json(capsys, 'tables', '--paper', 'pooch', '--figure', 'figure 17')


def test_all_tables_of_a_paper_and_all_of_a_number(capsys):
    found = run_json(capsys, 'tables', '--paper', 'window-va')
    assert [each['figure'] for each in found['tables']] == ['table 1', '3']
    found = run_json(capsys, 'tables', '--figure', '3')
    assert [each['paper'] for each in found['tables']] == ['pooch', 'window-va']


def test_without_a_choice_all_are_made_and_counted(capsys):
    status, out, err = run(capsys, 'tables')
    assert (status, err) == (0, '')
    assert max(map(len, out.splitlines())) <= 80
    assert all(f'{name}: ' in out for name in ('pooch figure 17', 'pooch table 3', 'window-va table 1'))
    closing = ' '.join(out[out.rindex('\n\n'):].split())
    assert closing.count('stated figures are within 15 %') == 3
    assert all(f'{name}: ' in closing for name in ('pooch', 'window-va', 'all'))


@pytest.mark.parametrize(('arguments', 'message', 'expected'), [
    (['--paper', 'vdnn'], "--paper: there is no paper 'vdnn'; there are: pooch, window-va", 2),
    (['--paper', 'PoocH'], "--paper: there is no paper 'PoocH'; did you mean 'pooch'? there are: ", 2),
    (['--paper', 'pooch', '--figure', '5'], "--figure: there is no figure '5' of pooch; there are: 3, 4, 15, 16,", 2),
    (['--figure', 'ten'], "--figure: there is no figure 'ten'; there are: 3, 4, 15,", 2),
    (['--paper', 'pooch', '--figure', '3', '--out', '/dev/null/tables'], 'cannot make the folder /dev/null/tables', 1),
])
def test_what_cannot_be_done_is_said_in_one_line(capsys, arguments, message, expected):
    status, out, err = run(capsys, 'tables', *arguments)
    assert (status, out) == (expected, '')
    assert err.startswith(f'error: {message}')
    assert err.count('\n') == 1


def test_files_are_named_by_paper_and_figure(capsys, tmp_path, matplotlib):
    folder = tmp_path / 'new' / 'tables'
    found = run_json(capsys, 'tables', '--paper', 'pooch', '--out', str(folder))
    names = {each.name for each in folder.iterdir()}
    assert {f'pooch-figure-17.{suffix}' for suffix in ('md', 'json', 'png')} <= names
    assert 'pooch-text.json' in names
    assert 'pooch-text.png' not in names  # it has nothing to draw
    assert json.loads((folder / 'pooch-figure-17.json').read_text()) == next(
        each for each in found['tables'] if each['figure'] == '17')
    assert (folder / 'pooch-figure-17.md').read_text().startswith('**pooch figure 17: ResNet50 on x86**\n')


def test_without_matplotlib_the_texts_are_written(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(tables.importlib.util, 'find_spec', lambda name: None)
    status, out, err = run(capsys, 'tables', '--figure', '17', '--out', str(tmp_path))
    assert (status, err) == (0, '')
    assert sorted(each.name for each in tmp_path.iterdir()) == ['pooch-figure-17.json', 'pooch-figure-17.md']
    assert "without pictures, as matplotlib is not installed: pip install 'chainer-ooc[" in ' '.join(out.split())


class Tiny(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(3, 4, 3)
            self.fc = L.Linear(None, 2)

    def forward(self, images, labels):
        return F.softmax_cross_entropy(self.fc(F.relu(self.conv(images))), labels)


@dataclasses.dataclass
class Described:
    build: type = Tiny

    def batch(self, size):
        return np.ones((size, 3, 8, 8), np.float32), np.zeros(size, np.int32)


def test_a_recording_has_even_the_smallest_arrays(monkeypatch):
    networks = types.SimpleNamespace(PAPER_NETWORKS={'tiny': Described()})
    monkeypatch.setattr(tables, 'example_module', lambda module, name: networks)
    trace = tables.record('tiny', 2)
    assert [call.label for call in trace.calls][:3] == ['Convolution2DFunction', 'ReLU', 'Reshape']
    assert trace.maps[0].shape == (2, 3, 8, 8)
    assert trace.standing_backward_bytes > 0
    assert chainer.config.ooc is None
    assert chainer_ooc.trace() is None


def test_a_recording_wants_a_checkout(monkeypatch, tmp_path):
    monkeypatch.setattr(cli_model, '_EXAMPLES', tmp_path)
    with pytest.raises(OocError, match=r'run this in a checkout$'):
        tables.record('resnet50', 2)
