"""What a user's program, debugger and tools see of patched modules."""
import importlib
import inspect
import pickle
import shutil
import subprocess
import sys
import textwrap
import traceback

import chainer_ooc  # noqa: F401  before chainer

# isort: split
import chainer
import numpy as np
import pytest

from chainer_ooc import fork
from chainer_ooc.fork import series


def test_install_is_idempotent_and_silent_after_the_import():
    before = list(sys.meta_path)
    fork.install()
    assert sys.meta_path == before


def test_every_patched_module_shows_the_text_that_runs(site):
    code = """
        import chainer_ooc, importlib, inspect, linecache
        from chainer_ooc.fork import check, series
        site = check()
        for path in series.load().diffs:
            if path.startswith('chainermn/'):  # needs an MPI
                continue
            name = path.removesuffix('.py').removesuffix('/__init__').replace('/', '.')
            module = importlib.import_module(name)
            linecache.checkcache()
            expected = series.load().patched(path, site)
            assert inspect.getsource(module) == expected == module.__loader__.get_source(name), path
            assert module.__file__ == str(site / path)
    """
    site.output(textwrap.dedent(code))


def test_a_traceback_shows_the_patched_line():
    with pytest.raises(ValueError, match='could not convert') as caught:
        chainer.functions.pad_sequence([np.zeros(2, 'f'), np.zeros(1, 'f')], padding='much')
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert last.filename.endswith('chainer/functions/array/pad_sequence.py')
    assert last.line == 'y[i, l:] = numpy.asarray(self.padding).astype(y.dtype)[()]'


def test_an_uncaught_exception_shows_the_patched_line(site):
    done = site.run('import chainer_ooc, chainer, numpy\n'
                    'chainer.functions.pad_sequence([numpy.zeros(2), numpy.zeros(1)], padding="much")')
    assert '\n    y[i, l:] = numpy.asarray(self.padding).astype(y.dtype)[()]\n' in done.stderr
    assert done.stderr.startswith('Traceback (most recent call last):\n')
    assert 'ValueError: could not convert string to float' in done.stderr.splitlines()[-1]


def test_an_exception_hook_of_the_program_is_left_alone(site):
    code = 'import sys\nmine = sys.excepthook = lambda *_: None\nimport chainer_ooc\nprint(sys.excepthook is mine)'
    assert site.output(code) == 'True'


def test_a_reloaded_module_is_patched_again():
    module = importlib.import_module('chainer.functions.array.pad_sequence')
    before = dict(vars(module))
    try:
        assert 'astype(y.dtype)[()]' in inspect.getsource(importlib.reload(module))
    finally:
        vars(module).update(before)


def test_links_and_functions_are_pickled_by_name():
    link = pickle.loads(pickle.dumps(chainer.links.Linear(3, 2)))
    assert type(link) is chainer.links.Linear
    assert pickle.loads(pickle.dumps(chainer.functions.pad_sequence)) is chainer.functions.pad_sequence


def test_no_bytecode_is_written_for_a_patched_file_and_none_is_read(site):
    for folder in site.chainer.rglob('__pycache__'):
        shutil.rmtree(folder)
    stale = ('import py_compile, chainer_ooc\nfrom chainer_ooc.fork import check\n'
             'py_compile.compile(check() / "chainer/configuration.py")\nimport chainer\n'
             'print(hasattr(chainer.global_config, "ooc"))')
    assert site.output(stale) == 'True'
    compiled = {file.name.partition('.')[0] for file in site.chainer.glob('__pycache__/*.pyc')}
    assert 'sequential' in compiled, 'unpatched modules are cached as ever'
    assert 'variable' not in compiled
    assert '__init__' not in compiled


def test_warnings_as_errors_do_not_break_the_import(site):
    assert site.output('import chainer_ooc, chainer; print(chainer.__version__)', '-W', 'error') == '7.8.1'


def test_neither_setuptools_nor_pkg_resources_is_imported(site):
    code = ('import sys\nsys.modules.update(dict.fromkeys(["setuptools", "pkg_resources", "distutils"]))\n'
            'import chainer_ooc, chainer\nprint(chainer.__version__)')
    assert site.output(code) == '7.8.1'


def test_a_spawned_process_gets_the_patches_with_the_main_module(site):
    (site.folder / 'program.py').write_text(
        'import chainer_ooc\nimport chainer\nimport multiprocessing\n'
        'def f(link):\n    return type(link).__name__, chainer.__loader__.is_chainer_ooc\n'
        'if __name__ == "__main__":\n'
        '    with multiprocessing.get_context("spawn").Pool(1) as pool:\n'
        '        print(pool.apply(f, (chainer.links.Linear(2, 2),)))\n')
    assert site.output('import runpy\nrunpy.run_path("program.py", run_name="__main__")') == "('Linear', True)"


def test_assertion_rewriting_goes_on(site):
    (site.folder / 'test_it.py').write_text(
        'import chainer_ooc\nimport chainer\n'
        'def test_it():\n    assert chainer.Variable().name == "rewritten"\n')
    code = 'import pytest\nraise SystemExit(pytest.main(["-q", "-p", "no:cacheprovider", "test_it.py"]))'
    done = site.run(code)
    assert 'AssertionError: assert None == ' in done.stdout
    assert '1 failed' in done.stdout


def test_the_patches_are_found_in_an_installed_package(tmp_path):
    package = series.folder().parent / 'chainer_ooc'
    for name, source in ('chainer_ooc', package), ('chainer_ooc/patches', series.folder()):
        shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns('__pycache__'))
    code = 'from chainer_ooc.fork import series; print(series.folder(), len(series.load().diffs))'
    done = subprocess.run([sys.executable, '-c', code], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout.split() == [str(tmp_path / 'chainer_ooc/patches'), str(len(series.load().diffs))]
