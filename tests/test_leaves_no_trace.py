"""The fixture of conftest.py itself: it must see each kind of leak, and must not need chainer."""
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name('conftest.py')
LEAKS = {
    'function hooks': """
        import chainer_ooc, chainer
        class Hook(chainer.FunctionHook):
            name = 'left'
        Hook().__enter__()""",
    'configuration': """
        import chainer_ooc, chainer
        chainer.config.ooc = 'keep'""",
    'tracemalloc': """
        import tracemalloc
        tracemalloc.start()""",
    'threads': """
        import threading
        threading.Thread(target=threading.Event().wait, daemon=True, name='chainer_ooc-left').start()""",
    'descriptors': """
        global file
        file = open(__file__)""",
}


def run_test(folder, body):
    """Runs one test of this body under a copy of our conftest.py; returns pytest's output."""
    (folder / 'conftest.py').write_text(CONFTEST.read_text())
    (folder / 'test_it.py').write_text(f'def test_it():{body}\n')
    (folder / 'pytest.ini').write_text('[pytest]\n')
    done = subprocess.run([sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider'], cwd=folder, text=True,
                          stdout=subprocess.PIPE)
    return done.stdout


@pytest.mark.parametrize('kind', LEAKS)
def test_what_is_left_behind_is_named(tmp_path, kind):
    output = run_test(tmp_path, LEAKS[kind])
    assert f'\n{kind}: ' in output
    assert '1 passed, 1 error' in output


def test_a_test_that_never_imports_chainer_passes(tmp_path):
    output = run_test(tmp_path, """
        import sys
        assert 'chainer' not in sys.modules""")
    assert output.startswith('.')
    assert '1 passed' in output


def test_what_a_driver_opens_is_not_left_behind(tmp_path):
    output = run_test(tmp_path, """
        import builtins, os
        readlink, file = os.readlink, open(__file__)
        builtins.kept = file
        number = f'/proc/self/fd/{file.fileno()}'
        os.readlink = lambda path: '/dev/nvidia-uvm' if path == number else readlink(path)""")
    assert '1 passed in' in output


def test_a_descriptor_that_the_garbage_collector_closes_is_not_left_behind(tmp_path):
    output = run_test(tmp_path, """
        import os
        class Owner:
            def __init__(self):
                self.me = self
                self.descriptor = os.open(__file__, os.O_RDONLY)
            def __del__(self):
                os.close(self.descriptor)
        Owner()""")
    assert '1 passed' in output
    assert 'error' not in output
