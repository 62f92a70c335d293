"""Runs the commands of docs/tutorial.md in an empty folder, and compares what they print with what stands there.

    python docs/tutorial.py            # exit status 1 if an output has changed, and which
    python docs/tutorial.py --write    # puts the new outputs into the page

Blocks of Python that begin with the name of a file are written to it; blocks of sh are run, each with what the ones
before it left, and the text block behind one is its output. What is compared are words: times, and what plans make of
them, differ from run to run, so that numbers and the rules of tables are passed over. One BLAS thread has the
same memory everywhere.
"""
from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).with_name('tutorial.md')
_BLOCK = re.compile(r'^```(python|sh|text)\n(.*?)^```$', re.MULTILINE | re.DOTALL)
#: What of an output depends on times: how near a plan is to the best, and how many of something there are.
_NEAR = re.compile(r'no plan is faster|within [\d.]+ % of the best possible')
_COUNTED = re.compile(r'\b(map|call|step|byte|iteration)s\b')
#: A number, its sign and its unit: 999 MB and 1.00 GB are alike.
_NUMBER = re.compile(r'^\(?[-+]?[\d.]+(e[-+]\d+)?[,;)]*$')
_UNITS = {'MB', 'GB', 's', 'ms'}


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description='Runs the commands of the tutorial and compares what they print.')
    parser.add_argument('--write', action='store_true', help='put what they print into the page')
    parsed = parser.parse_args(arguments)
    text = PAGE.read_text('utf-8')
    with tempfile.TemporaryDirectory() as folder:
        outputs = dict(run(text, Path(folder)))
    changed = [command for command, (old, new) in outputs.items() if words(old) != words(new)]
    if parsed.write:
        PAGE.write_text(_with_outputs(text, [new for _, new in outputs.values()]), 'utf-8')
        return 0
    for command in changed:
        old, new = outputs[command]
        print(f'$ {command}\n--- in the tutorial:\n{old}--- now:\n{new}')
    print(f'{len(outputs) - len(changed)} of {len(outputs)} outputs are as in the tutorial')
    return 1 if changed else 0


def run(text: str, folder: Path) -> Iterator[tuple[str, tuple[str, str]]]:
    """Writes the files and runs the commands of a page.

    Args:
        text: the page.
        folder: where they run.

    Yields:
        A command, and its output in the page and now. The output of one that failed ends with its status.
    """
    environment = {**os.environ, 'OMP_NUM_THREADS': '1', 'COLUMNS': '80', 'PYTHONPATH': str(PAGE.parents[1]),
                   'PATH': f'{Path(sys.executable).parent}{os.pathsep}{os.environ["PATH"]}'}
    command = ''
    for kind, content in _BLOCK.findall(text):
        if kind == 'python':
            name, _, body = content.removeprefix('# ').partition('\n')
            (folder / name).write_text(body, 'utf-8')
        elif kind == 'sh':
            command = content.strip()
        else:
            done = subprocess.run(['bash', '-c', command], cwd=folder, env=environment, text=True, check=False,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            ended = '' if done.returncode == 0 else f'exit status {done.returncode}\n'
            yield command, (content, done.stdout + ended)


def words(output: str) -> list[str]:
    """What is compared of an output."""
    plain = _COUNTED.sub(r'\1', _NEAR.sub('near', output))
    return [each.strip('(),;:') for each in plain.split() if each.strip('-') and each.strip('(),;:') not in _UNITS
            and not _NUMBER.match(each)]


def _with_outputs(text: str, outputs: list[str]) -> str:
    remaining = iter(outputs)
    return _BLOCK.sub(lambda block: f'```text\n{next(remaining)}```' if block[1] == 'text' else block[0], text)


if __name__ == '__main__':
    sys.exit(main())
