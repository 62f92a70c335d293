"""What a wheel holds, and that it works away from the checkout."""
import configparser
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
    """The wheel of this checkout, built without the network from a copy: building leaves folders behind."""
    pytest.importorskip('setuptools', reason='building needs setuptools, which tests/run.sh installs')
    source, target = tmp_path_factory.mktemp('source'), tmp_path_factory.mktemp('wheel')
    for name in ('setup.cfg', 'setup.py', 'pyproject.toml', 'README.md', 'LICENSE'):
        shutil.copy(ROOT / name, source)
    for name in ('chainer_ooc', 'patches'):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns('__pycache__'))
    run_python('-m', 'pip', 'wheel', '--quiet', '--no-deps', '--no-build-isolation', '--wheel-dir', target, source)
    return next(target.glob('*.whl'))


@pytest.fixture(scope='module')
def installed(wheel, tmp_path_factory):
    """A folder that holds the installed package and nothing else."""
    folder = tmp_path_factory.mktemp('installed')
    run_python('-m', 'pip', 'install', '--quiet', '--no-deps', '--no-index', '--target', folder, wheel)
    return folder


def run_python(*arguments, **options):
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, **options)


def run_installed(folder, *arguments):
    """Runs Python away from the checkout; the folder comes before the environment's own editable install."""
    return run_python(*arguments, cwd=folder.parent, env={**os.environ, 'PYTHONPATH': str(folder)}).stdout


def test_a_wheel_holds_every_module_and_every_patch(wheel):
    expected = {str(file.relative_to(ROOT)) for ending in ('py', 'cu')
                for file in (ROOT / 'chainer_ooc').rglob(f'*.{ending}')}
    expected |= {f'chainer_ooc/{file.relative_to(ROOT)}' for pattern in ('*.patch', '*.sha256', 'README.md')
                 for file in (ROOT / 'patches').glob(pattern)}
    expected |= {f'chainer_ooc/report/assets/{file.name}' for file in (
        ROOT / 'chainer_ooc' / 'report' / 'assets').iterdir()}
    assert 'chainer_ooc/report/assets/uPlot.LICENSE' in expected
    expected.add('chainer_ooc/py.typed')
    with zipfile.ZipFile(wheel) as archive:
        assert not expected - set(archive.namelist())


def test_a_wheel_holds_nothing_outside_of_the_package(wheel):
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split('/')[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith('.dist-info')} == {'chainer_ooc'}


def test_an_installed_package_patches_chainer(installed):
    code = 'import chainer_ooc, chainer; print(chainer_ooc.__file__); chainer.config.ooc = "keep"'
    assert run_installed(installed, '-c', code).startswith(str(installed))


def test_an_installed_package_has_its_patches_inside(installed):
    report = json.loads(run_installed(installed, '-m', 'chainer_ooc', 'doctor', '--json'))
    assert report['patches']['folder'] == str(installed / 'chainer_ooc' / 'patches')
    assert report['patches']['count'] == len(list((ROOT / 'patches').glob('*.patch')))


def test_the_entry_point_is_the_command_line(wheel):
    with zipfile.ZipFile(wheel) as archive:
        entry_points = next(name for name in archive.namelist() if name.endswith('entry_points.txt'))
        parser = configparser.ConfigParser()
        parser.read_string(archive.read(entry_points).decode())
    assert parser['console_scripts']['chainer-ooc'] == 'chainer_ooc.cli:main'
