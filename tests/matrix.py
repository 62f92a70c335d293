"""Runs the tests on the oldest and newest Python, each with the oldest and newest dependencies, and sums up.

    python3 tests/matrix.py [--python 3.10 3.15] [--out FILE] [-- arguments for pytest]

The oldest dependencies are the floors of setup.cfg, which are thereby tested; from Python 3.13 on they are the first
releases with wheels for it (NumPy 2.1.0, 2.3.2 and 2.5.2, where older Pythons have 1.26.0). An interpreter is looked
for on the PATH and among pyenv's; a missing one is named in the table and makes the exit status 1, as a failure does.
"""
import argparse
import configparser
import operator
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENT = re.compile(r'([\w.-]+)>=([\w.]+)(?:; python_version(<|>=|==)"(3\.\d+)")?')
HEADINGS = ('Python', 'dependencies', 'NumPy', 'result', 'seconds')


def main():
    arguments = parse_arguments()
    rows = [run(version, kind, arguments.pytest) for version in arguments.python for kind in ('oldest', 'newest')]
    text = table(rows)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + '\n')
    return any(status for _, status in rows)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--python', nargs='+', default=['3.10', '3.15'], metavar='X.Y')
    parser.add_argument('--out', type=Path, help='also write the table to this file')
    own, pytest = sys.argv[1:], []
    if '--' in own:
        own, pytest = own[:own.index('--')], own[own.index('--') + 1:]
    return parser.parse_args(own, argparse.Namespace(pytest=pytest))


def run(version, kind, pytest):
    """One environment: the cells of its row, and whether anything is wrong."""
    interpreter = find_python(version)
    if interpreter is None:
        return (version, kind, '-', f'missing: no python{version} on the PATH or in pyenv', '-'), True
    constraints = write_floors(version) if kind == 'oldest' else ''
    made = subprocess.run(
        ['sh', ROOT / 'environment.sh', f'matrix-{version}-{kind}', 'test,examples,cpu', constraints],
        env={**os.environ, 'PYTHON': interpreter}, stdout=subprocess.PIPE, text=True)
    if made.returncode:
        return (version, kind, '-', 'the environment could not be made', '-'), True
    python = made.stdout.strip()
    numpy, full = subprocess.run(
        [python, '-c', 'import numpy, platform; print(numpy.__version__, platform.python_version())'],
        check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    print(f'== Python {full}, NumPy {numpy} ({kind} dependencies)', flush=True)
    start = time.monotonic()
    result, status = run_pytest(python, pytest)
    return (full, kind, numpy, result, f'{time.monotonic() - start:.0f}'), status


def run_pytest(python, arguments):
    """Shows pytest's output as it comes, and returns its closing line without the ornaments."""
    process = subprocess.Popen([python, '-m', 'pytest', '-q', *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    last = ''
    for line in process.stdout:
        print(line, end='', flush=True)
        last = line.strip() or last
    return re.sub(r' in [\d.]+s.*', '', last.strip('= ')), process.wait()


def find_python(version):
    pyenv = Path(os.environ.get('PYENV_ROOT', Path.home() / '.pyenv'), 'versions')
    candidates = [shutil.which(f'python{version}'), *sorted(pyenv.glob(f'{version}.*/bin/python3'), reverse=True)]
    for candidate in filter(None, candidates):
        asked = subprocess.run(
            [candidate, '-c', 'import sys; print("%d.%d" % sys.version_info[:2])'], capture_output=True, text=True)
        if asked.stdout.strip() == version:  # a shim of pyenv may be on the PATH without its Python
            return str(candidate)
    return None


def write_floors(version):
    """Writes the floors of setup.cfg as a pip constraints file."""
    config = configparser.ConfigParser()
    config.read(ROOT / 'setup.cfg')
    requirements = [config['options']['install_requires'], *config['options.extras_require'].values()]
    found = REQUIREMENT.findall('\n'.join(requirements))
    lines = [f'{name}=={floor}\n' for name, floor, sign, bound in found if holds(version, sign, bound)]
    file = ROOT / '.venv' / f'floors-{version}.txt'
    file.parent.mkdir(exist_ok=True)
    file.write_text(''.join(lines))
    return str(file)


def holds(version, sign, bound):
    if not sign:
        return True
    compare = {'<': operator.lt, '>=': operator.ge, '==': operator.eq}[sign]
    return compare([*map(int, version.split('.'))], [*map(int, bound.split('.'))])


def table(rows):
    lines = [HEADINGS, ['---'] * len(HEADINGS), *(cells for cells, _ in rows)]
    return '\n'.join('| ' + ' | '.join(line) + ' |' for line in lines)


if __name__ == '__main__':
    sys.exit(main())
