"""What must hold before Chainer can be patched, and the errors that say what to do where it does not.

Everything is checked when chainer is imported and not before, so that ``python -m chainer_ooc doctor`` runs where
chainer is absent. Only an import that came too early is refused when chainer_ooc is imported.
"""
import ast
import importlib.machinery
import re
import sys
import types
from pathlib import Path

from chainer_ooc.errors import ForkError
from chainer_ooc.fork.series import load

VERSION = '7.8.1'
# Its setup.py imports pkg_resources, which later setuptools lack, and pip's isolated build would fetch the latest.
_INSTALL = f'pip install "setuptools<81" wheel && pip install --no-build-isolation chainer=={VERSION}'
_IMPORT = re.compile(r'\s*(?:import|from)\s+chainer\b(?!_)')


def check() -> Path:
    """Verifies the installed Chainer without importing it.

    Returns:
        The folder that holds ``chainer/``.

    Raises:
        ForkError: it is absent, another version or altered.
    """
    series, site = load(), _find_site()
    found = _version(site)
    if found != VERSION:
        raise ForkError(f'chainer {found} is installed in {site}, and the patches are made for {VERSION} alone; '
                        f'{_INSTALL}', name='chainer', path=str(site))
    for path in series.expected:  # an altered file is refused before anything runs
        series.upstream(path, site)
    return site


def _find_site() -> Path:
    """The folder that holds the ``chainer/`` that Python would import; raises ForkError if there is none."""
    for finder in sys.meta_path:
        if getattr(finder, 'is_chainer_ooc', False) or not hasattr(finder, 'find_spec'):
            continue
        spec = finder.find_spec('chainer', None)
        if spec is not None and spec.origin is not None:
            file = Path(spec.origin)
            if isinstance(spec.loader, importlib.machinery.SourceFileLoader) and file.name == '__init__.py':
                return file.parent.parent
            raise ForkError(f'chainer {VERSION} must be installed as files to be patched, and {spec.origin} is not a '
                            f'package of files; {_INSTALL}', name='chainer')
    raise ForkError(f'chainer is not installed for {sys.executable}; {_INSTALL}', name='chainer')


def refuse_early_import() -> None:
    """Raises ForkError if a module of chainer that the series changes was imported without our loader."""
    if any(map(_is_unpatched, list(sys.modules))):
        raise ForkError(f'chainer was imported before chainer_ooc{_importer()}, so it can no longer be patched; '
                        'import chainer_ooc first and start Python again', name='chainer')


def _version(site: Path) -> str:
    """The version that the source states; package metadata may belong to another copy."""
    try:
        tree = ast.parse((site / 'chainer/_version.py').read_bytes())
    except (OSError, SyntaxError):
        return 'of an unknown version'
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == '__version__':
            return str(ast.literal_eval(statement.value))
    return 'of an unknown version'


def _is_unpatched(name: str) -> bool:
    if name.partition('.')[0] != 'chainer':
        return False
    loader = getattr(sys.modules[name], '__loader__', None)
    if loader is None or getattr(loader, 'is_chainer_ooc', False):
        return False
    return name == 'chainer' or load().path_of(name) is not None


def _importer() -> str:
    """Names the first module that holds something of chainer, and the line that imports it, where they can be told."""
    for name, module in list(sys.modules.items()):
        if name.partition('.')[0] in ('chainer', 'chainer_ooc', 'chainerx') or not isinstance(module, types.ModuleType):
            continue
        if any(_is_chainers(value) for value in list(vars(module).values())):
            return f' (by {_place(name, module)})'
    return ''


def _is_chainers(value: object) -> bool:
    if isinstance(value, types.ModuleType):
        name = value.__name__
    elif isinstance(value, (type, types.FunctionType)):
        name = value.__module__
    else:
        return False
    return isinstance(name, str) and name.partition('.')[0] == 'chainer'


def _place(name: str, module: types.ModuleType) -> str:
    file = getattr(module, '__file__', None)
    try:
        lines = Path(str(file)).read_text(encoding='utf-8').splitlines()
    except (OSError, ValueError):
        return str(file or name)
    line = next((number for number, text in enumerate(lines, 1) if _IMPORT.match(text)), None)
    return f'{file}, line {line}' if line else str(file)
