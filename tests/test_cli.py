"""The command line as its users meet it: what it prints, its exit status, and errors in one line."""
import dataclasses
import os
import subprocess
import sys
import types
from pathlib import Path

import chainer_ooc  # before chainer

# isort: split
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from chainer_ooc.backends.host import onednn
from chainer_ooc.cli import model as cli_model
from chainer_ooc.cli.totals import totals
from chainer_ooc.trace import Trace
from support.command_line import run, run_json

ROOT = Path(__file__).resolve().parent.parent


class Scores(chainer.Chain):
    """A network that is called with images alone."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(3, 4, 3, pad=1)
            self.fc = L.Linear(None, 2)

    def forward(self, images):
        return self.fc(F.relu(self.conv(images)))


class Loss(Scores):
    """A network that is called with images and labels."""

    def forward(self, images, labels):
        return F.softmax_cross_entropy(super().forward(images), labels)


class Called(chainer.Chain):
    """A network of before Chainer 5, when chains had a ``__call__`` of their own."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.fc = L.Linear(None, 2)

    def __call__(self, images, labels):
        return F.softmax_cross_entropy(F.relu(self.fc(images)), labels)


def returning(result):
    """A class of chains that return something else than scores."""
    class Other(Scores):
        def forward(self, images):
            return result(super().forward(images))
    return Other


class Three(Scores):
    """A network that wants more than images and labels."""

    def forward(self, images, labels, more):
        return super().forward(images)


@pytest.fixture
def networks(monkeypatch):
    """A module that can be imported by the name ``networks``."""
    module = types.ModuleType('networks')
    module.Scores, module.Loss, module.Called, module.number, module.Linear = Scores, Loss, Called, 7, L.Linear
    module.Pair, module.Nothing = returning(lambda scores: (scores, 1)), returning(lambda scores: None)
    module.Array, module.Classes = returning(lambda scores: scores.array), returning(lambda h: F.argmax(h, axis=1))
    module.Three = Three
    monkeypatch.setitem(sys.modules, 'networks', module)
    monkeypatch.setattr(sys, 'path', list(sys.path))


def test_policies_lists_each_with_a_line(capsys):
    assert run_json(capsys, 'policies') == {'policies': chainer_ooc.policies()}
    status, out, _ = run(capsys, 'policies')
    assert status == 0
    assert all(f'{name} ' in out and line in out for name, line in chainer_ooc.policies().items())


def test_doctor_finds_nothing_wrong_here(capsys, tmp_path):
    found = run_json(capsys, 'doctor', '--spill-dir', str(tmp_path))
    assert found['can_train'] is True
    assert found['problems'] == []
    assert found['versions']['chainer'] == '7.8.1'
    assert found['patches']['count'] == len(list((ROOT / 'patches').glob('*.patch')))
    assert found['device']['spill_folder'] == str(tmp_path)
    assert 0 < found['device']['budget_bytes'] < min(found['device']['near_limits_bytes'].values())
    assert found['training']['swap'] > 0


def test_doctor_shows_the_same_as_tables(capsys):
    status, out, _ = run(capsys, 'doctor')
    assert status == 0
    assert out.endswith('training can work\n')
    assert all(topic in out for topic in ('versions', 'patches', 'device', 'training'))


def test_doctor_names_a_folder_that_cannot_be_used(capsys, tmp_path):
    status, out, _ = run(capsys, 'doctor', '--spill-dir', str(tmp_path / 'missing'))
    assert status == 1
    assert f"problem: device: cannot make a spill file in '{tmp_path / 'missing'}'" in out
    assert 'ooc_spill_dir' in out


@pytest.mark.parametrize(('found', 'line'), [
    (onednn.Presence('/lib/libdnnl.so.3', '3.9.0', 'onednn 2025.2.0', 2),
     '3.9.0 of onednn 2025.2.0 (libdnnl.so.3), 2 threads; used where chainer.config.use_ideep is "auto"'),
    (onednn.Presence('libdnnl.so.3', '3.1.1', None, None), '3.1.1 of the system (libdnnl.so.3); used where'),
    (None, 'absent; for chainer.config.use_ideep = "auto": install it with "pip install chainer-ooc[cpu]"')])
def test_doctor_tells_which_onednn_there_is(capsys, monkeypatch, found, line):
    monkeypatch.setattr(onednn, 'find', lambda: found)
    assert run_json(capsys, 'doctor')['device']['onednn'] == (None if found is None else dataclasses.asdict(found))
    _, out, _ = run(capsys, 'doctor')
    assert line in ' '.join(out.split())


def test_a_library_of_that_name_that_is_another_is_passed_over(monkeypatch):
    monkeypatch.setattr(onednn, 'places', lambda: iter([('libm.so.6', None), ('libdnnl-that-is-not-there.so', 'a 1')]))
    assert onednn.find() is None


@pytest.mark.skipif(not os.path.isdir('/dev/shm'), reason='needs a RAM disk at /dev/shm')
def test_doctor_warns_of_a_ram_disk(capsys):
    found = run_json(capsys, 'doctor', '--spill-dir', '/dev/shm')
    assert any('RAM disk' in line for line in found['warnings'])
    assert found['can_train'] is True


def test_doctor_says_how_to_get_chainer(tmp_path):
    for folder in Path(np.__file__).parents[1].glob('numpy*'):  # NumPy and no other package
        (tmp_path / folder.name).symlink_to(folder)
    done = subprocess.run([sys.executable, '-S', '-m', 'chainer_ooc', 'doctor'], cwd=ROOT, text=True,
                          capture_output=True, env={**os.environ, 'PYTHONPATH': str(tmp_path)})
    assert done.returncode == 1, done.stderr
    assert 'problem: patches: chainer is not installed' in done.stdout
    assert 'pip install' in done.stdout
    assert done.stdout.endswith('training cannot work before the problems are solved\n')
    assert done.stderr == ''


@pytest.mark.parametrize('name', ['Scores', 'Loss', 'Called'])
def test_profile_runs_a_named_chain(capsys, networks, tmp_path, name):
    file = tmp_path / 'trace.json'
    found = run_json(capsys, 'profile', f'networks:{name}', '--batchsize', '2', '--insize', '32', '--out', str(file))
    trace = Trace.from_json(file.read_text())
    assert found['maps'] == len(trace.maps)
    assert found['retained_bytes_per_image'] * 2 == found['retained_bytes']
    assert found['forward_seconds'] > 0
    assert found['backward_seconds'] > 0
    assert found['largest_maps'][0]['nbytes'] == max(each.nbytes for each in trace.maps if each.retained)
    assert found['working_set_bytes'] == totals(trace, 2, chainer.config.ooc_min_bytes).working_set_bytes


def test_profile_shows_the_largest_maps_and_the_totals(capsys, networks):
    status, out, _ = run(capsys, 'profile', 'networks:Loss', '--batchsize', '2', '--insize', '16', '--top', '1')
    assert status == 0
    assert 'the largest 1 of ' in out
    assert 'largest working set' in out


def test_profile_leaves_the_configuration_as_it_was(capsys, networks):
    run_json(capsys, 'profile', 'networks:Loss', '--batchsize', '1', '--insize', '16')
    assert chainer.config.ooc is None
    assert chainer_ooc.trace() is None


def test_profile_knows_the_example_networks(capsys):
    found = run_json(capsys, 'profile', 'googlenet', '--batchsize', '2', '--insize', '64')
    assert found['retained_maps'] > 50


@pytest.mark.parametrize(('arguments', 'message'), [
    (['profile', 'nowhere:Model'], 'cannot import nowhere'),
    (['profile', 'networks:Missing'], 'networks has no Missing; it has: '),
    (['profile', 'networks:number'], 'networks:number is of type int, which cannot be called'),
    (['profile', 'networks:Linear'], 'networks:Linear cannot be called without arguments'),
    (['profile', 'builtins:dict'], 'builtins:dict returns a dict, not a chainer.Chain'),
    (['profile', 'networks:Pair', '--insize', '8'], 'networks:Pair returned tuple, not a Variable of floating point'),
    (['profile', 'networks:Nothing', '--insize', '8'], 'networks:Nothing returned NoneType, not a Variable'),
    (['profile', 'networks:Array', '--insize', '8'], 'networks:Array returned ndarray float32, not a Variable'),
    (['profile', 'networks:Classes', '--insize', '8'], 'networks:Classes returned Variable int32, not a Variable of'),
    (['profile', 'networks:Three', '--insize', '8'], 'networks:Three takes 3 arguments; name a chain that'),
    (['profile', 'networks:Loss', '--insize', '1000000', '--batchsize', '99'],
     'networks:Loss on images (99, 3, 1000000, 1000000) needs more memory than there is'),
    (['profile', 'networks:Loss', '--insize', '16', '--out', '/nowhere/x'], 'cannot write the trace'),
    (['profile', 'networks:Loss', '--device', '@cupy:99'], '--device @cupy:99 cannot be used'),
])
def test_what_cannot_be_done_is_said_in_one_line(capsys, networks, arguments, message):
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (1, '')
    assert err.startswith(f'error: {message}')
    assert err.count('\n') == 1


@pytest.mark.parametrize(('arguments', 'message'), [
    (['profile', 'resnet51'], "there is no model 'resnet51'; did you mean 'resnet50'? there are: alexnet, "),
    (['profile', 'networks:Loss', '--policy', 'Pooch'], "there is no policy 'Pooch'; did you mean 'pooch'? there are:"),
    (['profile', 'resnet50', '--policy', 'zzz'], "there is no policy 'zzz'; there are: auto, "),
    (['profile', 'resnet50', '--batchsize', '9223372036854775808'], 'is too large; write at most 2147483647'),
    (['profile', 'resnet50', '--batchsize', '9' * 5000], 'is too large; write at most 2147483647'),
    (['profile', 'resnet50', '--top', '-1'], "argument --top: '-1' is no whole number of at least 1"),
    (['cure'], "invalid choice: 'cure'"),
    (['profile'], 'the following arguments are required: MODEL'),
    (['profile', 'resnet50', '--batchsize', '0'], "'0' is no whole number of at least 1"),
    (['profile', 'resnet50', '--insize', 'wide'], "'wide' is no whole number of at least 1"),
])
def test_arguments_that_cannot_be_used_are_said_in_one_line(capsys, arguments, message):
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, '')
    assert message in err
    assert err.startswith('error: ')
    assert err.count('\n') == 1


def test_profile_says_where_the_examples_are_when_they_are_not_installed(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(cli_model, '_EXAMPLES', tmp_path)
    status, _, err = run(capsys, 'profile', 'alexnet')
    assert status == 1
    assert 'which a checkout has and an installed chainer_ooc has not' in err


def test_profile_says_what_a_too_small_image_does(capsys):
    status, _, err = run(capsys, 'profile', 'alexnet', '--batchsize', '1', '--insize', '8')
    assert status == 1
    assert err.startswith('error: alexnet cannot be trained on images (1, 3, 8, 8): ')


def test_a_reader_that_stops_early_gets_no_traceback():
    command = f'{sys.executable} -m chainer_ooc policies | true'
    done = subprocess.run(['sh', '-c', command], cwd=ROOT, text=True, capture_output=True)
    assert done.stderr == ''


def test_a_full_standard_output_is_said_in_one_line():
    with open('/dev/full', 'w') as full:
        ended = subprocess.run([sys.executable, '-m', 'chainer_ooc', 'policies'], stdout=full, stderr=subprocess.PIPE,
                               text=True, cwd=ROOT, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr == 'error: cannot write to standard output: No space left on device\n'
