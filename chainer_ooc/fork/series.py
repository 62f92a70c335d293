"""The numbered series of patches and the manifest of the upstream files that it changes.

The series lies in ``patches/`` of a checkout, and in ``chainer_ooc/patches/`` of an installed package (setup.cfg maps
it there). ``upstream.sha256`` beside the patches has one line per changed file of chainer 7.8.1, in the format of
``sha256sum``; only what it lists may be patched, so that every hunk is known to fit.
"""
import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chainer_ooc.errors import ForkError
from chainer_ooc.fork.diff import FileDiff, apply, parse

MANIFEST = 'upstream.sha256'


@dataclass(frozen=True)
class Series:
    """The whole series.

    Attributes:
        diffs: for each path (``chainer/...``) the diffs in order, each with the name of its patch.
        expected: for each upstream path its sha256, in hexadecimal digits.
    """

    diffs: Mapping[str, tuple[tuple[str, FileDiff], ...]]
    expected: Mapping[str, str]

    def path_of(self, module: str) -> str | None:
        """The patched or added path of a module, or None where the module is upstream's own."""
        stem = module.replace('.', '/')
        return next((path for path in (f'{stem}/__init__.py', f'{stem}.py') if path in self.diffs), None)

    def is_new(self, path: str) -> bool:
        """Whether the series adds the file, so that upstream has none."""
        return self.diffs[path][0][1].is_new

    def patched(self, path: str, site: Path) -> str:
        """The text of one of `diffs` after the whole series, from upstream's file below the folder `site`.

        Raises:
            ForkError: the upstream file is not the one that the series was made for.
        """
        text = '' if self.is_new(path) else self.upstream(path, site).decode()
        for name, diff in self.diffs[path]:
            text = apply(diff, text, name)
        return text

    def upstream(self, path: str, site: Path) -> bytes:
        """Upstream's file, read and verified; raises ForkError if it is absent or altered."""
        expected = self.expected[path]
        try:
            content = (site / path).read_bytes()
        except FileNotFoundError:
            raise _altered(site / path, expected, 'no file') from None
        found = hashlib.sha256(content).hexdigest()
        if found != expected:
            raise _altered(site / path, expected, found)
        return content


def folder() -> Path:
    """The folder with the patches; raises ForkError if there is none."""
    package = Path(__file__).resolve().parent.parent
    places = package / 'patches', package.parent / 'patches'
    for place in places:
        if (place / MANIFEST).is_file():
            return place
    raise ForkError(f'no patches in {places[0]} or {places[1]}, so chainer cannot be patched: this copy of chainer_ooc '
                    'is not whole; install it again')


@functools.lru_cache(maxsize=8)
def load(place: Path | None = None) -> Series:
    """Reads the series of a folder, by default our own.

    Raises:
        ForkError: a patch cannot be read, or it changes a file that the manifest does not list.
    """
    place = folder() if place is None else place
    expected = _read_manifest(place / MANIFEST)
    diffs: dict[str, tuple[tuple[str, FileDiff], ...]] = {}
    for file in sorted(place.glob('[0-9]*.patch')):
        for diff in parse(file.read_text(encoding='utf-8'), file.name):
            if diff.is_new == (diff.path in expected or diff.path in diffs):
                raise ForkError(f'{file.name} and {MANIFEST} disagree on whether upstream has {diff.path}; '
                                'regenerate both with patches/regenerate.py')
            diffs[diff.path] = (*diffs.get(diff.path, ()), (file.name, diff))
    return Series(diffs, expected)


def _read_manifest(file: Path) -> dict[str, str]:
    lines = file.read_text(encoding='utf-8').splitlines()
    return {path: digest for digest, path in (line.split('  ', 1) for line in lines)}


def _altered(file: Path, expected: str, found: str) -> ForkError:
    return ForkError(
        f'{file} is not the file of chainer 7.8.1 (sha256 expected {expected}, found {found}); install it again: '
        'pip install --force-reinstall --no-deps --no-build-isolation chainer==7.8.1', path=str(file))
