"""The papers' tables, ours beside theirs, in one explicit registry.

Nothing here measures a machine, and nothing is fitted to what is stated. All that only these tables need is in this
room, and training needs nothing of it. The files, in the order of the data:

    reported                                    what the papers say
    comparison                                  a row: what is stated, ours, and how far the two are apart
    extrapolation                               the iteration at any size, from recordings at two small ones
    allocators/                                 allocators of near memory, on paper: what fragmentation takes away
    pooch_chainer, published                    PoocH's Chainer and policies, by the program of its authors
    experiments                                 a network, a size, a machine and a policy give a time, or a refusal
    sweeps                                      what several tables ask: over sizes and policies; of each optimization
    pooch, pooch_2018, window_va                the tables of PoocH's two papers and of Window+VA
    layers, layer_networks, layer_memory        SuperNeurons' own way to count memory, layer by layer
    superneurons                                its tables
    paleo_formulas                              OOC-Paleo's equations
    ooc_paleo                                   its tables: what they and the simulator say to a case
    presentation, plot                          a table as text, Markdown and JSON; as bars
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from chainer_ooc.papers import ooc_paleo, pooch, pooch_2018, superneurons, window_va
from chainer_ooc.papers.comparison import PaperTable
from chainer_ooc.papers.experiments import Experiments


@dataclass(frozen=True)
class Entry:
    """A table that can be made.

    Attributes:
        paper: short name of the paper.
        figure: what is reproduced of it.
        title: a line.
        make: makes the table; may take minutes.
    """

    paper: str
    figure: str
    title: str
    make: Callable[[Experiments], PaperTable]


TABLES: tuple[Entry, ...] = (
    Entry('pooch', '3', 'memory of ResNet50', pooch.figure_3),
    Entry('pooch', '4', 'memory of ResNeXt101 (3D)', pooch.figure_4),
    Entry('pooch', '15', 'each optimisation on x86', pooch.figure_15),
    Entry('pooch', '16', 'each optimisation on POWER9', pooch.figure_16),
    Entry('pooch', '17', 'ResNet50 on x86', pooch.figure_17),
    Entry('pooch', '18', 'ResNet50 on POWER9', pooch.figure_18),
    Entry('pooch', 'table 3', 'verdicts on ResNet50', pooch.table_3),
    Entry('pooch', '19', 'AlexNet on x86', partial(pooch.alexnet, machine='x86', figure='19')),
    Entry('pooch', '20', 'AlexNet on POWER9', partial(pooch.alexnet, machine='POWER9', figure='20')),
    Entry('pooch', '21', 'ResNeXt101 (3D) on x86', partial(pooch.videos, machine='x86', figure='21')),
    Entry('pooch', '22', 'ResNeXt101 (3D) on POWER9', partial(pooch.videos, machine='POWER9', figure='22')),
    Entry('pooch', 'text', 'maps, bytes, layers, planning time', pooch.text),
    Entry('pooch-2018', '14', 'each optimisation', pooch_2018.figure_14),
    Entry('pooch-2018', '15', 'ResNet50', pooch_2018.figure_15),
    Entry('pooch-2018', '16', 'GoogLeNet', pooch_2018.figure_16),
    Entry('pooch-2018', '17', 'AlexNet', pooch_2018.figure_17),
    Entry('superneurons', '10', "AlexNet's memory, one technique after the other", superneurons.peaks),
    Entry('superneurons', 'table 1', 'recomputations', superneurons.recomputations),
    Entry('superneurons', 'table 2', 'a pool of memory', superneurons.pool),
    Entry('superneurons', 'table 3', 'traffic and the tensor cache', superneurons.traffic),
    Entry('superneurons', 'table 4', 'the deepest network', superneurons.depths),
    Entry('superneurons', 'table 5', 'the largest batch', superneurons.peak_batches),
    Entry('window-va', 'table 1', 'ResNet-50 over the batch size', window_va.table_1),
    Entry('window-va', '3', 'fragmentation', window_va.figure_3),
    Entry('ooc-paleo', '5', 'utilisation over the batch size', ooc_paleo.utilisation),
    Entry('ooc-paleo', '8', 'VGG16 over the throughput of the link', ooc_paleo.vgg16_sweep),
)

__all__ = ['TABLES', 'Entry', 'PaperTable']
