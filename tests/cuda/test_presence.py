"""What `doctor` says about CuPy, CUDA and cuDNN, of stand-ins for them and of what is installed here."""
import importlib.metadata
import sys
import types

import pytest

from chainer_ooc.backends.cuda import presence
from support.command_line import run, run_json

GPU = {'name': b'Some GPU', 'major': 9, 'minor': 0, 'totalGlobalMem': 80 << 30}
ALL = {'cupy-cuda13x': '14.2.0', 'nvidia-cudnn-frontend': '1.32.0', 'cuda-bindings': '13.5.0'}


def gives(value):
    return lambda *arguments: value


def raises(error):
    def call(*arguments):
        raise error
    return call


def make_cupy(*gpus, driver=13000, build=13020, count=None, missing=()):
    """The few names of CuPy that are asked for; a library that is missing raises when it is looked up."""
    runtime = types.SimpleNamespace(
        driverGetVersion=gives(driver), getDeviceProperties=lambda number: gpus[number],
        getDeviceCount=count or gives(len(gpus)))
    cuda = types.ModuleType('cupy.cuda')
    cuda.runtime, cuda.driver = runtime, types.SimpleNamespace(get_build_version=gives(build))
    cuda.nvrtc = types.SimpleNamespace(getVersion=gives((13, 0)))
    cuda.Device = lambda number: types.SimpleNamespace(mem_info=(70 << 30, 80 << 30))
    cuda.__getattr__ = lambda name: raises(ImportError(f'no lib{name}'))() if name in missing else object()
    module = types.ModuleType('cupy')
    module.cuda, module.__version__ = cuda, '14.2.0'
    return module


@pytest.fixture
def machine(monkeypatch):
    """Puts stand-ins in place: modules, None for what cannot be imported, and the versions of installed packages.

    The doctor leaves the host's own disk and workspace alone.
    """
    from chainer_ooc.cli import doctor
    monkeypatch.setattr(doctor, 'disk_speed', gives(None))
    monkeypatch.setattr(doctor, 'try_workspace', gives(
        {'seconds': 0.2, 'scratch_bytes': 9_000_000, 'workspace_seconds': 0.1, 'workspace_bytes': 1_000_000}))
    honest = importlib.metadata.version

    def make(cupy, packages, cudnn=92800):
        backend_version = raises(cudnn) if isinstance(cudnn, Exception) else gives(cudnn)
        monkeypatch.setitem(sys.modules, 'cupy', cupy)
        monkeypatch.setitem(sys.modules, 'cudnn', types.SimpleNamespace(backend_version=backend_version))

        def version(name):
            if name in packages:
                return packages[name]
            if name in (*presence.PACKAGES, *ALL):
                raise importlib.metadata.PackageNotFoundError(name)
            return honest(name)
        monkeypatch.setattr(importlib.metadata, 'version', version)
    return make


def examine():
    found = presence.examine()
    return found, ' '.join(found['warnings'])


def test_without_cupy_there_is_nothing_to_warn_of(machine):
    machine(None, {})
    found, warnings = examine()
    assert (found['packages'], found['cupy'], warnings) == ((), None, '')


def test_a_whole_installation_is_shown(machine):
    machine(make_cupy(GPU), ALL)
    assert examine() == ({
        'packages': ('cupy-cuda13x',), 'cupy': '14.2.0', 'built_for': '13.2', 'driver': '13.0', 'missing': (),
        'gpus': ({'name': 'Some GPU', 'compute_capability': '9.0', 'total_bytes': 80 << 30, 'free_bytes': 70 << 30},),
        'cudnn': '9.28.0', 'cudnn_frontend': '1.32.0', 'cuda_bindings': '13.5.0', 'warnings': ()}, '')


def test_without_a_driver_that_is_the_only_advice(machine):
    machine(make_cupy(driver=0, count=raises(RuntimeError('cudaErrorInsufficientDriver')), missing=('cublas',)),
            {'cupy-cuda13x': '14.2.0'}, cudnn=RuntimeError('no library'))
    found, warnings = examine()
    assert found['driver'] is None
    assert len(found['warnings']) == 1
    assert "install NVIDIA's driver" in warnings


def test_an_old_driver_is_told_from_none(machine):
    machine(make_cupy(driver=12040, count=raises(RuntimeError('cudaErrorInsufficientDriver'))), ALL)
    assert 'the driver supports CUDA 12.4' in examine()[1]
    assert 'cupy-cuda12x' in examine()[1]


def test_a_driver_without_a_gpu_points_at_what_may_hide_it(machine):
    machine(make_cupy(count=raises(RuntimeError('cudaErrorNoDevice: no CUDA-capable device is detected'))), ALL)
    assert 'CUDA_VISIBLE_DEVICES' in examine()[1]
    assert 'cudaErrorNoDevice' in examine()[1]


def test_missing_libraries_are_named_with_the_package_that_has_them(machine):
    machine(make_cupy(GPU, build=12090, missing=('cublas', 'cusolver')), {'cupy-cuda12x': '14.2.0'},
            cudnn=RuntimeError('Unable to find symbol cudnnGetVersion'))
    found, warnings = examine()
    assert found['missing'] == ('cublas', 'cusolver')
    assert 'pip install "cupy-cuda12x[ctk]"' in warnings
    assert 'pip install nvidia-cudnn-frontend nvidia-cudnn-cu12' in warnings
    assert 'cuda-bindings==12.*' in warnings


def test_several_packages_of_cupy_are_warned_of(machine):
    machine(make_cupy(GPU), {**ALL, 'cupy-cuda12x': '14.2.0'})
    assert 'several packages hold CuPy (cupy-cuda13x, cupy-cuda12x)' in examine()[1]


def test_a_cupy_that_cannot_be_imported_is_a_warning(machine, capsys):
    machine(None, ALL)  # None in sys.modules: the import fails
    found, warnings = examine()
    assert found['cupy'] is None
    assert 'cannot be imported (ModuleNotFoundError' in warnings
    assert 'CuPy  cannot be imported' in run(capsys, 'doctor')[1]


def test_whatever_raises_is_survived(machine):
    broken = types.ModuleType('cupy')
    broken.__getattr__ = raises(OSError('a library is damaged'))
    machine(broken, ALL, cudnn=OSError('damaged'))
    found, _ = examine()
    assert found['gpus'] == ()


def test_a_gpu_that_does_not_answer_is_left_out(machine):
    machine(make_cupy(GPU, {'name': b'broken'}), ALL)
    assert [each['name'] for each in examine()[0]['gpus']] == ['Some GPU']


@pytest.fixture
def tried(monkeypatch):
    """Stand-ins for the card that the doctor tries; gives the devices that trainings were tried on."""
    from chainer_ooc.cli import doctor
    devices = []

    def try_training(spill_dir, device='@numpy'):
        devices.append(device)
        return {'swap': 3, 'swapped_in_bytes': 1000}

    monkeypatch.setattr(doctor, 'try_training', try_training)
    monkeypatch.setattr(doctor, 'gpu_device', lambda spill_dir: {
        'device_name': 'Some GPU', 'near_free_bytes': 70 << 30, 'pinned_limit_bytes': 96 << 30, 'warnings': [],
        'write_bytes_per_second': 5e10, 'read_bytes_per_second': 5e10, 'latency_seconds': 1e-5, 'ranges': {
            'write_bytes_per_second': (5e10, 5e10), 'read_bytes_per_second': (4e10, 5e10),
            'latency_seconds': (1e-5, 2e-5)}})
    return devices


def test_doctor_tries_the_card_too(machine, tried, capsys):
    machine(make_cupy(GPU), ALL)
    found = run_json(capsys, 'doctor')
    assert tried == ['@numpy', '@cupy:0']
    assert found['can_train'] is True
    assert found['gpu_training'] == {'swap': 3, 'swapped_in_bytes': 1000}
    shown = ' '.join(run(capsys, 'doctor')[1].split())
    assert 'up to 103.08 GB' in shown
    assert 'link 50.0 GB/s out, 40.0 to 50.0 GB/s in, 0.01 to 0.02 ms latency' in shown


def test_a_card_that_does_not_train_is_a_problem(machine, tried, capsys, monkeypatch):
    from chainer_ooc.cli import doctor
    machine(make_cupy(GPU), ALL)
    monkeypatch.setattr(doctor, 'gpu_device', raises(RuntimeError('cudaErrorNoKernelImageForDevice')))
    status, out, _ = run(capsys, 'doctor')
    assert status == 1
    assert tried == ['@numpy']
    assert 'problem: gpu_device: RuntimeError: cudaErrorNoKernelImageForDevice' in out


def test_doctor_shows_the_gpu_and_its_memory(machine, tried, capsys):
    machine(make_cupy(GPU), ALL)
    status, out, _ = run(capsys, 'doctor')
    assert status == 0
    assert 'Some GPU, compute capability 9.0, 85.90 GB, 75.16 GB free' in ' '.join(out.split())
    assert 'supports CUDA up to 13.0' in out
    assert 'warning: ' not in out


def test_doctor_moves_the_advice_to_its_warnings(machine, capsys):
    machine(make_cupy(driver=0), ALL)
    found = run_json(capsys, 'doctor')
    assert found['can_train'] is True
    assert 'warnings' not in found['cuda']
    assert any('driver' in line for line in found['warnings'])


def test_what_is_installed_here_answers(capsys):
    found = run_json(capsys, 'doctor')['cuda']
    assert (found['cupy'] is None) == (found['packages'] == [])
    assert found['gpus'] == [] or found['driver']
