"""The laws of docs/design.md: what each room may import, and that it hands on frozen values."""
import ast
import dataclasses
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import chainer_ooc

PACKAGE = Path(chainer_ooc.__file__).parent
PURE = [room for room in ('trace', 'cost', 'simulate', 'classify', 'schedule', 'papers') if (PACKAGE / room).is_dir()]

# record -> trace -> cost -> simulate <-> classify -> schedule -> execute -> report, and schedule -> papers -> report
MAY_IMPORT = {
    'trace': {'errors', 'quantities'},
    'cost': {'trace', 'errors', 'quantities'},
    'simulate': {'trace', 'cost', 'classify', 'schedule', 'errors', 'quantities'},
    'classify': {'trace', 'cost', 'simulate', 'errors', 'quantities'},
    'schedule': {'trace', 'cost', 'simulate', 'classify', 'errors', 'quantities'},
    'record': {'trace', 'backends', 'errors', 'quantities'},
    'backends': {'config', 'errors', 'quantities'},
    'kernels': {'backends', 'config', 'errors', 'quantities'},
    'execute': {'record', 'trace', 'cost', 'simulate', 'classify', 'schedule', 'backends', 'config', 'errors',
                'quantities'},
    'papers': {'trace', 'cost', 'simulate', 'classify', 'schedule', 'errors', 'quantities'},
    'report': {'trace', 'cost', 'simulate', 'classify', 'schedule', 'papers', 'backends', 'errors', 'quantities'},
}

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


def _sources():
    return sorted(PACKAGE.rglob('*.py'))


def _imported(path):
    """Full names of what a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f'{path}: a relative import'
            yield node.module
            yield from (f'{node.module}.{each.name}' for each in node.names)


def _modules(rooms):
    for room in rooms:
        package = importlib.import_module(f'chainer_ooc.{room}')
        yield package
        for each in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):
            yield importlib.import_module(each.name)


def test_pure_rooms_are_importable_where_chainer_and_cupy_are_not():
    done = subprocess.run([sys.executable, '-c', BARE, *PURE], text=True, capture_output=True, cwd=PACKAGE.parent)
    assert done.returncode == 0, done.stderr
    expected = {'chainer_ooc.trace.model', 'chainer_ooc.classify.verdict', 'chainer_ooc.schedule.plan'}
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
    for path in _sources():
        if path.relative_to(PACKAGE).parts[0] not in ('backends', 'kernels'):
            assert not {'cupy', 'cupyx'} & {name.split('.')[0] for name in _imported(path)}, path


@pytest.mark.parametrize('room', [room for room in MAY_IMPORT if (PACKAGE / room).is_dir()])
def test_nothing_reaches_back(room):
    for path in (PACKAGE / room).rglob('*.py'):
        rooms = {name.split('.')[1] for name in _imported(path) if name.startswith('chainer_ooc.')}
        assert rooms - {room} <= MAY_IMPORT[room], path


def test_what_pure_rooms_hand_on_is_frozen():
    values = {value for module in _modules(PURE) for value in vars(module).values()
              if isinstance(value, type) and dataclasses.is_dataclass(value)}
    assert len(values) >= 8
    thawed = [each.__name__ for each in values if not each.__dataclass_params__.frozen]
    assert not thawed


def test_the_fields_of_traces_and_plans_cannot_be_changed_in_place():
    from chainer_ooc.schedule.plan import Plan, SwapIn
    from chainer_ooc.trace import Call, FeatureMap, MemoryEvent, Step, Trace

    # The one mutable field is Trace.versions, which nothing is decided by.
    mutable = [f'{kind.__name__}.{field.name}' for kind in (Call, FeatureMap, MemoryEvent, Step, Trace, Plan, SwapIn)
               for field in dataclasses.fields(kind) if re.search(r'\b(list|dict|set)\b', str(field.type))]
    assert mutable == ['Trace.versions']
