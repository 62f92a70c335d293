"""The committed series: complete, in order, described, and the same code that `git apply` gives."""
import hashlib
import re
import shutil
import subprocess
import sys

import pytest

from chainer_ooc import fork
from chainer_ooc.errors import ForkError
from chainer_ooc.fork import series

PATCHES = sorted(series.folder().glob('*.patch'))


def test_every_upstream_file_of_the_series_is_in_the_manifest_with_its_hash():
    loaded, site = series.load(), fork.check()
    changed = {path for path in loaded.diffs if not loaded.is_new(path)}
    assert set(loaded.expected) == changed
    for path, expected in loaded.expected.items():
        assert hashlib.sha256((site / path).read_bytes()).hexdigest() == expected


def test_the_series_compiles_without_a_warning():
    loaded, site = series.load(), fork.check()
    for path in loaded.diffs:
        compile(loaded.patched(path, site), path, 'exec')


@pytest.mark.parametrize('patch', PATCHES, ids=lambda patch: patch.name)
def test_every_patch_begins_with_its_number_and_a_reason(patch):
    prose = patch.read_text().partition('diff --git ')[0]
    subject, _, reason = prose.strip().partition('\n\n')
    number, name = re.fullmatch(r'(\d{4})-([a-z0-9-]+)\.patch', patch.name).groups()
    assert subject.startswith(f'{number} {name}: ')
    assert len(reason) > 40, 'a patch says why'


def test_numbers_are_used_once_and_the_readme_lists_each_patch():
    numbers = [patch.name[:4] for patch in PATCHES]
    assert len(set(numbers)) == len(numbers)
    listed = re.findall(r'^\| (\d{4}-[a-z0-9-]+) \|', (series.folder() / 'README.md').read_text(), re.MULTILINE)
    assert listed == [patch.stem for patch in PATCHES]


def test_git_apply_to_a_checkout_gives_the_same_code(tmp_path, git):
    loaded, site = series.load(), fork.check()
    for package in 'chainer', 'chainermn':
        shutil.copytree(site / package, tmp_path / package, ignore=shutil.ignore_patterns('__pycache__'))
    git(tmp_path, 'init', '-q')
    git(tmp_path, 'add', 'chainer', 'chainermn')
    git(tmp_path, 'apply', '--unidiff-zero', *map(str, PATCHES))
    touched = git(tmp_path, 'ls-files', '--modified', '--others').splitlines()
    assert sorted(touched) == sorted(loaded.diffs)
    for path in loaded.diffs:
        assert (tmp_path / path).read_bytes().decode() == loaded.patched(path, site)


def test_the_maintainers_tool_gives_the_series_back_unchanged(tmp_path, git):
    patches = tmp_path / 'patches'
    shutil.copytree(series.folder(), patches, ignore=shutil.ignore_patterns('__pycache__'))
    before = {file.name: file.read_bytes() for file in patches.iterdir()}
    for action in 'open', 'export':
        subprocess.run([sys.executable, patches / 'regenerate.py', action, tmp_path / 'repo'], check=True)
    assert {file.name: file.read_bytes() for file in patches.iterdir()} == before


@pytest.mark.parametrize('spoil', ['unlisted', 'listed but new'])
def test_a_series_that_does_not_match_its_manifest_is_refused(tmp_path, spoil):
    shutil.copytree(series.folder(), tmp_path / 'patches')
    manifest = tmp_path / 'patches' / series.MANIFEST
    lines = manifest.read_text().splitlines(keepends=True)
    new = next(path for path in series.load().diffs if series.load().is_new(path))
    manifest.write_text(''.join(lines[1:] if spoil == 'unlisted' else [*lines, f'{"0" * 64}  {new}\n']))
    with pytest.raises(ForkError, match=r'disagree on whether upstream has chainer/.*regenerate'):
        series.load(tmp_path / 'patches')
