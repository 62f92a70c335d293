"""The two files of a programme: all values as JSON, tables as Markdown. Both are written anew after each row.

A file is named by its device, as the device itself says it. Where no device answered there are no figures.
"""
from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tables import one_line, table_of, with_comparisons

UNKNOWN = 'unknown device'


class Files:
    """Where the programme's figures go.

    Args:
        folder: Made where it is missing.
        device: What the device said of itself; 'device' is its name.
        asked: How the programme was called.
        stage: Of the programme, so that two of them in one folder keep apart; or None.
    """

    def __init__(self, folder: pathlib.Path, device: Mapping[str, Any], asked: Mapping[str, Any],
                 stage: str | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._device, self._asked = dict(device), dict(asked)
        name = name_of(self._device, stage)
        self.json, self.markdown = folder / f'{name}.json', folder / f'{name}.md'

    def write(self, parts: Sequence[Mapping[str, Any]]) -> None:
        """Writes both files; a reader sees the old or the new ones, and never a half."""
        compared = with_comparisons(parts)
        figures = {'device': self._device, 'asked': self._asked, 'parts': compared}
        _replace(self.json, json.dumps(figures, indent=1, default=str) + '\n')
        _replace(self.markdown, '\n'.join(self._lines(compared)) + '\n')

    def _lines(self, parts: Sequence[Mapping[str, Any]]) -> list[str]:
        lines = [f"# GPU programme: {self._device.get('device', UNKNOWN)}", '', self._command(), '']
        if not self._device.get('is_gpu'):
            lines += ['**No GPU was used: these figures say nothing about one.**', '']
        lines += [f'- {name}: {one_line(value)}' for name, value in self._device.items()]
        for part in parts:
            lines += ['', f"## {part['title']}", '']
            if part.get('reason'):
                lines += [f"{part['state'].capitalize()}: {part['reason']}.", '']
            if part['state'] == 'running':
                lines += ['Cut short: it was still running when this was written.', '']
            if part['rows']:
                lines += [table_of(part).to_markdown(), '']
            lines += _largest(part)
        return lines + _evidence(parts)

    def _command(self) -> str:
        options = ' '.join(f'--{name}' if value is True else f'--{name} {value}' for name, value in self._asked.items())
        return f'`python benchmarks/gpu/run.py {options}`; medians over whole iterations, data on the device.'


def name_of(device: Mapping[str, Any], stage: str | None) -> str:
    """What the files of a device and a stage are called."""
    name = re.sub(r'[^a-z0-9]+', '-', f"gpu {device.get('device', UNKNOWN)} {stage or ''}".lower()).strip('-')
    return name if device.get('is_gpu') else name.replace('gpu-', 'no-gpu-', 1)


def _evidence(parts: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the last row of each process saw; all of it is in the JSON."""
    rows = [row for part in parts for row in part['rows'] if row.get('evidence')]
    if not rows:
        return []
    where = 'Tracebacks, warnings, clocks and memory of each row are in the JSON file; the log has what was printed.'
    lines = ['', '## On the way', '', where, '']
    asked = [row['evidence']['cudnn'] for row in rows if row['evidence'].get('cudnn')]
    if asked:
        last = asked[-1]
        lines.append(f"- cuDNN {last.get('version')} (frontend {last.get('frontend')}): planned {last.get('planned')}, "
                     f"refused {max(each.get('refused_count', 0) for each in asked)}")
    im2col = [one_line(f"{row['row']} {row.get('policy', '')}: {row['evidence']['im2col']}") for row in rows
              if row['evidence'].get('im2col')]
    lines += [f'- rows whose convolutions went through im2col: {len(im2col)}', *(f'  - {line}' for line in im2col[:5])]
    warned = sorted({one_line(line) for row in rows for line in row['evidence']['warnings'] + row['evidence']['log']})
    return [*lines, f'- warnings: {len(warned)}', *(f'  - {line}' for line in warned[:20])]


def _largest(part: Mapping[str, Any]) -> list[str]:
    """The answer of a search, below its rows."""
    if part['name'] not in ('largest-batch', 'deepest'):
        return []
    done = [row for row in part['rows'] if row['outcome'] == 'done']
    if not done:
        return ['None of these trained.']
    if part['name'] == 'deepest':
        units = max(int(row['network'].split('-')[1]) for row in done)
        return [f'The deepest that trained has {units} units, {3 * units + 2} layers.']
    return [f"The largest that trained is batch {max(row['batch'] for row in done)}."]


def _replace(path: pathlib.Path, text: str) -> None:
    new = path.with_name(path.name + '.new')
    new.write_text(text)
    os.replace(new, path)
