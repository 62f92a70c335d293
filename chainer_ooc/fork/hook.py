"""The import hook: patched modules are compiled from memory, all others are left to Python.

Only modules that a patch touches, and the package `chainer` itself, get our loader. Patched modules have no ``.pyc``:
Python would take it for the unpatched file's. Their code objects keep the name of the installed file, and `linecache`
is told the patched text, so that tracebacks, `inspect.getsource` and debuggers show what runs. The entry has no
modification time, which is how `linecache` marks text that came from a loader and must not be read again from the disk;
only `linecache.clearcache` forgets it. Up to 3.12 the interpreter prints an uncaught exception from the file, without
`linecache`; there `sys.excepthook` is set to the same print-out by `traceback`, unless somebody else has set it.

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
    """Executes the patched text of one module.

    Args:
        module: full name of the module.
        path: path of its file within the series, ``chainer/...``.
        site: folder that holds ``chainer/``.
        series: the patches.
    """

    is_chainer_ooc = True

    def __init__(self, module: str, path: str, site: Path, series: Series):
        super().__init__(module, str(site / path))
        self._relative = path
        self._site = site
        self._series = series

    def get_source(self, fullname: str) -> str:
        if self._relative not in self._series.diffs:
            return (self._site / self._relative).read_text(encoding='utf-8')
        return self._series.patched(self._relative, self._site)

    def get_code(self, fullname: str) -> types.CodeType:
        text = self.get_source(fullname)
        file = self.get_filename(fullname)
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        code: types.CodeType = self.source_to_code(text, file)
        return code


class ForkFinder(MetaPathFinder):
    """Finds `chainer` and what the series touches below it."""

    is_chainer_ooc = True

    def __init__(self) -> None:
        self._site: Path | None = None

    def find_spec(self, fullname: str, path: Sequence[str] | None = None,
                  target: types.ModuleType | None = None) -> ModuleSpec | None:
        if fullname == 'chainer':
            series = load()
            self._site = checks.find_site()
            checks.verify(series, self._site)
            return self._spec(fullname, 'chainer/__init__.py', self._site, series)
        if fullname.startswith('chainer.') and self._site is not None:
            series = load()
            relative = series.path_of(fullname)
            if relative is not None:
                return self._spec(fullname, relative, self._site, series)
        return None

    @staticmethod
    def _spec(module: str, path: str, site: Path, series: Series) -> ModuleSpec | None:
        folders = [str((site / path).parent)] if path.endswith('/__init__.py') else None
        loader = ForkLoader(module, path, site, series)
        return spec_from_file_location(module, site / path, loader=loader, submodule_search_locations=folders)


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
