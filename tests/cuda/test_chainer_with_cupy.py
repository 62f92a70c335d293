"""Chainer where CuPy is installed and no driver is: it says so when it is asked for a GPU, and trains on the CPU.

Each test runs in a process of its own, since what an import says it says once.
"""
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
cupy = pytest.importorskip('cupy', reason='the wheel of CuPy is not installed')


def no_driver():
    try:
        return cupy.cuda.runtime.driverGetVersion() == 0
    except cupy.cuda.runtime.CUDARuntimeError:
        return True


pytestmark = pytest.mark.skipif(not no_driver(), reason='there is a driver; this is about machines without one')

TRAINING = """
import chainer_ooc, chainer, numpy as np, chainer.functions as F, chainer.links as L, hashlib
np.random.seed(0)
model = L.Classifier(chainer.Sequential(L.Convolution2D(3, 4, 3), F.relu, L.BatchNormalization(4), L.Linear(None, 5)))
optimizer = chainer.optimizers.Adam().setup(model)
for _ in range(3):
    optimizer.update(model, np.random.rand(4, 3, 8, 8).astype('f'), np.arange(4, dtype='i'))
print(hashlib.sha256(b''.join(each.array.tobytes() for _, each in sorted(model.namedparams()))).hexdigest())
"""
# Chainer finds a driver, which CuPy has looked for in vain before.
A_DRIVER = """
import ctypes, chainer_ooc, cupy
honest = ctypes.CDLL
ctypes.CDLL = lambda name, *rest, **options: None if name == 'libcuda.so.1' else honest(name, *rest, **options)
"""
WITHOUT_CUPY = "import sys\nsys.modules['cupy'] = None\n"


def python(code, *flags, **environment):
    """What a process prints: stdout, and stderr."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get('PYTHONPATH')]))
    done = subprocess.run([sys.executable, *flags, '-c', code], capture_output=True, text=True, timeout=200,
                          env={**os.environ, 'OMP_NUM_THREADS': '1', **environment, 'PYTHONPATH': path})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr.strip()


def error_of(act, **environment):
    """The line that Chainer's RuntimeError begins with."""
    out, _ = python(f'import chainer_ooc, chainer, numpy as np\ntry:\n    {act}\n'
                    'except RuntimeError as error:\n    print(error)', **environment)
    return out.splitlines()[0]


def test_the_import_says_nothing_and_finds_no_gpu():
    code = 'import chainer_ooc, chainer\nfrom chainer.backends import cuda\nprint(cuda.available, cuda.cudnn_enabled)'
    assert python(code, '-W', 'default') == ('False False', '')


@pytest.mark.parametrize('act', [
    "chainer.backends.cuda.to_gpu(np.zeros(1, 'f'))", 'chainer.links.Linear(2, 2).to_gpu()',
    "chainer.get_device('@cupy:0')", 'chainer.backends.cuda.check_cuda_available()'])
def test_whoever_asks_for_a_gpu_is_told_of_the_driver(act):
    line = error_of(act)
    assert line.startswith(f'CUDA environment is not correctly set up: CuPy {cupy.__version__} is installed')
    assert "install NVIDIA's driver" in line


def test_hidden_gpus_are_told_from_a_missing_driver():
    line, _ = python(A_DRIVER + 'from chainer.backends import cuda\nprint(cuda.available, cuda._resolution_error)',
                     CUDA_VISIBLE_DEVICES='')
    assert line == "False CUDA_VISIBLE_DEVICES='' hides all GPUs"


def test_runtime_information_is_printed():
    out, _ = python('import chainer_ooc, chainer; chainer.print_runtime_info()')
    assert 'Chainer: 7.8.1' in out
    assert 'CuPy: Not Available' in out


def test_nccl_is_not_taken_for_there():
    code = ('import chainer_ooc\nfrom chainer.training import updaters\n'
            'print(updaters.MultiprocessParallelUpdater.available())')
    assert python(code, '-W', 'default') == ('False', '')


def test_a_training_on_the_cpu_has_the_bits_that_it_has_without_cupy():
    assert python(TRAINING) == python(WITHOUT_CUPY + TRAINING)
