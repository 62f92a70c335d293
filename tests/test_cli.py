"""The command line as its users meet it: what it prints, its exit status, and errors in one line."""
import subprocess
import sys
import types
from pathlib import Path

import chainer_ooc  # before chainer

# isort: split
import chainer
import chainer.functions as F
import chainer.links as L
import pytest

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


@pytest.fixture
def networks(monkeypatch):
    """A module that can be imported by the name ``networks``."""
    module = types.ModuleType('networks')
    module.Scores, module.Loss, module.Called, module.number, module.Linear = Scores, Loss, Called, 7, L.Linear
    module.Pair, module.Nothing = returning(lambda scores: (scores, 1)), returning(lambda scores: None)
    module.Array, module.Classes = returning(lambda scores: scores.array), returning(lambda h: F.argmax(h, axis=1))
    monkeypatch.setitem(sys.modules, 'networks', module)
    monkeypatch.setattr(sys, 'path', list(sys.path))
    return module


def test_policies_lists_each_with_a_line(capsys):
    assert run_json(capsys, 'policies') == {'policies': chainer_ooc.policies()}
    status, out, _ = run(capsys, 'policies')
    assert status == 0
    shown = ' '.join(out.split())
    assert all(f'{name} {line}' in shown for name, line in chainer_ooc.policies().items())


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
    (['profile', 'networks:Pair', '--insize', '8'], 'networks:Pair returned tuple, not a Variable of floating point'),
    (['profile', 'networks:Nothing', '--insize', '8'], 'networks:Nothing returned NoneType, not a Variable'),
    (['profile', 'networks:Array', '--insize', '8'], 'networks:Array returned ndarray float32, not a Variable'),
    (['profile', 'networks:Classes', '--insize', '8'], 'networks:Classes returned Variable int32, not a Variable of'),
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
    (['cure'], "there is no command 'cure'; there are: compare, doctor, "),
    (['simulat', 'trace.json'], "there is no command 'simulat'; did you mean 'simulate'? there are: compare, "),
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


def failing(act):
    """A class of chains whose forward does something else."""
    class Failing(Scores):
        def forward(self, images):
            return act(super().forward(images))
    return Failing


def look_up(scores):
    return {}['nothing']


def refuse(scores):
    raise ValueError('no such scores')


def run_out(scores):
    raise MemoryError


def widen(scores):
    return F.reshape(scores, (7, 7))


class Backward(chainer.FunctionNode):
    def forward(self, inputs):
        return inputs

    def backward(self, indexes, gradients):
        return look_up(gradients)


IMAGES = 'cannot be trained on images (2, 3, 8, 8)'


def raise_while_made():
    raise OSError('no weights here')


@pytest.mark.parametrize(('model', 'error', 'innermost', 'said'), [
    (failing(look_up), "KeyError: 'nothing'", 'look_up', IMAGES),
    (failing(refuse), 'ValueError: no such scores', 'refuse', IMAGES),
    (failing(lambda scores: Backward().apply((scores,))[0]), "KeyError: 'nothing'", 'look_up', IMAGES),
    (raise_while_made, 'OSError: no weights here', 'raise_while_made', 'cannot be made')])
def test_an_error_in_the_users_model_is_its_own_traceback_and_a_line(capsys, networks, model, error, innermost, said):
    networks.model = model
    status, out, err = run(capsys, 'profile', 'networks:model', '--batchsize', '2', '--insize', '8')
    assert (status, out) == (2 if said == 'cannot be made' else 1, '')
    lines = err.splitlines()
    assert lines[0] == 'Traceback (most recent call last):'
    assert lines[-2] == error
    assert lines[-1] == f'error: networks:model {said}: {error}; the traceback above is that of its own code'
    files = [line for line in lines if line.startswith('  File ')]
    assert files[-1].endswith(f'in {innermost}')
    assert all(str(Path(__file__)) in line for line in files)


def test_an_error_in_the_users_module_is_its_own_traceback_and_a_line(capsys, networks, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text, error in [
            ('raising_module', 'raise LookupError("no data")', 'LookupError: no data'),
            ('wrong_module', 'def model(:', 'SyntaxError: invalid syntax (wrong_module.py, line 1)'),
            ('ending_module', 'import sys\nsys.exit("usage: train")', 'SystemExit: usage: train')]:
        (tmp_path / f'{name}.py').write_text(text)
        status, out, err = run(capsys, 'profile', f'{name}:model')
        assert (status, out) == (2, '')
        assert err.endswith(f'\nerror: cannot import {name} for {name}:model: {error}; the traceback above is that of '
                            'its own code\n')
        assert f'{name}.py", line' in err
        assert 'chainer_ooc' not in err and 'importlib' not in err


def test_what_chainer_refuses_is_said_with_the_place_in_the_model(capsys, networks):
    networks.model = failing(widen)
    status, _, err = run(capsys, 'profile', 'networks:model', '--batchsize', '2', '--insize', '8')
    assert status == 1
    assert err.startswith('error: networks:model cannot be trained on images (2, 3, 8, 8): ')
    assert f'({Path(__file__).name}, line ' in err and ', in widen); choose another --insize' in err
    assert err.count('\n') == 1


@pytest.mark.parametrize('policy', ['keep', 'swap-all'])
def test_too_little_memory_is_said_with_what_is_left_to_try(capsys, networks, policy):
    networks.model = failing(run_out)
    arguments = ['profile', 'networks:model', '--batchsize', '2', '--insize', '8']
    status, out, err = run(capsys, *arguments, '--policy', policy)
    assert (status, out) == (1, '')
    assert err == ('error: networks:model on images (2, 3, 8, 8) needs more memory than there is; choose a smaller '
                   f'batch or --insize{", or --policy swap-all" if policy == "keep" else ""}\n')
    assert run(capsys, *arguments)[2].endswith('choose a smaller batch or --insize\n')  # both were tried


def test_a_failure_to_close_does_not_hide_the_error(capsys, networks, monkeypatch):
    networks.model, honest = failing(run_out), chainer_ooc.reset

    def reset():
        honest()
        raise MemoryError
    with monkeypatch.context() as patched:
        patched.setattr(chainer_ooc, 'reset', reset)
        status, _, err = run(capsys, 'profile', 'networks:model', '--batchsize', '2', '--insize', '8')
    assert status == 1
    assert err.startswith('error: networks:model on images (2, 3, 8, 8) needs more memory than there is; ')


def test_profile_swaps_where_keep_does_not_fit(capsys, networks):
    networks.model = failing(lambda scores: run_out(scores) if chainer.config.ooc == 'keep' else scores)
    arguments = ['profile', 'networks:model', '--batchsize', '2', '--insize', '8']
    status, out, _ = run(capsys, *arguments)
    assert status == 0
    assert out.endswith('recorded under swap-all, since it does not fit into memory under keep\n')
    assert run_json(capsys, *arguments)['policy'] == 'swap-all'
    assert run_json(capsys, 'profile', 'networks:Loss', '--insize', '8')['policy'] == 'keep'


@pytest.mark.parametrize(('batchsize', 'insize'), [
    ('100000000', '224'), ('8', '100000000'), ('2147483647', '2147483647')])
def test_images_that_no_memory_has_are_refused_before_they_are_made(capsys, networks, batchsize, insize):
    status, out, err = run(capsys, 'profile', 'networks:Loss', '--batchsize', batchsize, '--insize', insize)
    assert (status, out) == (1, '')
    assert err.startswith(f'error: networks:Loss on images ({batchsize}, 3, {insize}, {insize}) needs more memory than')
    assert ' for the images alone, and ' in err


def test_a_map_is_one_map_and_a_call_one_call(capsys, networks):
    class One(chainer.Chain):
        def __init__(self):
            super().__init__(fc=L.Linear(None, 2))

        def forward(self, images, labels):
            return F.sum(self.fc(images))
    networks.model = One
    _, out, _ = run(capsys, 'profile', 'networks:model', '--batchsize', '2', '--insize', '8')
    assert 'the largest 1 of 1 feature map kept for backward' in out
    assert '1 feature maps' not in out


def test_the_version_is_printed(capsys):
    assert run(capsys, '--version') == (0, f'chainer-ooc {chainer_ooc.__version__}\n', '')


def test_without_a_command_the_help_is_printed(capsys):
    status, out, err = run(capsys)
    assert (status, err) == (0, '')
    assert out == run(capsys, '--help')[1]
    assert all(f'    {name} ' in out for name in ('doctor', 'profile', 'simulate'))


UNWRITABLE = 'error: cannot write to standard output: {}; send it somewhere else\n'


def shell(command):
    """Runs a line of sh, in which {0} is the command line."""
    return subprocess.run(['sh', '-c', command.format(f'{sys.executable} -m chainer_ooc')], cwd=ROOT, text=True,
                          capture_output=True, timeout=100)


@pytest.mark.parametrize('arguments', ['', '--help', 'policies --help', '--version', 'policies --json'])
def test_output_that_cannot_be_written_is_said_in_one_line(arguments):
    done = shell(f'{{0}} {arguments} >/dev/full')
    assert (done.returncode, done.stderr) == (1, UNWRITABLE.format('No space left on device'))


def test_a_closed_output_is_said_in_one_line():
    done = shell('{0} policies >&-')
    assert (done.returncode, done.stderr) == (1, UNWRITABLE.format('it is closed'))


@pytest.mark.parametrize('sink', ['2>/dev/full', '2>&-'])
def test_a_complaint_that_cannot_be_written_leaves_the_status(sink):
    assert shell(f'{{0}} cure {sink}').returncode == 2
    assert shell(f'{{0}} simulate /nowhere --policy keep --budget 1GB {sink}').returncode == 1


def test_a_reader_that_stops_before_the_help_gets_no_traceback():
    assert shell('{0} --help | true').stderr == ''
    assert shell('{0} | true').stderr == ''


@pytest.mark.parametrize('kilobytes', [
    pytest.param((450000,), marks=pytest.mark.long),
    pytest.param((505000, 490000, 475000, 460000), id='just below what is enough')])
def test_a_network_behind_a_wall_that_is_too_low_ends_in_one_line(kilobytes):
    """What is enough depends on the versions of Python and of the libraries."""
    done = next(done for done in (
        shell(f'ulimit -d {each}; OMP_NUM_THREADS=1 {{0}} profile resnet50 --batchsize 4') for each in kilobytes)
        if done.returncode)
    assert done.returncode == 1
    assert done.stderr.startswith('error: ') and done.stderr.count('\n') == 1, done.stderr
    assert 'memory' in done.stderr


def test_a_terminal_of_ascii_gets_no_traceback(tmp_path):
    name = tmp_path / 'Spur-\u00e4\u6f22.json'
    done = shell(f'PYTHONIOENCODING=ascii {{0}} simulate {name} --policy keep --budget 1GB')
    assert (done.returncode, done.stderr.count('\n')) == (1, 1)
    assert 'Spur-\\xe4\\u6f22.json' in done.stderr
    done = shell('PYTHONIOENCODING=ascii {0} doctor')
    assert (done.returncode, done.stderr) == (0, '')
    assert 'latency' in done.stdout


def test_a_reader_that_stops_early_gets_no_traceback():
    command = f'{sys.executable} -m chainer_ooc policies | true'
    done = subprocess.run(['sh', '-c', command], cwd=ROOT, text=True, capture_output=True)
    assert done.stderr == ''


def test_a_full_standard_output_is_said_in_one_line():
    with open('/dev/full', 'w') as full:
        ended = subprocess.run([sys.executable, '-m', 'chainer_ooc', 'policies'], stdout=full, stderr=subprocess.PIPE,
                               text=True, cwd=ROOT, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr == UNWRITABLE.format('No space left on device')
