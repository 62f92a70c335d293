"""What needs a GPU, as far as it can be checked without one: names that it uses of CuPy, and those that it replaces."""
import ast
import inspect
import pathlib
import re
import subprocess
import sys
import types

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PROGRAMME = ROOT / 'benchmarks' / 'gpu'
NEED_A_GPU = [PROGRAMME / 'near.py', PROGRAMME / 'bits_row.py', *sorted((ROOT / 'tests' / 'gpu').glob('*.py'))]
RUNTIME = ('runtime', '_runtime')


def chain_of(node):
    """``['cupy', 'cuda', 'Stream']`` of an expression, or nothing."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else []


def cupy_names(path):
    """The names of CuPy that a file uses, from ``cupy`` on."""
    for node in ast.walk(ast.parse(path.read_text())):
        chain = chain_of(node)
        if chain[:1] == ['self'] and len(chain) > 1 and chain[1] in ('_cupy', '_runtime'):
            chain = chain[1:]
        if chain[:1] in (['cupy'], ['_cupy']) and len(chain) > 1:
            yield chain[1:]
        elif len(chain) == 2 and chain[0] in RUNTIME:
            yield ['cuda', 'runtime', chain[1]]


@pytest.mark.parametrize('path', NEED_A_GPU, ids=[path.name for path in NEED_A_GPU])
def test_names_of_cupy_are_in_the_wheel(path):
    cupy = pytest.importorskip('cupy')
    missing = []
    for names in cupy_names(path):
        found = cupy
        for name in names:
            if not hasattr(found, name):
                missing.append('.'.join(names))
                break
            found = getattr(found, name)
            if not isinstance(found, types.ModuleType) and names[:2] != ['cuda', 'runtime']:
                break  # attributes of classes and results belong to them
    assert missing == []


def test_the_scan_of_names_sees_some():
    assert ['cuda', 'runtime', 'hostAlloc'] in list(cupy_names(PROGRAMME / 'near.py'))
    assert ['RawKernel'] in list(cupy_names(ROOT / 'tests' / 'gpu' / 'test_races_on_gpu.py'))


IMPORTS = """
import sys
sys.path[:0] = ['tests/gpu', 'tests', 'examples', '.']
import chainer_ooc, chainer, cupy, numpy
import small_run
from support.gpu import gpu_allocations, gpu_conformance, gpu_training
from support.conformance import conformance_tables, cases_array, cases_links

gpu_conformance.sent = lambda value: 'sent' if isinstance(value, numpy.ndarray) else value
with gpu_conformance.tables_on_gpu():
    assert (cases_array.CHOICE, cases_links.WORDS, cases_array.labels(3, 2)) == ('sent',) * 3
    assert cases_array.np is cupy
assert cases_array.np is numpy and isinstance(cases_array.CHOICE, numpy.ndarray)

from chainer_ooc.backends.cuda.allocators import AsyncAllocator, ManagedAllocator, PoolAllocator, VirtualAllocator
with gpu_allocations.each_malloc(lambda malloc, nbytes: (malloc.allocator.name, nbytes)):
    for each in (AsyncAllocator, ManagedAllocator, PoolAllocator, VirtualAllocator):
        assert each.malloc(each.__new__(each), 5) == (each.name, 5)
        print(each.name)
"""


def test_every_policy_is_in_the_bit_tests_of_a_gpu():
    pytest.importorskip('cupy')
    from chainer_ooc.classify.policies import POLICIES
    done = subprocess.run([sys.executable, '-m', 'pytest', '--collect-only', '-q', '-n', '0',
                           'tests/gpu/test_bit_identity_on_gpu.py'], cwd=ROOT, capture_output=True, text=True,
                          timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    for policy in POLICIES:
        assert f'plain_chainer[residual-{policy}]' in done.stdout


#: A test that warns in a module's name.
WARNS = """
def test_{name}():
    warnings.warn_explicit('old', {category}, 'file.py', 1, module={module!r})
"""


def test_warnings_of_foreign_packages_are_no_errors(tmp_path):
    """A machine with a GPU has the packages that it has, and they warn of one another."""
    modules = ['cupy.core', 'cudnn', 'chainer_ooc.backends', 'chainer.functions', 'cupyx2']
    (tmp_path / 'test_it.py').write_text('import warnings\n\n' + ''.join(
        WARNS.format(name=each.replace('.', '_'), category='DeprecationWarning', module=each) for each in modules))
    done = subprocess.run([sys.executable, '-m', 'pytest', '-q', '-n', '0', '-p', 'no:cacheprovider', '-c',
                           str(ROOT / 'setup.cfg'), str(tmp_path / 'test_it.py')], cwd=ROOT, capture_output=True,
                          text=True, timeout=120, check=False)
    assert '3 failed, 2 passed' in done.stdout, done.stdout
    assert re.findall(r'^_+ test_(\w+) _+$', done.stdout, re.MULTILINE) == [
        'chainer_ooc_backends', 'chainer_functions', 'cupyx2']


def test_what_newer_versions_say_of_chainer_fails_no_test_on_a_gpu(tmp_path):
    """The suite's own conftest.py of the GPU, with a test that warns in Chainer's name beside it."""
    room = ROOT / 'tests' / 'gpu'
    (tmp_path / 'conftest.py').write_text(
        (room / 'conftest.py').read_text().replace('pathlib.Path(__file__).parent', f'pathlib.Path({str(room)!r})', 1)
        .replace('is_relative_to(HERE)', 'name == "test_it.py"').replace('autouse=True', 'autouse=False')
        .replace('reason = missing() if here else None', 'reason = None'))
    (tmp_path / 'test_it.py').write_text('import warnings\n\n' + ''.join(
        WARNS.format(name=each, category=each, module='chainer.functions')
        for each in ('DeprecationWarning', 'SyntaxWarning')))
    done = subprocess.run([sys.executable, '-m', 'pytest', '-q', '-n', '0', '-p', 'no:cacheprovider', '-c',
                           str(ROOT / 'setup.cfg'), '--rootdir', str(tmp_path), str(tmp_path / 'test_it.py')],
                          cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert '2 passed' in done.stdout, done.stdout + done.stderr


def test_helpers_of_the_gpu_tests_can_be_imported_without_one():
    pytest.importorskip('cupy')
    pytest.importorskip('chainer_ooc.backends.cuda.allocators')
    done = subprocess.run([sys.executable, '-c', IMPORTS], cwd=ROOT, capture_output=True, text=True, timeout=120,
                          check=False)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {'pool', 'virtual', 'async', 'unified'}


def test_what_the_gpu_tests_replace_is_there():
    pytest.importorskip('cupy')
    driver = pytest.importorskip('chainer_ooc.backends.cuda.driver').Driver
    allocators = pytest.importorskip('chainer_ooc.backends.cuda.allocators').ALLOCATORS
    assert {'pin', 'unpin', 'wait_event'} <= set(vars(driver))
    assert list(inspect.signature(driver.pin).parameters) == ['self', 'nbytes']
    assert list(inspect.signature(driver.unpin).parameters) == ['self', 'address']
    assert list(inspect.signature(driver.wait_event).parameters) == ['self', 'stream', 'event']
    assert set(allocators) == {'pool', 'virtual', 'async', 'unified'}
