"""``chainer-ooc tables``: the papers' tables, ours beside theirs, without any GPU.

The networks are those of ``examples/models`` in a checkout. Chainer runs each of them at two small sizes, once for all
tables; everything else is worked out and simulated from these traces.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from chainer_ooc.cli.answer import Answer, UsageError, trying
from chainer_ooc.cli.arguments import unknown
from chainer_ooc.cli.model import example_module
from chainer_ooc.cli.stage import stages
from chainer_ooc.papers import TABLES, Entry, PaperTable, plot, presentation
from chainer_ooc.papers.experiments import Experiments, Size
from chainer_ooc.profiling.profile import Training
from chainer_ooc.profiling.profile import record as record_training
from chainer_ooc.trace import Trace

HELP = "the papers' tables, ours beside theirs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds which tables, and where they are written to."""
    parser.add_argument('--paper', metavar='PAPER', help=f'one of {", ".join(_distinct(TABLES))} (all)')
    parser.add_argument('--figure', metavar='FIGURE', help='a figure such as 17, or "table 3", or text (all)')
    parser.add_argument('--out', type=Path, metavar='FOLDER', help=(
        'write Markdown, JSON and PNG files to this folder, named by paper and figure'))


def run(arguments: argparse.Namespace) -> Answer:
    """Makes the tables.

    Raises:
        OocError: there is no such table, the networks cannot be had, or the files cannot be written.
    """
    entries = _chosen(arguments.paper, arguments.figure)
    if arguments.out is not None:
        _prepare(arguments.out)
    experiments = Experiments(record)
    made = [each.make(experiments)
            for each in stages(entries, 'making', lambda entry: presentation.heading(entry.paper, entry.figure))]
    for each in made if arguments.out is not None else ():
        _write(arguments.out, each)
    rows = [row for each in made for row in each.rows]
    facts = {'tables': [presentation.values(each) for each in made],
             **presentation.score_values(presentation.score(rows))}
    return Answer(facts, [presentation.present(each) for each in made], _closing(made, arguments.out))


def _chosen(paper: str | None, figure: str | None) -> list[Entry]:
    of_paper = [each for each in TABLES if paper in (None, each.paper)]
    if not of_paper:
        raise UsageError(f'--paper: {unknown("paper", str(paper), _distinct(TABLES))}')
    wanted = figure.removeprefix('figure ') if figure is not None else None
    chosen = [each for each in of_paper if wanted in (None, each.figure)]
    if not chosen:
        numbers_first = sorted({each.figure for each in of_paper},
                               key=lambda each: (not each.isdecimal(), each.zfill(3)))
        figures = ', '.join(numbers_first)
        of = f' of {paper}' if paper else ''
        raise UsageError(f'--figure: there is no figure {figure!r}{of}; there are: {figures}')
    return chosen


def _distinct(entries: Iterable[Entry]) -> list[str]:
    return list(dict.fromkeys(each.paper for each in entries))


def record(network: str, size: Size) -> Trace:
    """Runs a network of ``examples/models/papers.py`` until there is a trace, with even its smallest arrays.

    The size is that of the batch, or what else the network's `batch` takes.

    Raises:
        OocError: this is no checkout, or the network left no trace.
    """
    import chainer

    described = example_module('models.papers', network).PAPER_NETWORKS[network]
    chain = described.build()
    images, labels = described.batch(size)

    def iterate() -> None:
        loss = chain(images, labels)
        chain.cleargrads()
        loss.backward()

    with chainer.using_config('ooc_min_bytes', 0):
        return record_training(Training(iterate, {'chain': chain}, is_kept=False), 'keep')


def _prepare(folder: Path) -> None:
    """Makes the folder, and fails before the tables are made, not after it."""
    with trying(f'make the folder {folder}', 'another one with --out'):
        folder.mkdir(parents=True, exist_ok=True)


def _write(folder: Path, table: PaperTable) -> None:
    stem = presentation.file_stem(table.paper, table.figure)
    shown = presentation.present(table)
    texts = {'md': shown.to_markdown(), 'json': json.dumps(presentation.values(table), indent=2)}
    with trying(f'write {stem} to {folder}', 'another folder with --out'):
        for suffix, content in texts.items():
            (folder / f'{stem}.{suffix}').write_text(content + '\n', encoding='utf-8')
        if _can_draw() and plot.drawable(table):
            plot.draw_paper_table(table, folder / f'{stem}.png')


def _can_draw() -> bool:
    return importlib.util.find_spec('matplotlib') is not None


def _closing(made: Sequence[PaperTable], folder: Path | None) -> list[str]:
    """A line for each paper, one for all, and where the files are."""
    rows = {paper: [row for each in made if each.paper == paper for row in each.rows]
            for paper in dict.fromkeys(each.paper for each in made)}
    if len(rows) > 1:
        rows['all'] = [row for each in made for row in each.rows]
    lines = [presentation.summary(presentation.score(of_paper), paper) for paper, of_paper in rows.items()]
    if folder is not None:
        lines.append(f'written to {folder}')
        if not _can_draw():
            lines.append("without pictures, as matplotlib is not installed: pip install 'chainer-ooc[examples]'")
    return lines
