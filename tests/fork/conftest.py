"""A site folder of our own with a copy of Chainer that a test may spoil, and a bare Python to run in it."""
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _chainer_folder():
    return Path(importlib.util.find_spec('chainer').origin).parent


def _link_others(site):
    """Everything else that is installed, so that the copy is the only Chainer in sight."""
    for folder in {sysconfig.get_path('purelib'), sysconfig.get_path('platlib'), str(_chainer_folder().parent)}:
        for entry in Path(folder).iterdir():
            ours = entry.name in ('chainer', 'chainer_ooc') or entry.suffix == '.pth'
            if not ours and not (site / entry.name).exists():
                (site / entry.name).symlink_to(entry)


class Site:
    """A site folder; `run` gives the finished process of a Python that sees it and this checkout alone."""

    def __init__(self, folder):
        self.folder = folder
        self.chainer = folder / 'chainer'

    def run(self, code, *flags, cwd=None):
        path = os.pathsep.join([str(self.folder), str(ROOT)])
        environment = {**os.environ, 'PYTHONPATH': path, 'PYTHONDONTWRITEBYTECODE': '', 'PYTHONWARNINGS': ''}
        return subprocess.run([sys.executable, '-S', *flags, '-c', code], env=environment, cwd=cwd or self.folder,
                              capture_output=True, text=True, timeout=120)

    def output(self, code, *flags):
        done = self.run(code, *flags)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def error(self, code):
        done = self.run(code)
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stderr.strip().splitlines()[-1]


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / 'site'
    folder.mkdir()
    shutil.copytree(_chainer_folder(), folder / 'chainer')  # with its bytecode, which serves as long as files stay
    _link_others(folder)
    return Site(folder)


@pytest.fixture
def git():
    """Runs git in a folder; a machine without git has nothing to compare with."""
    if shutil.which('git') is None:
        pytest.skip('git is not installed')

    def run(folder, *arguments):
        return subprocess.run(['git', '-C', str(folder), *arguments], check=True, capture_output=True, text=True).stdout

    return run
