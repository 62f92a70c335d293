"""``doctor``: what it finds, how it shows it, and what it says where something is missing."""
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import chainer_ooc  # noqa: F401  before chainer

# isort: split
import numpy as np
import pytest

from chainer_ooc.backends.host import onednn
from chainer_ooc.cli import doctor
from support.command_line import run, run_json

ROOT = Path(__file__).resolve().parent.parent


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


def test_doctor_shows_speeds_as_ranges_and_the_disk_beside_the_page_cache(capsys, tmp_path):
    speeds = {'write_bytes_per_second': (8.25e9, 14e9), 'read_bytes_per_second': (9e8, 9e8),
              'latency_seconds': (40e-6, 41.3e-6), 'slowdown': (0.3, 0.3)}
    disk = {'write_range_bytes_per_second': (0.5e9, 0.93e9), 'read_range_bytes_per_second': (1.1e9, 1.4e9)}
    facts = {'device': 'host', 'budget_bytes': 1, 'budget_limit': 'RLIMIT_DATA', 'spill_folder': '/tmp',
             'spill_filesystem': 'ext4', 'spill_free_bytes': 1, 'onednn': None, 'disk': disk, 'ranges': speeds}
    shown = doctor._show_device(facts)
    assert shown['spill disk'] == '0.50 to 0.93 GB/s out, 1.1 to 1.4 GB/s in'
    assert shown['in the page cache'] == (
        '8.2 to 14.0 GB/s out, 0.90 GB/s in, 0.04 ms latency; computations beside it take 1.30 times as long')
    assert doctor._show_device({**facts, 'disk': None})['spill disk'].startswith('not measured: ')
    found = run_json(capsys, 'doctor', '--spill-dir', str(tmp_path))['device']
    assert found['ranges'].keys() == speeds.keys()
    assert all(low <= found[name] <= high for name, (low, high) in found['ranges'].items())
    low, high = found['ranges']['write_bytes_per_second']
    assert low < high  # of several, each of which was measured


def test_doctor_names_a_folder_that_cannot_be_used(capsys, tmp_path):
    status, out, _ = run(capsys, 'doctor', '--spill-dir', str(tmp_path / 'missing'))
    assert status == 1
    assert f"problem: device: cannot make a spill file in '{tmp_path / 'missing'}'" in ' '.join(out.split())
    assert 'ooc_spill_dir' in out


@pytest.mark.parametrize(('found', 'line'), [
    (onednn.OnednnPresence('/lib/libdnnl.so.3', '3.9.0', 'onednn 2025.2.0', 2),
     '3.9.0 of onednn 2025.2.0 (libdnnl.so.3), 2 threads; used where chainer.config.use_ideep is "auto"'),
    pytest.param(onednn.OnednnPresence('libdnnl.so.3', '3.1.1', None, None),
                 '3.1.1 of the system (libdnnl.so.3); used where', marks=pytest.mark.long),
    (None, 'absent; for chainer.config.use_ideep = "auto": install it with pip install \'chainer-ooc[cpu]\'')])
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
