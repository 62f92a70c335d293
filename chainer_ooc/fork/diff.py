"""Unified diffs, read and applied exactly.

Why not a library or ``git apply``: not every machine has them, and both search for a place where a hunk might fit. The
files that our patches change are known to the last bit (their hashes are committed), so every hunk has one right place
and anything else is an error.

Source: the unified format as ``git diff -U0`` writes it. Left out: renames, deletions, file modes, binary files and
last lines without an end; the series has no use for them and `parse` refuses them.
"""
import re
from collections.abc import Iterator
from dataclasses import dataclass

from chainer_ooc.errors import ForkError

_HUNK = re.compile(r'@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@')
_REFUSED = ('rename ', 'copy ', 'deleted file', 'old mode', 'GIT binary', 'Binary files', '\\ ')


@dataclass(frozen=True)
class Hunk:
    """Lines that replace other lines.

    Attributes:
        old_start: 0-based line of the old text at which ``removed`` begins.
        new_start: 0-based line of the new text at which ``added`` begins.
        removed: lines that must be there, with their line ends.
        added: lines that take their place, with their line ends.
    """

    old_start: int
    new_start: int
    removed: tuple[str, ...]
    added: tuple[str, ...]


@dataclass(frozen=True)
class FileDiff:
    """What one patch does to one file; ``path`` has forward slashes and starts with the package's name."""

    path: str
    is_new: bool
    hunks: tuple[Hunk, ...]


def parse(text: str, name: str) -> tuple[FileDiff, ...]:
    """Reads the text of a patch file: prose up to the first ``diff --git``, then the diffs; `name` is for errors.

    Raises:
        ForkError: not a diff that this module can apply.
    """
    lines = split_lines(text)
    starts = [i for i, line in enumerate(lines) if line.startswith('diff --git ')]
    if not starts:
        raise ForkError(f'{name} has no "diff --git" line; regenerate it with patches/regenerate.py')
    ends = [*starts[1:], len(lines)]
    return tuple(_parse_file(lines[start:end], name) for start, end in zip(starts, ends, strict=True))


def apply(diff: FileDiff, text: str, name: str) -> str:
    """The text after the patch `name`, from that which the patches before it left; from ``''`` for a new file.

    Raises:
        ForkError: the text is not the one that the patch was made for.
    """
    old = split_lines(text)
    new: list[str] = []
    done = 0
    for hunk in diff.hunks:
        new += old[done:hunk.old_start]
        done = hunk.old_start + len(hunk.removed)
        if tuple(old[hunk.old_start:done]) != hunk.removed or len(new) != hunk.new_start:
            raise ForkError(f'{name} does not fit {diff.path} at line {hunk.old_start + 1}: the series was '
                            'edited or is out of order; regenerate it with patches/regenerate.py')
        new += hunk.added
    return ''.join(new + old[done:])


def split_lines(text: str) -> list[str]:
    """Lines with their ends, cut at line feeds alone (`str.splitlines` would cut at form feeds too)."""
    return re.findall(r'[^\n]*\n|[^\n]+', text)


def _parse_file(lines: list[str], name: str) -> FileDiff:
    path, is_new = '', False
    hunks: list[Hunk] = []
    rest = iter(lines[1:])
    for line in rest:
        if line.startswith('--- '):
            is_new = line.startswith('--- /dev/null')
        elif line.startswith('+++ b/'):
            path = line[6:].rstrip('\n')
        elif line.startswith('@@ ') and path:
            hunks.append(_parse_hunk(line, rest, name))
        elif line.startswith(_REFUSED):
            raise ForkError(f'{name} has {line.strip()!r}: only changed and new text files can be applied in memory')
    if not path:
        raise ForkError(f'{name} has a diff without a "+++ b/" line ({lines[0].strip()!r})')
    return FileDiff(path, is_new, tuple(hunks))


def _parse_hunk(header: str, rest: Iterator[str], name: str) -> Hunk:
    match = _HUNK.match(header)
    if match is None:
        raise ForkError(f'{name} has a hunk header that cannot be read: {header.strip()!r}')
    old_line, old_count, new_line, new_count = (1 if number is None else int(number) for number in match.groups())
    removed: list[str] = []
    added: list[str] = []
    sides = {'-': (removed,), '+': (added,), ' ': (removed, added)}
    while len(removed) < old_count or len(added) < new_count:
        line = next(rest, '')
        if line[:1] not in sides:
            raise ForkError(f'{name} ends or changes shape inside the hunk {header.strip()!r}')
        for side in sides[line[0]]:
            side.append(line[1:])
    # Without old (new) lines the header names the line before the place, otherwise the first line itself.
    return Hunk(old_line - bool(old_count), new_line - bool(new_count), tuple(removed), tuple(added))
