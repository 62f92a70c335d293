"""The soak itself: what it draws can be drawn again, what goes wrong is found, and nothing where all is well."""
import contextlib
import dataclasses
import gc
import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import chainer
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.execute.storage.storage import Storage
from soak_samples import QUANTITIES, Sample, draw, holders_of_storages, judge, left_behind, slope_of, take_sample
from soak_stretches import PARTS, DifferenceError, OocTraining, Runner, Setting, Stretch, draw_stretch, plain
from soak_trainings import NETWORKS, OPTIMIZERS, USES, Task, Training
from soak_troubles import (
    BadDisk,
    ChildError,
    FileSizeLimit,
    Fork,
    HookError,
    Interrupt,
    PlantedError,
    Reset,
    SmallDisk,
    Trouble,
)

SETTING = Setting('swap-all', None, 0, False)
TASK = Task('several', 3, ((('size', 9),), (('size', 12),)), 4, 'momentum', frozenset())


def run(troubles=None, task=TASK, setting=SETTING):
    runner = Runner(None)
    runner.run(Stretch(0, 'training', (task,), (setting,), '', troubles or {}, True))
    return runner.counts


def test_a_pass_elsewhere_is_over_when_an_interrupt_of_it_is_seen(monkeypatch):
    submit, begun, ended = ThreadPoolExecutor.submit, [], []

    def slow():
        begun.append(threading.get_ident())
        time.sleep(0.2)
        ended.append(threading.get_ident())

    def interrupted(pool, task, *arguments):
        found = submit(pool, task, *arguments)
        if task is not int:
            raise KeyboardInterrupt
        return found
    with contextlib.ExitStack() as stack:
        elsewhere = Runner(None).elsewhere(stack, SETTING)
        monkeypatch.setattr(ThreadPoolExecutor, 'submit', interrupted)
        with pytest.raises(KeyboardInterrupt):
            elsewhere(slow, 'backward')
        assert begun == ended != []


def test_no_thread_starts_where_an_interrupt_may_come(monkeypatch):
    with contextlib.ExitStack() as stack:
        elsewhere = Runner(None).elsewhere(stack, SETTING)
        monkeypatch.setattr(threading.Thread, 'start', lambda self: pytest.fail('another worker'))
        assert elsewhere(threading.get_ident, 'forward') != threading.get_ident()


def test_passes_of_a_stretch_may_run_in_another_thread():
    task = dataclasses.replace(TASK, crossings=frozenset({1}), passes=frozenset({0, 1, 2}))
    counts = run(task=task)
    assert (counts['forward in another thread'], counts['backward in another thread']) == (1, 3)


# --- trainings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('network', sorted(NETWORKS))
def test_task_gives_the_same_digests_again(network):
    sizes = tuple(sorted(NETWORKS[network].draw(random.Random(1)).items()))
    task = Task(network, 3, (sizes,), 2, 'adam', frozenset())
    first = plain(task)[0]
    assert first == plain(task)[0]
    assert first[0] != first[1]


@pytest.mark.parametrize('optimizer', sorted(OPTIMIZERS))
@pytest.mark.parametrize('network', ['residual', 'hidden', 'thin-stack'])
def test_iteration_is_repeated_from_what_was_saved(network, optimizer):
    sizes = tuple(sorted(NETWORKS[network].draw(random.Random(1)).items()))
    training = Training(Task(network, 3, (sizes,), 3, optimizer, frozenset({'evaluate'})))
    for number in range(2):
        saved = training.save()
        found = training.iterate(number)
        training.iterate(number + 1)
        training.restore(saved)
        assert training.iterate(number) == found


def test_digests_tell_every_use_apart():
    task = Task('residual', 3, ((('side', 8), ('size', 4)),), 1, 'momentum', frozenset(USES))
    labels = [label.split()[0] for label, _ in plain(task)[0][0]]
    assert {'evaluation', 'node', 'map', 'loss', 'gradient', 'parameter', 'persistent'} == set(labels)
    assert labels.count('loss') == 2  # accumulated over two batches


def test_write_to_a_map_changes_the_gradients():
    changed = []
    for seed in range(4):  # which says the map; not every map is one that backward reads
        given = [Task('residual', seed, ((('side', 8), ('size', 4)),), 3, 'momentum', frozenset({use}))
                 for use in ('hold a map', 'write to a map')]
        held, written = (plain(each)[0] for each in given)
        assert [each for each in held[1] if not each[0].startswith('map')] == written[1]
        changed += [each for each in held[2] if each[0].startswith('gradient') and each not in written[2]]
    assert changed


# --- stretches -------------------------------------------------------------------------------------------------------


def test_stretch_is_drawn_again_of_seed_and_number():
    drawn = [draw_stretch(7, number, ['pooch', 'keep']) for number in range(100)]
    assert drawn == [draw_stretch(7, number, ['pooch', 'keep']) for number in range(100)]
    assert drawn[:20] != [draw_stretch(8, number, ['pooch', 'keep']) for number in range(20)]
    assert {each.kind for each in drawn} == {'training', 'crowd', 'program'}
    assert any(task.crossings for each in drawn for task in each.tasks)
    assert any(task.passes for each in drawn for task in each.tasks)
    assert len({name for each in drawn for name, _ in each.troubles.values()}) > 8


def test_what_is_left_out_is_not_drawn():
    networks = sorted(set(NETWORKS) - {'old'})
    for number in range(50):
        each = draw_stretch(7, number, ['keep'], [*networks, 'crossing', 'crowd', 'program', 'interrupt'])
        assert (each.kind, each.tasks[0].network, each.tasks[0].has_two_threads) == ('training', 'old', False)
        assert 'interrupt' not in [name for name, _ in each.troubles.values()]
    assert {'old', 'interrupt', 'crowd'} < PARTS


def test_training_out_of_core_has_the_bits_of_plain_chainer():
    assert run(setting=Setting('pooch', 0.5, 0, False))['training'] == 1


@pytest.mark.usefixtures('copies_end_at_once')
def test_byte_that_changes_on_its_way_back_is_found(monkeypatch):
    preadv = os.preadv

    def corrupt(descriptor, buffers, offset, *flags):
        count = preadv(descriptor, buffers, offset, *flags)
        buffers[0][0] ^= 1
        return count
    monkeypatch.setattr(os, 'preadv', corrupt)
    with pytest.raises(DifferenceError, match=r'WRONG BITS: several: .* differ in iteration'):
        run()


def test_exception_that_no_trouble_explains_ends_the_stretch(monkeypatch):
    monkeypatch.setattr(OocTraining, '_iterate', lambda self, *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run()


# --- troubles --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('name', ['hook', 'file size', 'write error', 'read error', 'part', 'reset'])
def test_iteration_is_repeated_after_a_trouble_with_the_same_bits(name):
    counts = run({1: (name, 0.1), 2: (name, 0.5)})
    assert counts[f'{name}, tried'] == 2


def test_interrupt_comes_once_and_not_after_its_iteration():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a process that was started in the background
    interrupt = Interrupt(0.01)
    with pytest.raises(KeyboardInterrupt) as caught, interrupt:
        time.sleep(60)
    assert interrupt.explains(caught.value)
    with Interrupt(0.02) as late:
        pass
    late._fire()  # as a timer does that could not be cancelled in time
    time.sleep(0.1)
    assert not late.has_happened
    assert signal.signal(signal.SIGINT, before) == signal.SIG_IGN


def test_interrupt_of_an_operator_is_not_explained():
    assert not Interrupt(60.0).explains(KeyboardInterrupt())


def test_hook_raises_at_its_call():
    x = chainer.Variable(np.ones(3, np.float32))
    hook = HookError(2, backward=False)
    with hook:
        y = chainer.functions.tanh(chainer.functions.exp(x))
        with pytest.raises(PlantedError, match='forward_postprocess of sin') as caught:
            chainer.functions.sin(y)
        chainer.functions.cos(y)
    assert hook.explains(caught.value)
    assert not chainer.get_function_hooks()


def test_limits_are_as_before_after_a_trouble(tmp_path):
    before, pwritev = resource.getrlimit(resource.RLIMIT_FSIZE), os.pwritev
    with FileSizeLimit(100), BadDisk(1, 1.0, 'write error'), open(tmp_path / 'file', 'wb', buffering=0) as stream:
        with pytest.raises(OSError, match='Input/output error'):
            os.pwritev(stream.fileno(), [memoryview(b'1')], 0)
        stream.write(b'1' * 100)
        with pytest.raises(OSError, match='File too large'):
            stream.write(b'1')
    assert resource.getrlimit(resource.RLIMIT_FSIZE) == before
    assert os.pwritev is pwritev


@pytest.mark.filterwarnings('ignore:.*RAM disk')
@pytest.mark.usefixtures('copies_end_at_once')
def test_iteration_is_repeated_after_its_disk_was_full(tmp_path):
    if not SmallDisk.mount(str(tmp_path)):
        pytest.skip('mounting a file system is not allowed here')
    try:
        runner = Runner(str(tmp_path))
        setting = Setting('swap-all', 0.5, 0, True)  # else it goes on in memory
        runner.run(Stretch(0, 'training', (TASK,), (setting,), '', {1: ('small disk', 0.0)}, True))
        assert runner.counts['SmallDisk: SpillError'] == 1
        with SmallDisk(str(tmp_path), 100_000):
            with pytest.raises(OSError, match='No space'):
                (tmp_path / 'file').write_bytes(b'1' * 200_000)
            (tmp_path / 'file').unlink()
        (tmp_path / 'file').write_bytes(b'1' * 200_000)
    finally:
        chainer_ooc.reset()
        SmallDisk.unmount(str(tmp_path))


def test_part_of_a_write_is_moved(tmp_path):
    with open(tmp_path / 'file', 'wb', buffering=0) as stream, BadDisk(1, 1.0, 'part') as trouble:
        assert os.pwritev(stream.fileno(), [memoryview(b'123456')], 0) == 2
        assert not trouble.has_happened  # it is no error that a program would see


def test_child_that_finds_something_is_an_error():
    Fork(lambda loss: '').between(None)
    with pytest.raises(ChildError, match='WRONG BITS'):
        Fork(lambda loss: 'WRONG BITS').between(None)
    with pytest.raises(ChildError, match='ZeroDivisionError'):
        Fork(lambda loss: 1 / 0).between(None)


def test_only_what_is_explained_is():
    assert not Trouble().explains(KeyboardInterrupt())
    assert not Reset().explains(OSError())
    assert not FileSizeLimit(1).explains(ZeroDivisionError())


# --- growth ----------------------------------------------------------------------------------------------------------


def samples(**series):
    count = len(next(iter(series.values())))
    return [Sample(float(minute), *(series.get(each.field, [5] * count)[minute] for each in QUANTITIES))
            for minute in range(count)]


def verdicts(given):
    return {row['quantity']: row['verdict'] for row in judge(given)}


def test_slope_of_a_line_is_found_in_spite_of_outliers():
    points = [(x, 3.0 * x + 1) for x in range(30)]
    points[4], points[11] = (4, 900.0), (11, -900.0)
    median, low, high = slope_of(points)
    assert median == low == high == pytest.approx(3)


def test_noise_is_flat_and_a_slow_leak_is_not():
    noise = random.Random(1)
    level = [100e6 + noise.uniform(-5e6, 5e6) for _ in range(120)]
    leaking = [each + 20e6 * minute / 60 for minute, each in enumerate(level)]
    assert set(verdicts(samples(resident_bytes=level)).values()) == {'flat'}
    assert verdicts(samples(resident_bytes=leaking))['resident [MB]'] == 'NOT FLAT'


def test_one_descriptor_an_hour_is_not_flat():
    assert verdicts(samples(descriptors=[5 + minute // 60 for minute in range(180)]))['descriptors'] == 'NOT FLAT'


def test_what_grows_while_it_warms_up_does_not_count():
    noise = random.Random(1)
    given = [min(10 * minute, 240) + noise.randint(-3, 3) for minute in range(100)]
    assert verdicts(samples(storages=given))['storages'] == 'flat'


def test_few_samples_give_no_verdict():
    assert set(verdicts(samples(nodes=[1, 2, 3, 4])).values()) == {'too short'}


def test_what_has_a_storage_that_is_left_is_named():
    class Keeper:
        pass

    keeper = Keeper()
    keeper.storage = Storage(None, np.zeros(7, np.uint8))
    assert any(each.startswith('a storage of 7 bytes, RESIDENT, held by ') and 'Keeper' in each
               for each in holders_of_storages())
    del keeper
    gc.collect()
    assert not any('of 7 bytes' in each for each in holders_of_storages())


def test_what_is_left_behind_is_named():
    before, after = samples(threads=[3, 4], spill_bytes=[0, 7_000_000], descriptors=[6, 5])
    assert left_behind(before, after) == ['threads: 3 before, 4 after', 'spill files [MB]: 0 before, 7 after']


def test_sample_sees_threads_descriptors_and_nameless_files(tmp_path):
    before = take_sample(time.monotonic())
    with open(tmp_path / 'file', 'wb') as stream:
        stream.truncate(12345)
        os.unlink(tmp_path / 'file')
        x = chainer.Variable(np.ones(3, np.float32))
        seen = take_sample(time.monotonic())
        assert seen.descriptors == before.descriptors + 1
        assert seen.spill_bytes == before.spill_bytes + 12345
        assert seen.nodes == before.nodes + 1
        del x
    assert seen.resident_bytes > 1e6


def test_samples_are_drawn(tmp_path, matplotlib):
    draw(samples(storages=list(range(20))), tmp_path / 'soak.png', 'title')
    assert (tmp_path / 'soak.png').read_bytes().startswith(b'\x89PNG')


# --- the command -----------------------------------------------------------------------------------------------------


def test_command_writes_what_it_saw_and_ends_well(tmp_path):
    command = [sys.executable, str(Path(__file__).with_name('soak.py')), '--stretches', '2', '--sample-seconds', '0',
               '--policies', 'keep', 'swap-all', '--out', str(tmp_path), '--without', 'crossing', 'crowd', 'program',
               'fork and train', 'fork and finish', *sorted(set(NETWORKS) - {'several', 'old'})]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'left behind after the last reset: nothing' in done.stdout
    assert len((tmp_path / 'samples.jsonl').read_text().splitlines()) == 3
    figures = json.loads((tmp_path / 'soak.json').read_text())
    assert (figures['findings'], figures['left_behind'], figures['counts']['training']) == ({}, [], 2)
    assert (tmp_path / 'findings.txt').read_text() == ''
