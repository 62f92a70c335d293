import argparse
import dataclasses
import io
import json
import pathlib
import re
import subprocess
import sys

import chainer_ooc  # before chainer

# isort: split
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import comparison
import demo
import options
import training
from models import ARCHITECTURES, Architecture
from models.reported_loss import reported
from watched_run import SCRIPT, with_our_path

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Tiny(chainer.Chain):
    """A net with dropout and batch normalisation that trains in milliseconds."""

    def __init__(self, classes):
        super().__init__()
        with self.init_scope():
            self.convolution = L.Convolution2D(3, 4, 3, stride=4)
            self.normalization = L.BatchNormalization(4)
            self.scores = L.Linear(None, classes)

    def forward(self, images, labels):
        h = F.dropout(F.relu(self.normalization(self.convolution(images))))
        scores = self.scores(h)
        return reported(self, F.softmax_cross_entropy(scores, labels), scores, labels)


class Greedy(Tiny):
    """A net that asks for more memory than any machine has."""

    def forward(self, images, labels):
        np.empty(2**60, dtype=np.uint8)


@pytest.fixture(autouse=True)
def more_architectures(monkeypatch):
    for chain in (Tiny, Greedy):
        row = Architecture(chain.__name__.lower(), chain.__name__, chain, 4, 0.01, 8)
        monkeypatch.setitem(ARCHITECTURES, row.name, row)


def train(tmp_path, name='run', **changes):
    """Trains Tiny; returns the events of its journal and what it printed."""
    folder = tmp_path / name
    folder.mkdir()
    settings = {'arch': 'tiny', 'crop': 16, 'iterations': 3, 'out': folder, 'journal': folder / 'journal', **changes}
    out = io.StringIO()
    training.train(options.Options(**settings), out)
    return [json.loads(line) for line in (folder / 'journal').read_text().splitlines()], out.getvalue()


def losses(events):
    return [event['loss'] for event in events if event['event'] == 'iteration']


def test_the_same_seed_gives_the_same_to_the_last_bit(tmp_path):
    first, _ = train(tmp_path, 'first')
    second, _ = train(tmp_path, 'second')
    other, _ = train(tmp_path, 'other', seed=1)
    assert [event['event'] for event in first] == ['begin', *['iteration'] * 3, 'end']
    assert losses(first) == losses(second) != losses(other)
    assert first[-1]['parameters'] == second[-1]['parameters'] != other[-1]['parameters']


def test_a_resumed_training_goes_on_to_the_last_bit(tmp_path):
    through, _ = train(tmp_path, 'through', iterations=5)
    train(tmp_path, 'before', iterations=3, snapshot_every=3)
    after, printed = train(tmp_path, 'after', iterations=5, resume=tmp_path / 'before' / 'snapshot_iter_3')
    assert losses(after) == losses(through)[3:]
    assert after[-1] == through[-1]
    assert [line.split()[0] for line in printed.splitlines()] == ['iteration', '1', '2', '3', '4', '5']


def test_progress_in_a_log_has_no_control_codes(tmp_path):
    _, printed = train(tmp_path)
    assert '\033' not in printed
    assert len(printed.splitlines()) == 4


def test_without_a_policy_the_configuration_stays_as_it_is(tmp_path, monkeypatch):
    before = dict(vars(chainer.config._local))
    with training.use_out_of_core(options.Options()):
        assert vars(chainer.config._local) == before


def test_lack_of_memory_is_one_line_that_says_what_to_do(tmp_path):
    with pytest.raises(training.OutOfMemoryError) as told:
        train(tmp_path, arch='greedy')
    message = str(told.value)
    assert message.startswith('MemoryError in iteration 1 (Unable to allocate')
    assert message.endswith('That is the expected outcome; out-of-core it trains: add --policy auto')
    assert '\n' not in message


def test_wall_is_taken_down_after_the_training():
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    with training.wall(2**40):
        assert resource.getrlimit(resource.RLIMIT_DATA) == (2**40, before[1])
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_plain_chainer_dies_behind_a_wall_without_a_traceback():
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), '--batchsize', '16', '--crop', '128', '--wall', '500MB'],
        capture_output=True, text=True, env=with_our_path())
    assert ran.returncode == 3
    assert 'behind a wall of 500 MB in plain Chainer' in ran.stderr
    assert 'Traceback' not in ran.stdout + ran.stderr


@pytest.mark.parametrize('arguments', [
    ('--crop', '8'), ('--wall', '12 bananas'), ('--wall', '0'), ('--images', '/nowhere/at/all'), ('--batchsize', '0'),
    ('--policy', 'swop'), ('--compare', '--policy', 'swop'), ('--budget', '0'), ('--workspace', 'much'),
    ('--iterations', '1', '--device', '@cupy:99'), ('--batchsize', 'x'), ('--snapshot-every', '-1'),
    ('--resume', '/nowhere/snapshot'), ('--out', __file__), ('--iterations', '1', '--device', 'gpu')])
def test_options_that_cannot_be_used_are_refused_in_one_line(arguments, capsys):
    import train_imagenet

    try:
        status = train_imagenet.main(list(arguments))
    except SystemExit as stopped:  # argparse
        status = stopped.code
    assert status == 2
    assert arguments[-1] in capsys.readouterr().err.splitlines()[-1]


def test_a_file_that_is_no_image_is_said_in_one_line(tmp_path, capsys):
    import train_imagenet

    (tmp_path / 'broken.png').write_text('no image')
    assert train_imagenet.main(['--arch', 'alexnet', '--images', str(tmp_path), '--iterations', '1',
                                '--out', str(tmp_path / 'out')]) == 2
    assert 'broken.png' in capsys.readouterr().err.splitlines()[-1]


def test_the_demo_says_in_one_line_what_it_cannot_write(capsys):
    assert demo.main(['--out', __file__]) == 2
    assert capsys.readouterr().err == f'demo.py: --out {__file__} is a file; name a folder\n'


@pytest.mark.parametrize('policy', chainer_ooc.policies())
def test_every_policy_can_be_trained_with_and_is_in_the_help(policy):
    parser = argparse.ArgumentParser()
    options.add_arguments(parser)
    assert options.read_options(parser.parse_args(['--policy', policy])).config_entries == {'ooc': policy}
    assert f' {policy}' in ' '.join(parser.format_help().replace('-\n', '-').split())


def test_the_demo_and_a_comparison_use_the_policy_that_the_readme_recommends():
    recommended = re.search(r"^chainer\.config\.ooc = '(\S+)'", (ROOT / 'README.md').read_text(), re.MULTILINE)[1]
    assert demo.read_arguments([]).policy == comparison.DEFAULT_POLICY == recommended


def test_options_survive_the_command_line(tmp_path):
    wanted = options.Options(arch='alexnet', policy='swap-all', budget='1GB', batchsize=3, learning_rate=0.5, crop=100,
                             wall_bytes=10**9, images=tmp_path, out=tmp_path / 'out', journal=tmp_path / 'journal')
    for given in (wanted, dataclasses.replace(wanted, policy=None, budget=None, batchsize=None)):
        parser = argparse.ArgumentParser()
        options.add_arguments(parser)
        assert options.read_options(parser.parse_args(given.to_arguments())) == given
