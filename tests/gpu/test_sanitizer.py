"""The small run, by itself and under compute-sanitizer where that is installed."""
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

SMALL_RUN = pathlib.Path(__file__).with_name('small_run.py')
FOUND = 9  # the exit status that the tool is told to end with


def test_the_small_run_gives_the_same_bits():
    done = subprocess.run([sys.executable, str(SMALL_RUN)], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == 'ok'


@pytest.mark.timeout(600)
@pytest.mark.parametrize('tool', ['memcheck', 'racecheck'])
def test_compute_sanitizer_finds_nothing(tool):
    folders = [os.path.join(os.environ[name], 'bin') for name in ('CUDA_PATH', 'CUDA_HOME') if name in os.environ]
    sanitizer = shutil.which('compute-sanitizer', path=os.pathsep.join([os.environ.get('PATH', ''), *folders]))
    if sanitizer is None:
        pytest.skip('compute-sanitizer is neither on PATH nor in CUDA_PATH; it comes with the CUDA toolkit')
    done = subprocess.run([sanitizer, '--tool', tool, '--error-exitcode', str(FOUND), sys.executable, str(SMALL_RUN)],
                          capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode != FOUND, done.stdout[-4000:]
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert 'ok' in done.stdout.splitlines()
