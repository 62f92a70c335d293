"""Turns the series of patches into a git repository to work in, and back.

    python patches/regenerate.py open REPO      a new repository: chainer 7.8.1 as installed, and one commit per patch
    python patches/regenerate.py export REPO    the patches, upstream.sha256 and the README's table, from its commits

The subject of a commit is ``NNNN name: summary``, the body is the reason; they become ``NNNN-name.patch``. The order
of commits is free: `export` replays them by number in a throw-away worktree and checks that the result is the same
tree. Commits of the same number become one patch (the first one's subject and body count), so a later correction is
just one more commit. Nothing is written if anything fails, and a second run changes nothing.

Needs git, and for `open` an installed chainer 7.8.1. It stands alone, since the package cannot be imported from a
series that is being repaired.
"""
import argparse
import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
SUBJECT = re.compile(r'(\d{4}) ([a-z0-9-]+): \S')
PACKAGES = 'chainer', 'chainermn'
TABLE = re.compile(r'(?<=\| --- \| --- \|\n)(\|.*\n)*')
DIFF = ('diff', '-U0', '--no-color', '--no-ext-diff', '--no-renames', '--no-textconv',
        '--src-prefix=a/', '--dst-prefix=b/')


@dataclass
class Topic:
    """All commits of one number."""

    number: str
    name: str
    message: str
    commits: list[str] = field(default_factory=list)

    @property
    def file_name(self) -> str:
        return f'{self.number}-{self.name}.patch'


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('action', choices=['open', 'export'])
    parser.add_argument('repo', type=Path)
    arguments = parser.parse_args()
    {'open': open_series, 'export': export}[arguments.action](arguments.repo.resolve())


def open_series(repo: Path) -> None:
    """Makes the repository: the installed sources, then one commit per patch."""
    spec = importlib.util.find_spec('chainer')
    if spec is None or spec.origin is None:
        sys.exit('chainer is not installed here: run this with the Python of an environment that has chainer 7.8.1')
    repo.mkdir(parents=True)
    for package in PACKAGES:
        shutil.copytree(Path(spec.origin).parent.parent / package, repo / package,
                        ignore=shutil.ignore_patterns('__pycache__'))
    check_pristine(repo)
    git(repo, 'init', '-q')
    git(repo, 'add', '-A')
    commit(repo, 'pristine chainer 7.8.1, as its sdist installs it')
    for patch in sorted(HERE.glob('[0-9]*.patch')):
        git(repo, 'apply', '--index', '--unidiff-zero', str(patch))
        message = patch.read_text(encoding='utf-8').partition('diff --git ')[0]
        commit(repo, message.strip())


def check_pristine(repo: Path) -> None:
    """Compares the copied files with the manifest of the series as it is."""
    for line in (HERE / 'upstream.sha256').read_text(encoding='utf-8').splitlines():
        digest, path = line.split('  ', 1)
        if hashlib.sha256((repo / path).read_bytes()).hexdigest() != digest:
            sys.exit(f'{path} is not the file of chainer 7.8.1; install chainer again and remove {repo}')


def commit(repo: Path, message: str) -> None:
    """Commits the index, on a machine where nobody has told git a name, too."""
    git(repo, '-c', 'user.name=patches', '-c', 'user.email=patches@localhost',
        'commit', '-q', '--cleanup=verbatim', '-m', message)


def export(repo: Path) -> None:
    """Writes the patches and the manifest."""
    root = git(repo, 'rev-list', '--max-parents=0', 'HEAD').strip()
    head = git(repo, 'rev-parse', 'HEAD').strip()
    topics = read_topics(repo, root, head)
    changed: set[str] = set()
    with worktree(repo, root) as tree:
        files = {topic.file_name: replay(tree, topic, changed) for topic in topics}
        if git(tree, 'diff', '--cached', '--stat', head):
            sys.exit('replayed by number, the commits give another tree than HEAD; nothing was written')
    files['upstream.sha256'] = manifest(repo, root, changed)
    files['README.md'] = TABLE.sub(''.join(map(row, topics)).replace('\\', r'\\'), (HERE / 'README.md').read_text(), 1)
    for stale in {file.name for file in HERE.glob('*.patch')} - files.keys():
        (HERE / stale).unlink()
        print(f'removed {stale}')
    for name, text in files.items():
        file = HERE / name
        if not file.exists() or file.read_text(encoding='utf-8') != text:
            file.write_text(text, encoding='utf-8')
            print(f'wrote {name}')


def read_topics(repo: Path, root: str, head: str) -> list[Topic]:
    """The commits, gathered by number and sorted by it."""
    topics: dict[str, Topic] = {}
    for change in git(repo, 'rev-list', '--reverse', '--no-merges', f'{root}..{head}').split():
        message = git(repo, 'log', '-1', '--format=%B', change).strip()
        match = SUBJECT.match(message)
        if match is None:
            sys.exit(f'commit {change[:10]} has the subject {message.partition(chr(10))[0]!r}; '
                     'it has to be "NNNN name: summary"')
        number, name = match.groups()
        topic = topics.setdefault(number, Topic(number, name, message))
        if topic.name != name:
            sys.exit(f'number {number} is used for both {topic.name!r} and {name!r}')
        topic.commits.append(change)
    return [topics[number] for number in sorted(topics)]


def replay(tree: Path, topic: Topic, changed: set[str]) -> str:
    """Applies a topic's commits to the worktree, adds the paths to ``changed`` and returns its patch file."""
    before = git(tree, 'write-tree').strip()
    for change in topic.commits:
        try:
            git(tree, 'cherry-pick', '--no-commit', change)
        except SystemExit as error:
            sys.exit(f'{topic.file_name}: commit {change[:10]} conflicts when the commits are replayed by number; '
                     f'let it touch other lines or take a higher number\n{error}')
    after = git(tree, 'write-tree').strip()
    changed.update(git(tree, 'diff', '--name-only', '--no-renames', before, after).split())
    lines = git(tree, *DIFF, before, after).splitlines(keepends=True)
    # Blob names would change with any other patch to the same file; nothing reads them.
    return f'{topic.message}\n\n' + ''.join(line for line in lines if not line.startswith('index '))


def row(topic: Topic) -> str:
    """The line of the README's table: the patch, and its reason with the summary first."""
    subject, _, reason = topic.message.partition('\n')
    words = f'{subject.partition(": ")[2].rstrip(".")}. {reason}'.replace('|', r'\|').split()
    return f'| {topic.number}-{topic.name} | {" ".join(words)} |\n'


def manifest(repo: Path, root: str, changed: set[str]) -> str:
    """``sha256sum`` lines of the changed files that upstream has."""
    paths = changed.intersection(git(repo, 'ls-tree', '-r', '--name-only', root).split())
    contents = {path: git(repo, 'show', f'{root}:{path}').encode() for path in sorted(paths)}
    return ''.join(f'{hashlib.sha256(content).hexdigest()}  {path}\n' for path, content in contents.items())


@contextmanager
def worktree(repo: Path, start: str) -> Iterator[Path]:
    """A checkout of a commit beside the repository's own, so that nobody's uncommitted work is touched."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, 'tree')
        git(repo, 'worktree', 'add', '-q', '--detach', str(tree), start)
        try:
            yield tree
        finally:
            git(repo, 'worktree', 'remove', '--force', str(tree))


def git(repo: Path, *arguments: str) -> str:
    """Runs git and returns what it prints."""
    done = subprocess.run(['git', '-C', str(repo), *arguments], capture_output=True, text=True, encoding='utf-8')
    if done.returncode:
        sys.exit(f'git {" ".join(arguments)} failed in {repo}:\n{done.stderr}')
    return done.stdout


if __name__ == '__main__':
    main()
