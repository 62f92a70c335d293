"""recommend: lines to paste, each with what was found about it.

The iteration is drawn in support/planning/drawn_trace.py: within 9 MB swap-all takes 17 s, and 10 s is the least.
"""
import dataclasses
import subprocess
import sys
import types
from pathlib import Path

import chainer_ooc  # noqa: F401  before chainer

# isort: split
import chainer
import chainer.functions as F
import chainer.links as L
import pytest

from chainer_ooc.cli import recommend
from chainer_ooc.cli.model import ModelTooLargeError
from chainer_ooc.cli.prediction import at_batch, predict
from chainer_ooc.cost.machine import read_machine
from chainer_ooc.problem import problem_of
from chainer_ooc.trace import ArrayForm
from support.command_line import BARE, run, run_json
from support.planning.drawn_trace import MB, TRACE

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def file(tmp_path):
    return saved(tmp_path, TRACE)


def saved(folder, trace):
    (folder / 'trace.json').write_text(trace.to_json())
    return str(folder / 'trace.json')


def refusal(capsys, *arguments, expected=1):
    status, out, err = run(capsys, 'recommend', *arguments)
    assert (status, out, err.count('\n')) == (expected, '', 1)
    return err


def test_what_is_recommended_for_the_drawn_iteration(capsys, file):
    near = pytest.approx
    assert run_json(capsys, 'recommend', file, '--budget', '9MB') == {
        'ooc': 'pooch', 'ooc_budget': 9 * MB, 'ooc_workspace': None, 'machine': 'measured', 'batch': 8,
        'budget_bytes': 9 * MB, 'seconds': 10.0, 'in_core_seconds': 9.0, 'peak_bytes': 9 * MB,
        'lower_bound_seconds': near(10), 'gap': near(0, abs=1e-9), 'largest_batch': 8, 'largest_batch_policy': 'pooch',
        'largest_batch_seconds': 10.0,
        'reasons': {'ooc': '10.0 s an iteration, +11.1 % to in-core; no plan is faster', 'ooc_budget': 'as given',
                    'ooc_workspace': 'as it was recorded'}}


def test_the_lines_can_be_pasted(capsys, file):
    status, out, _ = run(capsys, 'recommend', file, '--budget', '20MB')
    assert status == 0
    assert out == (
        '# everything fits: 13.0 MB, 9.00 s\n'
        "chainer.config.ooc = 'keep'\n"
        '# as given\n'
        'chainer.config.ooc_budget = 20000000\n'
        '# as it was recorded\n'
        'chainer.config.ooc_workspace = None\n'
        '# batch 8: 0.9 images per second under keep\n'
        '# batch 19 fits, and perhaps more: 0.8 images per second under pooch\n'
        "# an optimizer's state counts if one was recorded; else lower --budget by it\n")
    pasted = types.SimpleNamespace(config=types.SimpleNamespace())
    exec(out, {'chainer': pasted})
    for entry, value in vars(pasted.config).items():
        with chainer.using_config(entry, value):
            pass


def with_link(bytes_per_second):
    return dataclasses.replace(
        TRACE, write_bytes_per_second=bytes_per_second, read_bytes_per_second=bytes_per_second)


@pytest.mark.parametrize(('trace', 'budget', 'policy'), [
    (TRACE, '13MB', 'keep'), (TRACE, '9MB', 'pooch'), (with_link(1e12), '9MB', 'swap-all')])
def test_the_simplest_policy_that_is_nearly_the_fastest_is_taken(capsys, tmp_path, trace, budget, policy):
    assert run_json(capsys, 'recommend', saved(tmp_path, trace), '--budget', budget)['ooc'] == policy


def test_where_there_is_one_batch_alone_it_has_one_line(capsys, file):
    out = run(capsys, 'recommend', file, '--budget', '9MB')[1]
    assert [line for line in out.splitlines() if line.startswith('# batch')] == [
        '# batch 8 fits, and perhaps more: 0.8 images per second under pooch']


@pytest.mark.parametrize('budget', [9 * MB, 20 * MB, 123456789])
def test_the_largest_batch_fits_and_the_next_one_does_not(capsys, file, budget):
    def fits(batch):
        return predict('swap-all', problem_of(at_batch(TRACE, batch)[0], budget, 10**6)).plan is not None

    largest = run_json(capsys, 'recommend', file, '--budget', str(budget))['largest_batch']
    assert [fits(largest), fits(largest + 1)] == [True, False]


def test_another_batch_is_planned_for(capsys, file):
    found = run_json(capsys, 'recommend', file, '--budget', '1GB', '--batch', '16')
    assert (found['batch'], found['seconds'], found['peak_bytes']) == (16, 18.0, 25 * MB)


def test_without_a_budget_it_is_what_is_free(capsys, file):
    found = run_json(capsys, 'recommend', file)
    assert found['ooc_budget'] is None
    assert found['budget_bytes'] > 13 * MB
    assert found['reasons']['ooc_budget'].startswith('what is free, ')


def test_a_machine_brings_its_memory_and_its_times(capsys, tmp_path):
    forms = (ArrayForm('<f4', (8, 500000)),)
    trace = dataclasses.replace(
        TRACE, maps=tuple(dataclasses.replace(each, nbytes=16 * MB, shape=(8, 500000), dtype='float32')
                          for each in TRACE.maps),
        calls=tuple(dataclasses.replace(each, label='ReLU', arguments=forms, results=forms) for each in TRACE.calls))
    for_machine = 'recommend', saved(tmp_path, trace), '--machine', 'v100-pcie3', '--batch', '16'
    found = run_json(capsys, *for_machine)
    assert found['ooc_budget'] == found['budget_bytes'] == read_machine('v100-pcie3').usable_bytes
    assert (found['ooc'], found['ooc_workspace'], found['batch']) == ('keep', None, 16)
    # each call reads and writes 32 MB at 900 GB/s; each step reads its map and gradients
    assert found['seconds'] == pytest.approx(2 * (3 * 32e6 + (16 + 16 + 32 + 32 + 16) * 1e6) / 900e9)
    assert found['largest_batch'] > 16
    assert f'# batch {found["largest_batch"]} is the largest that fits: ' in run(capsys, *for_machine)[1]


def test_of_a_described_gpu_the_workspace_is_left_out_of_the_lines_to_paste(capsys, tmp_path):
    """8 MiB, which convolutions are counted with, would leave cuDNN none of its fast engines (docs/gpu.md)."""
    forms = (ArrayForm('<f4', (8, 125000)),)
    trace = dataclasses.replace(TRACE, calls=tuple(
        dataclasses.replace(each, label='ReLU', arguments=forms, results=forms) for each in TRACE.calls))
    for_machine = 'recommend', saved(tmp_path, trace), '--machine', 'h100-pcie5'
    out = run(capsys, *for_machine)[1]
    assert 'chainer.config.ooc_budget = ' in out
    assert 'chainer.config.ooc_workspace' not in out
    assert '# leave ooc_workspace unset: convolutions are counted with 8 MiB' in out
    assert run_json(capsys, *for_machine)['reasons']['ooc_workspace'].startswith('leave ooc_workspace unset')


def test_without_scipy_there_is_no_gap_and_all_the_rest(capsys, file, monkeypatch):
    monkeypatch.setitem(sys.modules, 'scipy.optimize', None)
    found = run_json(capsys, 'recommend', file, '--budget', '9MB')
    assert (found['ooc'], found['gap']) == ('pooch', None)
    assert found['reasons']['ooc'] == '10.0 s an iteration, +11.1 % to in-core'
    assert 'pip install "chainer-ooc[auto]"' in run(capsys, 'recommend', file, '--budget', '9MB')[1]


def test_what_cannot_be_recommended_is_said_in_one_line(capsys, tmp_path, file):
    assert 'smallest that works for such iterations 9.0 MB' in refusal(capsys, file, '--budget', '8MB')
    assert '; raise --budget, choose' in refusal(capsys, file, '--budget', '8MB')
    assert 'says nothing safe about batch 4' in refusal(capsys, file, '--budget', '9MB', '--batch', '4')
    assert "there is no machine 'moon'" in refusal(capsys, file, '--machine', 'moon', expected=2)
    assert "there is no model 'nothing'" in refusal(capsys, 'nothing', expected=2)
    on_gpu = saved(tmp_path, dataclasses.replace(TRACE, device='cuda'))
    assert 'say with --budget' in refusal(capsys, on_gpu)
    assert run_json(capsys, 'recommend', on_gpu, '--budget', '9MB')['ooc'] == 'pooch'
    hidden = dataclasses.replace(TRACE, calls=(dataclasses.replace(TRACE.calls[0], inputs=(-1,)), *TRACE.calls[1:]))
    assert 'does not tell its batch size' in refusal(capsys, saved(tmp_path, hidden), '--budget', '1GB', '--batch', '9')


def times(factor):
    return dataclasses.replace(TRACE, calls=tuple(
        dataclasses.replace(each, seconds=each.seconds * factor) for each in TRACE.calls))


def with_scratch(megabytes, calls=(0, 1, 2)):
    """The same with so much more for buffers in some calls; in-core the last one has most in memory."""
    return dataclasses.replace(TRACE, calls=tuple(
        dataclasses.replace(each, peak_bytes=each.peak_bytes + megabytes * MB * (each.index in calls))
        for each in TRACE.calls))


def test_a_workspace_that_brings_nothing_beyond_noise_is_not_recommended(capsys, monkeypatch):
    """Times of two recordings of one model differ by any factor on a busy machine, and their bytes are the same."""
    monkeypatch.setattr(recommend, 'record', lambda *model: times(1 if chainer.config.ooc_workspace else 4))
    found = run_json(capsys, 'recommend', 'a:model', '--budget', '13MB')
    assert found['in_core_seconds'] == 18
    assert found['ooc_workspace'] is None
    assert found['reasons']['ooc_workspace'].endswith(': no clear gain')


@pytest.mark.parametrize(('without', 'within', 'budget', 'taken'), [
    (with_scratch(1), TRACE, '14MB', '32MB'), (with_scratch(1), times(2), '14MB', '32MB'),
    (with_scratch(1), times(4), '14MB', None), (with_scratch(1, calls=[0]), TRACE, '13MB', None),
    (with_scratch(5, calls=[0]), TRACE, '13MB', '32MB'),
    (dataclasses.replace(TRACE, standing_forward_bytes=9 * MB), times(2), '13MB', '32MB')])
def test_a_model_is_recorded_with_a_workspace_and_without(capsys, monkeypatch, without, within, budget, taken):
    """It is taken where it saves memory, in-core or at least, and is not clearly slower; or where nothing else fits."""
    recorded = []

    def record(name, batchsize, insize):
        recorded.append((name, batchsize, insize, chainer.config.ooc_workspace))
        return within if chainer.config.ooc_workspace else without

    monkeypatch.setattr(recommend, 'record', record)
    found = run_json(capsys, 'recommend', 'a:model', '--budget', budget, '--insize', '32', '--batch', '8')
    assert found['ooc_workspace'] == taken
    assert found['in_core_seconds'] == sum(call.seconds for call in (within if taken else without).calls) + 6
    assert recorded == [('a:model', 8, 32, None), ('a:model', 8, 32, '32MB')]


def test_a_model_that_only_a_workspace_leaves_room_for_is_recommended_one(capsys, monkeypatch):
    def record(name, batchsize, insize):
        if chainer.config.ooc_workspace is None:
            raise ModelTooLargeError(f'{name} needs more memory than there is')
        return dataclasses.replace(TRACE, workspace_bytes=32 * MB)

    monkeypatch.setattr(recommend, 'record', record)
    assert run_json(capsys, 'recommend', 'a:model', '--budget', '13MB')['ooc_workspace'] == 32 * MB


class Small(chainer.Chain):
    """A network that is called with images and labels."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(3, 4, 3, pad=1)
            self.fc = L.Linear(None, 2)

    def forward(self, images, labels):
        return F.softmax_cross_entropy(self.fc(F.relu(self.conv(images))), labels)


def test_a_model_is_run(capsys, monkeypatch):
    module = types.ModuleType('networks')
    module.Small = Small
    monkeypatch.setitem(sys.modules, 'networks', module)
    monkeypatch.setattr(sys, 'path', list(sys.path))
    found = run_json(capsys, 'recommend', 'networks:Small', '--insize', '32', '--budget', '1GB', '--batch', '10')
    assert (found['ooc'], found['batch']) == ('keep', 10)
    assert found['largest_batch'] > 10
    assert chainer.config.ooc_workspace is None
    found = run_json(capsys, 'recommend', 'networks:Small', '--insize', '32', '--machine', 'v100-pcie3')
    assert (found['batch'], found['ooc_workspace']) == (8, None)


def test_for_a_trace_it_needs_no_chainer(file):
    done = subprocess.run([sys.executable, '-c', BARE, 'recommend', file], cwd=ROOT, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, '')
    assert "chainer.config.ooc = 'keep'\n" in done.stdout


def pasted(out):
    """What the lines set when they are pasted into a program."""
    config = types.SimpleNamespace()
    exec(out, {'chainer': types.SimpleNamespace(config=config)})
    return vars(config)


def test_sizes_of_maps_that_stay_are_pasted_too(capsys, file):
    _, out, _ = run(capsys, 'recommend', file, '--budget', '9MB', '--min-bytes', '1000')
    assert pasted(out)['ooc_min_bytes'] == 1000
    _, out, _ = run(capsys, 'recommend', file, '--budget', '9MB')
    assert 'ooc_min_bytes' not in pasted(out)


def test_without_scipy_the_lines_can_be_pasted_too(capsys, file, monkeypatch):
    monkeypatch.setitem(sys.modules, 'scipy.optimize', None)
    _, out, _ = run(capsys, 'recommend', file, '--budget', '9MB')
    assert 'chainer-ooc[auto]' in out and set(pasted(out)) == {'ooc', 'ooc_budget', 'ooc_workspace'}


def test_small_maps_of_a_loss_that_is_still_held_are_told(capsys, tmp_path):
    """While the next forward runs, in a loop that has its last loss still; a Trainer lets go of it before."""
    small = sum(each.nbytes for each in TRACE.maps if each.retained and each.nbytes < 3 * MB)
    assert small > 0.09 * MB
    _, out, _ = run(capsys, 'recommend', saved(tmp_path, TRACE), '--budget', '20MB', '--min-bytes', '3MB')
    assert '# a loop that has its last loss when the next forward begins needs up to' in out and pasted(out)
    _, out, _ = run(capsys, 'recommend', saved(tmp_path, TRACE), '--budget', '20MB', '--min-bytes', '1')
    assert 'last loss' not in out


def test_a_folder_that_is_called_like_a_model_is_none_of_its_files(capsys, tmp_path, monkeypatch):
    (tmp_path / 'alexnet').mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recommend, 'record', lambda name, batchsize, insize: TRACE)
    assert run_json(capsys, 'recommend', 'alexnet', '--budget', '9MB', '--batch', '8')['ooc'] == 'pooch'


@pytest.mark.parametrize('kind', ['missing', 'folder', 'loop'])
def test_a_file_that_cannot_be_read_is_no_name_of_a_model(capsys, tmp_path, kind):
    path = tmp_path / 'trace.json'
    if kind == 'folder':
        path.mkdir()
    elif kind == 'loop':
        path.symlink_to(path)
    assert str(path) in refusal(capsys, str(path), '--budget', '9MB')
