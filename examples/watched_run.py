"""Runs one training in a process of its own and watches its memory from outside.

Outside, because a training behind a wall has no memory to spare for a watcher, and because it may die. The parent reads
`/proc/PID/status` 20 times a second; the training writes what it did to a journal. What the training prints goes to a
log file; the parent shows one line that says where it is. Left out: macOS and Windows, which have no `/proc`.
"""
from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from options import Options
from training_run import IterationRow, MemorySample, Outcome, TrainingRun

SCRIPT = pathlib.Path(__file__).with_name('train_imagenet.py')
OUT_OF_MEMORY = 3  # the exit status by which train_imagenet.py tells MemoryError
SAMPLE_SECONDS = 0.05


def run_watched(name: str, options: Options, folder: pathlib.Path, show: Callable[[str], None]) -> TrainingRun:
    """Runs a training and waits for its end.

    Args:
        name: What reports call the run; also names its files in `folder`.
        options: What to train and how.
        folder: Gets the training's output (``NAME.log``), its journal (``NAME.journal``) and its own folder.
        show: Called with a line on the state of the run, several times a second.

    Returns:
        TrainingRun: What it did, whether it finished or died.
    """
    stem = ''.join(letter if letter.isalnum() else '-' for letter in name)
    folder.mkdir(parents=True, exist_ok=True)
    journal = folder / f'{stem}.journal'
    journal.write_text('')
    options = dataclasses.replace(options, journal=journal, out=folder / stem)
    began = time.monotonic()
    samples: list[tuple[float, dict[str, int]]] = []
    with (folder / f'{stem}.log').open('w+', encoding='utf-8') as log:
        process = subprocess.Popen([sys.executable, str(SCRIPT), *options.to_arguments()],
                                   stdout=log, stderr=subprocess.STDOUT, env=with_our_path())
        try:
            while process.poll() is None:
                memory = memory_of(process.pid)
                if memory:
                    samples.append((time.monotonic(), memory))
                    show(progress(name, options, read_journal(journal), memory, time.monotonic() - began))
                time.sleep(SAMPLE_SECONDS)
        finally:
            process.kill()
            process.wait()
        log.seek(0)
        said = log.read()
    return make_run(name, options, process.returncode, said, read_journal(journal), samples)


def with_our_path() -> dict[str, str]:
    """The environment of a training: ours, with the modules that this process can import."""
    return {**os.environ, 'PYTHONPATH': os.pathsep.join(path for path in sys.path if path), 'PYTHONUNBUFFERED': '1'}


def memory_of(pid: int) -> dict[str, int]:
    """Reads a process's memory: bytes by field of `/proc/PID/status` (RssAnon, VmHWM); empty when it is gone."""
    try:
        text = pathlib.Path(f'/proc/{pid}/status').read_text()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    fields = dict(line.split(':', 1) for line in text.splitlines())
    return {name: int(fields[name].split()[0]) * 1024 for name in ('RssAnon', 'VmHWM') if name in fields}


def read_journal(path: pathlib.Path) -> list[dict[str, Any]]:
    """Reads the events so far; a line that is still being written is left for later."""
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith('\n')]


def progress(name: str, options: Options, events: list[dict[str, Any]], memory: dict[str, int], seconds: float) -> str:
    """One line on where a training is."""
    done = [event for event in events if event['event'] == 'iteration']
    where = f'iteration {min(len(done) + 1, options.iterations)}/{options.iterations}' if events else 'starting'
    loss = f', loss {float.fromhex(done[-1]["loss"]):.4f}' if done else ''
    limit = f' of {options.wall_bytes / 1e6:,.0f}' if options.wall_bytes else ''
    return f'{name}: {where}{loss}, memory {memory.get("RssAnon", 0) / 1e6:,.0f}{limit} MB, {seconds:.0f} s'


def make_run(name: str, options: Options, status: int, said: str, events: list[dict[str, Any]],
             samples: list[tuple[float, dict[str, int]]]) -> TrainingRun:
    """Puts together what the training wrote down and what was seen from outside."""
    begin = next((event['at'] for event in events if event['event'] == 'begin'), samples[-1][0] if samples else 0.0)
    outcome = {0: Outcome.FINISHED, OUT_OF_MEMORY: Outcome.OUT_OF_MEMORY}.get(status, Outcome.FAILED)
    lines = said.strip().splitlines() or [f'exit status {status}']
    return TrainingRun(
        name=name, policy=options.policy, workspace=options.workspace, wall_bytes=options.wall_bytes, outcome=outcome,
        message='' if outcome is Outcome.FINISHED else lines[-1],
        peak_bytes=max((memory.get('VmHWM', 0) for _, memory in samples), default=0),
        ended_seconds=samples[-1][0] - begin if samples else 0.0,
        parameters=next((event['parameters'] for event in events if event['event'] == 'end'), ''),
        iterations=tuple(make_iteration(event, begin) for event in events if event['event'] == 'iteration'),
        samples=tuple(MemorySample(at_seconds=round(at - begin, 3), resident_bytes=memory['RssAnon'])
                      for at, memory in samples if 'RssAnon' in memory))


def make_iteration(event: dict[str, Any], begin: float) -> IterationRow:
    """Turns a journal's line into an iteration, with times from the beginning of the training."""
    return IterationRow(
        start_seconds=event['start'] - begin, end_seconds=event['end'] - begin, loss=float.fromhex(event['loss']),
        swapped_out_bytes=event['swapped_out_bytes'], swapped_in_bytes=event['swapped_in_bytes'],
        faults=event['faults'])
