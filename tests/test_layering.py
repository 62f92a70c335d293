"""The laws of docs/design.md: what each room may import, and that it hands on frozen values."""
import ast
import dataclasses
import functools
import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import chainer_ooc

PACKAGE = Path(chainer_ooc.__file__).parent

#: The rooms in the order of the data, each with what it may import: rooms above it. `__init__` is the package's face.
ROOMS = {
    'quantities': '',
    'errors': 'quantities',
    'version': '',
    'extension': '',
    'locks': '',
    'warning': '',
    'fork': 'errors',
    'ranks': 'quantities warning',
    'trace': 'quantities errors',
    'cost': 'quantities errors trace',
    'problem': 'trace cost',
    'schedule': 'trace cost problem',
    'simulate': 'quantities errors extension trace cost problem schedule',
    'classify': 'errors trace cost problem schedule simulate',
    'plans': 'quantities errors locks trace cost problem schedule simulate classify',
    'config': 'quantities errors classify',
    'backends': 'quantities errors extension locks warning ranks config',
    'kernels': 'quantities errors extension warning config backends',
    'execute': 'quantities errors version locks warning ranks trace cost problem schedule simulate classify plans '
               'config backends',
    'profiling': 'quantities errors trace problem classify plans backends execute',
    'report': 'quantities errors version trace cost problem schedule simulate classify plans',
    'extensions': 'quantities execute report',
    '__init__': 'version fork trace classify plans execute profiling extensions',
    'papers': 'quantities errors trace cost problem schedule simulate classify plans report',
    'cli': 'quantities errors version fork ranks trace cost problem schedule simulate classify plans backends '
           'profiling __init__ report papers',
    '__main__': 'cli',
}
PURE = ['trace', 'cost', 'problem', 'schedule', 'simulate', 'classify', 'plans', 'report', 'papers']

BARE = """
import sys, importlib, pkgutil

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in ('chainer', 'chainerx', 'cupy', 'cupyx'):
            raise ModuleNotFoundError('made absent: ' + name)

absent = Absent()
sys.meta_path.insert(0, absent)
import chainer_ooc
sys.meta_path.insert(0, absent)  # in front of the finder that chainer_ooc has put there
for missing in ('chainer', 'cupy'):
    try:
        importlib.import_module(missing)
    except ModuleNotFoundError:
        continue
    raise SystemExit(missing + ' can be imported: this check proves nothing')
names = sys.argv[1:]
for room in names:
    package = importlib.import_module('chainer_ooc.' + room)
    for each in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):
        importlib.import_module(each.name)
        print(each.name)
found = sorted(name for name in sys.modules if name.split('.')[0] in ('chainer', 'chainerx', 'cupy', 'cupyx'))
if found:
    raise SystemExit('imported: ' + ', '.join(found))
"""

#: An editable install would find the room that the copy lacks.
COPY_ALONE = """
import sys
sys.meta_path[:] = [each for each in sys.meta_path if 'editable' not in getattr(each, '__module__', '')]
"""

TRAINING = """
import chainer_ooc
import chainer
import chainer.functions as F
import chainer.links as L
import importlib.util
import numpy as np

def train(**config):
    np.random.seed(0)
    model = chainer.Sequential(*[layer for _ in range(4) for layer in (L.Linear(64, 64), F.relu)])
    optimizer = chainer.optimizers.MomentumSGD(0.01).setup(model)
    batch = np.random.rand(256, 64).astype(np.float32)
    for name, value in config.items():
        setattr(chainer.config, name, value)
    for _ in range(3):
        optimizer.update(lambda: F.sum(model(batch) ** 2))
    return b''.join(each.array.tobytes() for each in model.params())

in_core = train()
out_of_core = train(ooc='pooch', ooc_budget='500kB', ooc_min_bytes=0)
stats = chainer_ooc.stats()
print(chainer_ooc.__file__, importlib.util.find_spec('chainer_ooc.papers'), stats.policy, stats.phase,
      stats.swap + stats.recompute > 0, out_of_core == in_core)
chainer_ooc.reset()
"""


def _sources(package=PACKAGE):
    """The files by the names of their modules."""
    names = ((path, '.'.join(path.relative_to(package.parent).with_suffix('').parts)) for path in package.rglob('*.py'))
    return {name.removesuffix('.__init__'): path for path, name in names}


def _imported(path):
    """Full names of what a file imports, wherever in it: at once, lazily, or for type checkers alone."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f'{path}: a relative import'
            yield from (f'{node.module}.{each.name}' for each in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(('import_module', '__import__')):
            yield from (each.value for each in node.args if isinstance(each, ast.Constant))


@functools.cache
def _file_graph(package=PACKAGE):
    """For each module, the others of its package that it imports."""
    sources = _sources(package)

    def module_of(name):
        while name not in sources:
            name = name.rpartition('.')[0]
        return name

    return {module: {module_of(name) for name in _imported(path) if name.split('.')[0] == package.name} - {module}
            for module, path in sources.items()}


def _folder_graph(folder, files):
    """The same for what a folder holds, files and folders; what its `__init__` imports is no part of it."""
    def child(name):
        return '.'.join(name.split('.')[:folder.count('.') + 2])

    inside = {name: uses for name, uses in files.items() if name.startswith(f'{folder}.')}
    graph = {child(name): set() for name in inside}
    for name, uses in inside.items():
        graph[child(name)] |= {child(each) for each in uses if each in inside} - {child(name)}
    return graph


def _circles(graph):
    """Groups of nodes each of which reaches all others of its group."""
    reach = {}
    for start in graph:
        reach[start], waiting = set(), [start]
        while waiting:
            found = graph[waiting.pop()] - reach[start]
            reach[start] |= found
            waiting += found
    circles = {tuple(sorted(each for each in reach[start] if start in reach[each])) for start in graph}
    return sorted(list(each) for each in circles if each)


def _room(module):
    return module.split('.')[1] if '.' in module else '__init__'


def _modules(rooms):
    for room in rooms:
        package = importlib.import_module(f'chainer_ooc.{room}')
        yield package
        for each in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):
            yield importlib.import_module(each.name)


def test_pure_rooms_are_importable_where_chainer_and_cupy_are_not():
    done = subprocess.run([sys.executable, '-c', BARE, *PURE], text=True, capture_output=True, cwd=PACKAGE.parent)
    assert done.returncode == 0, done.stderr
    expected = {'chainer_ooc.trace.model', 'chainer_ooc.simulate.simulator', 'chainer_ooc.plans.plan'}
    assert expected <= {*done.stdout.split()}


def test_pure_rooms_mention_neither_chainer_nor_cupy_in_any_import():
    for room in PURE:
        for path in (PACKAGE / room).rglob('*.py'):
            tops = {name.split('.')[0] for name in _imported(path)}
            assert not tops & {'chainer', 'chainerx', 'cupy', 'cupyx'}, path


def test_importing_the_package_imports_no_chainer():
    code = "import sys, chainer_ooc; print(sorted(name for name in sys.modules if name.split('.')[0] == 'chainer'))"
    done = subprocess.run([sys.executable, '-c', code], text=True, capture_output=True, cwd=PACKAGE.parent)
    assert done.stdout == '[]\n', done.stderr


def test_only_backends_and_kernels_import_cupy():
    for name, path in _sources().items():
        if _room(name) not in ('backends', 'kernels'):
            assert not {'cupy', 'cupyx'} & {each.split('.')[0] for each in _imported(path)}, path


def test_the_list_has_every_room():
    assert {*ROOMS} == {_room(name) for name in _sources()}


def test_the_list_has_one_direction():
    above = set()
    for room, may_import in ROOMS.items():
        assert {*may_import.split()} <= above, room
        above.add(room)


@pytest.mark.parametrize('room', ROOMS)
def test_nothing_reaches_back(room):
    for name, uses in _file_graph().items():
        if _room(name) == room:
            assert {_room(each) for each in uses} - {room} <= {*ROOMS[room].split()}, name


def test_no_files_import_each_other():
    assert _circles(_file_graph()) == []


def test_no_folders_import_each_other():
    files = _file_graph()
    for folder in (name for name, path in _sources().items() if path.name == '__init__.py'):
        assert _circles(_folder_graph(folder, files)) == [], folder


@pytest.mark.parametrize('back', [
    'from house.upper import floor', 'from house.upper.floor import name', 'import house.upper.floor',
    'def later():\n    from house.upper import floor', 'if TYPE_CHECKING:\n    from house.upper.floor import name',
    "importlib.import_module('house.upper.floor')"])
def test_a_circle_is_found_however_it_is_closed(tmp_path, back):
    files = {'__init__': '', 'upper/__init__': '', 'upper/floor': 'from house.lower.stairs import name',
             'lower/__init__': '', 'lower/stairs': back, 'lower/hall': 'import house.lower.stairs'}
    for name, text in files.items():
        path = tmp_path / 'house' / f'{name}.py'
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    graph = _file_graph(tmp_path / 'house')
    assert _circles(graph) == [['house.lower.stairs', 'house.upper.floor']]
    assert _circles(_folder_graph('house', graph)) == [['house.lower', 'house.upper']]
    assert _circles(_folder_graph('house.lower', graph)) == []


def test_training_and_the_command_line_need_nothing_of_the_papers(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / 'chainer_ooc', ignore=shutil.ignore_patterns('papers', '__pycache__'))
    shutil.copytree(PACKAGE.parent / 'patches', tmp_path / 'patches')

    def run(code):
        return subprocess.run([sys.executable, '-c', COPY_ALONE + code], cwd=tmp_path, check=True, text=True,
                              stdout=subprocess.PIPE, env={**os.environ, 'PYTHONPATH': str(tmp_path)}).stdout

    copied = tmp_path / 'chainer_ooc' / '__init__.py'
    assert run(TRAINING) == f'{copied} None pooch run True True\n'
    assert 'pooch' in run('from chainer_ooc import cli; cli.main(["policies"])')


def test_what_pure_rooms_hand_on_is_frozen():
    values = {value for module in _modules(PURE) for value in vars(module).values()
              if isinstance(value, type) and dataclasses.is_dataclass(value)}
    assert len(values) >= 8
    thawed = [each.__name__ for each in values if not each.__dataclass_params__.frozen]
    assert not thawed


def test_the_fields_of_traces_and_plans_cannot_be_changed_in_place():
    from chainer_ooc.plans.plan import Plan
    from chainer_ooc.schedule.schedule import SwapIn
    from chainer_ooc.trace import Call, FeatureMap, Step, Trace

    # The one mutable field is Trace.versions, which nothing is decided by.
    mutable = [f'{kind.__name__}.{field.name}' for kind in (Call, FeatureMap, Step, Trace, Plan, SwapIn)
               for field in dataclasses.fields(kind) if re.search(r'\b(list|dict|set)\b', str(field.type))]
    assert mutable == ['Trace.versions']


def test_the_map_of_each_folder_has_all_of_its_files():
    """That of the package itself is docs/architecture.md. A table of imports, as of policies, is a map too."""
    missing = []
    for init in sorted(PACKAGE.glob('*/**/__init__.py')):
        module = ast.parse(init.read_text(encoding='utf-8'))
        words = set(re.findall(r'\w+', ast.get_docstring(module) or ''))
        words.update(each.name for node in ast.walk(module) if isinstance(node, ast.ImportFrom) for each in node.names)
        found = [each for each in init.parent.iterdir() if each.suffix in ('.py', '.c') or each.is_dir()]
        missing += [str(each.relative_to(PACKAGE)) for each in found
                    if each.stem not in words and not each.name.startswith('__')]
    assert missing == []
