"""The import hook: patched modules are compiled from memory, all others are left to Python.

Only modules that a patch touches, and the package `chainer` itself, get our loader. Patched modules have no ``.pyc``:
Python would take it for the unpatched file's. Their code objects keep the name of the installed file, and `linecache`
is told the patched text, so that tracebacks, `inspect.getsource` and debuggers show what runs. The entry has no
modification time, which is how `linecache` marks text that came from a loader and must not be read again from the disk;
only `linecache.clearcache` forgets it. Up to 3.12 the interpreter prints an uncaught exception from the file, without
`linecache`; there `sys.excepthook` is set to the same print-out by `traceback`, unless the program has set it.

Left out: zipped or frozen copies of Chainer, which have no files to verify.
"""
import linecache
import sys
import traceback
import types
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path

from chainer_ooc.fork import checks
from chainer_ooc.fork.series import Series, load


class ForkLoader(SourceFileLoader):
    """Executes the patched text of one module, whose file is `path` (``chainer/...``) below the folder `site`."""

    is_chainer_ooc = True

    def __init__(self, module: str, path: str, site: Path, series: Series):
        super().__init__(module, str(site / path))
        self._relative = path
        self._site = site
        self._series = series

    def get_source(self, fullname: str) -> str:
        return self._series.patched(self._relative, self._site)

    def get_code(self, fullname: str) -> types.CodeType:
        text = self.get_source(fullname)
        file = self.get_filename(fullname)
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        code: types.CodeType = self.source_to_code(text, file)
        return code


class ForkFinder(MetaPathFinder):
    """Finds `chainer`, and what the series touches below it and below `chainermn`, which imports it first."""

    is_chainer_ooc = True

    def __init__(self) -> None:
        self._site: Path | None = None

    def find_spec(self, fullname: str, path: Sequence[str] | None = None,
                  target: types.ModuleType | None = None) -> ModuleSpec | None:
        relative: str | None = None
        if fullname == 'chainer':
            self._site, relative = checks.check(), 'chainer/__init__.py'
        elif self._site is not None and fullname.startswith(('chainer.', 'chainermn.')):
            relative = load().path_of(fullname)
        if relative is None or self._site is None:
            return None
        file = self._site / relative
        folders = [str(file.parent)] if file.name == '__init__.py' else None
        loader = ForkLoader(fullname, relative, self._site, load())
        return spec_from_file_location(fullname, file, loader=loader, submodule_search_locations=folders)


def install() -> None:
    """Puts the finder in front of all others, once.

    Raises:
        ForkError: chainer was imported before, unpatched.
    """
    checks.refuse_early_import()
    if not any(getattr(finder, 'is_chainer_ooc', False) for finder in sys.meta_path):
        sys.meta_path.insert(0, ForkFinder())
    if sys.version_info < (3, 13) and sys.excepthook is sys.__excepthook__:
        sys.excepthook = _print_uncaught


def _print_uncaught(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    """What the interpreter prints, with the source lines taken from `linecache`."""
    if sys.stderr is not None:
        traceback.print_exception(kind, error, trace)
