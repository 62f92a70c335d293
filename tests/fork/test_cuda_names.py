"""Every name that the patched Chainer uses from CuPy is in the wheel, and takes the keywords that it is given.

Read from the sources, so that it needs no GPU, and sees what runs only where there is one. A module of CuPy that cannot
be loaded here, since a library of CUDA is missing, is searched for the name instead. `xp` is taken for CuPy wherever it
stands. Left out: methods of arrays, and cuDNN, which CuPy 14 has no more.
"""
import ast
import functools
import importlib
import importlib.util
import inspect
import re
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest

import chainer_ooc  # noqa: F401  before chainer
from chainer_ooc import fork
from chainer_ooc.fork import series

cupy = pytest.importorskip('cupy', reason='the wheel of CuPy is not installed')

# What stands before a name of CuPy in Chainer's sources; `xp` is dealt with apart.
ROOTS = {
    'cupy': 'cupy', 'cupyx': 'cupyx', 'cuda.cupy': 'cupy', 'cuda.cupyx': 'cupyx', 'cuda.cublas': 'cupy.cuda.cublas',
    'cuda.Device': 'cupy.cuda.Device', 'cuda.Event': 'cupy.cuda.Event', 'cuda.Stream': 'cupy.cuda.Stream',
    'cuda.memory_pool': 'cupy.get_default_memory_pool', 'nccl': 'cupy.cuda.nccl'}
# chainer/backends/cuda.py is where these names come from.
OWN_ROOTS = {'cupy': 'cupy', 'cupyx': 'cupyx', 'cuda': 'cupy.cuda', 'Device': 'cupy.cuda.Device'}
BACKEND = 'chainer/backends/cuda.py'
# Modules that load a library of CUDA when they are asked for by these names.
LAZY = {'cupy.cuda.cublas': 'cupy_backends.cuda.libs.cublas', 'cupy.cuda.nccl': 'cupy_backends.cuda.libs.nccl'}
CUDNN = re.compile(r'cupy\.(cuda\.)?cudnn\b')

# Names that CuPy need not have, and why.
ABSENT = {'cupy.util.PerformanceWarning': 'where cupy._util, of CuPy 8 and later, has none'}
# Keywords that functions of CuPy need not take, and why.
NOT_TAKEN = {('cupy.array', 'device'): 'xp is chainerx there', ('cupy.zeros', 'device'): 'xp is chainerx there'}


@dataclass(frozen=True)
class Use:
    """A name of CuPy in Chainer: where it stands, and the keywords that it is called with."""

    name: str
    place: str
    keywords: tuple[str, ...] = ()


class Reader(ast.NodeVisitor):
    """Gathers what one file uses."""

    def __init__(self, path):
        self.path, self.uses = path, []
        self.roots = OWN_ROOTS if path == BACKEND else ROOTS

    def visit_Call(self, node):
        self._note(node, dotted(node.func), tuple(each.arg for each in node.keywords if each.arg))
        self.generic_visit(node)

    def visit_Attribute(self, node):
        self._note(node, dotted(node))
        if dotted(node) is None:
            self.generic_visit(node)

    def visit_Import(self, node):
        for each in node.names:
            if each.name.split('.')[0] in ('cupy', 'cupyx', 'cupy_backends'):
                self.uses.append(Use(each.name, f'{self.path}:{node.lineno}'))

    def visit_ImportFrom(self, node):
        if node.module and node.module.split('.')[0] in ('cupy', 'cupyx', 'cupy_backends'):
            self.uses += [Use(f'{node.module}.{each.name}', f'{self.path}:{node.lineno}') for each in node.names]

    def _note(self, node, chain, keywords=()):
        name = chain and self._of_cupy(chain)
        if name:
            self.uses.append(Use(name, f'{self.path}:{node.lineno}', keywords))

    def _of_cupy(self, chain):
        _before, is_xp, after = f'.{chain}'.rpartition('.xp.')
        if is_xp:
            return f'cupy.{after}'
        root = max((root for root in self.roots if f'{chain}.'.startswith(f'{root}.')), key=len, default=None)
        return root and self.roots[root] + chain[len(root):]


def dotted(node):
    """'a.b.c' of an attribute of an attribute of a name, None of anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return before and f'{before}.{node.attr}'
    return None


@functools.cache
def uses():
    """Of all patched and unpatched files of chainer."""
    loaded, site = series.load(), fork.check()
    paths = {str(file.relative_to(site)) for file in (site / 'chainer').rglob('*.py')} | set(loaded.diffs)
    found = []
    for path in sorted(paths):
        text = loaded.patched(path, site) if path in loaded.diffs else (site / path).read_text(encoding='utf-8')
        reader = Reader(path)
        reader.visit(ast.parse(text))
        found += reader.uses
    return [use for use in found if not CUDNN.match(use.name)]


class Unloadable:
    """A module that needs a library of CUDA which is not here: its names are looked up in its file."""

    def __init__(self, name):
        self.content = Path(importlib.util.find_spec(name).origin).read_bytes()

    def has(self, name):
        return re.search(rb'\b%s\b' % name.encode(), self.content) is not None


@functools.cache
def resolve(name):
    """The object, or an `Unloadable` in place of a module on the way; AttributeError if there is no such name."""
    head, _, last = name.rpartition('.')
    if not head:
        return importlib.import_module(name)
    if name in LAZY:
        return load(LAZY[name])
    parent = resolve(head)
    if isinstance(parent, Unloadable):
        if not parent.has(last):
            raise AttributeError(name)
        return parent
    try:
        return getattr(parent, last)
    except (AttributeError, ImportError):  # a module that is loaded when it is asked for, or not at all
        return load(name)


def load(name):
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise AttributeError(name) from error
    except ImportError:
        return Unloadable(name)


@pytest.fixture(autouse=True)
def quiet():
    """Of libraries that are not here."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        yield


def missing(candidates):
    for use in candidates:
        try:
            resolve(use.name)
        except AttributeError:
            yield use


def test_every_name_is_in_the_wheel():
    absent = [f'{use.name} ({use.place})' for use in missing(uses()) if use.name not in ABSENT]
    assert not absent, '\n'.join(absent)


def test_no_exception_is_out_of_date():
    assert {use.name for use in missing(uses())} == set(ABSENT)


def test_the_scan_sees_what_chainer_is_known_to_use():
    names = {use.name for use in uses()}
    assert {'cupy.ElementwiseKernel', 'cupyx.scipy.linalg.solve_triangular', 'cupy.cuda.cublas.sgetrfBatched',
            'cupy.add.at', 'cupy.lib.stride_tricks', 'cupy.einsum', 'cupy.cuda.nccl.NcclCommunicator'} <= names
    assert len(names) > 150


@pytest.mark.parametrize('name', [
    'cupy.core.ndarray', 'cupy.no_such_name', 'cupyx.scipy.linalg.no_such_name', 'cupy.cuda.cublas.no_such_name',
    'cupy.cuda.nccl.no_such_name'])
def test_a_name_that_is_not_there_is_found_out(name):
    assert [use.name for use in missing([Use(name, 'a test')])] == [name]


def unknown_keywords(use):
    """Those that the called function does not take; nothing where CuPy does not tell."""
    try:
        parameters = inspect.signature(resolve(use.name)).parameters.values()
    except (AttributeError, TypeError, ValueError):
        return []
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return []
    return [keyword for keyword in use.keywords if keyword not in {each.name for each in parameters}]


def test_every_keyword_is_taken():
    wrong = [f'{use.name}({keyword}=) ({use.place})' for use in uses() for keyword in unknown_keywords(use)
             if (use.name, keyword) not in NOT_TAKEN]
    assert not wrong, '\n'.join(wrong)


def test_a_keyword_that_is_not_taken_is_found_out():
    assert unknown_keywords(Use('cupy.zeros', 'a test', ('shape', 'no_such_name'))) == ['no_such_name']
