"""Window+VA's evaluation: ResNet-50 up to batch 1440, with and without virtual addresses, beside LMS.

Source: Window+VA sections 4 and 5.1 (table 1, figure 3). Left out: its section 5.2 (DenseNet, pix2pixHD, DeepLabv3+),
which states no speeds and does not say which DenseNet.
"""

from __future__ import annotations

from collections.abc import Mapping

from chainer_ooc.papers import reported
from chainer_ooc.papers.allocators.virtual import CHUNK_BYTES, SMALLEST_CHUNK_BYTES
from chainer_ooc.papers.comparison import PaperTable, Reported, Row, claim
from chainer_ooc.papers.experiments import NNABLA, SMALL_BYTES, Experiments, Outcome
from chainer_ooc.papers.sweeps import Setting, fails, is_faster, measured

V100, P100 = 'v100-nvlink2', 'p100-nvlink'
SCHEDULING, VIRTUAL, LMS = 'scheduling', 'scheduling + VA', 'LMS (P100)'
_LAST_IN_CORE = 190
_GIGA = 1e9

_NOTES = (
    ('In-core throughputs are put in, as stated, at batch 64, 128 and 190; at larger batches that of batch 190 is used '
     '(581 images/s on the V100, 258 on the P100), since in-core runs out of memory there.'),
    ('Scheduling is policy window with a best-fit pool, VA the same with physical chunks of 40 MiB; the paper calls '
     f'them 40 MB. Arrays below {SMALL_BYTES >> 20} MiB share chunks, of which the paper says nothing: with one for '
     "each, batch normalisation's statistics alone would take gigabytes. What mapping a chunk costs is not stated and "
     'not charged.'),
    ('Neural Network Libraries frees maps as they are used up, and adds the second part of a gradient to the first '
     'where it lies; so do the simulated iterations.'),
    ("The machine is taken to be PoocH's POWER9 (75 GB/s); this paper's has two NVLinks, each of which \"can transfer "
     'memory at 50 GB/s".'),
)


_MAPPING = ('VA up to batch 256: by the paper it is a quarter slower than scheduling alone there, while both have the'
            ' same copies to make: that is what mapping costs, and it is not in ours.')


def setting(batch: int, allocator: str = 'pool') -> Setting:
    """The V100 for a batch size, with the throughput that is stated for it or for the largest that fits."""
    return Setting('resnet50', V100, _in_core_of(reported.WINDOW_IN_CORE, batch), allocator, NNABLA)


def _in_core_of(figures: Mapping[int, Reported], batch: int) -> float | None:
    return figures[min(batch, _LAST_IN_CORE)].low


def _lms(batch: int) -> Setting:
    return Setting('resnet50', P100, _in_core_of(reported.WINDOW_P100_IN_CORE, batch), 'pool', NNABLA)


def table_1(experiments: Experiments) -> PaperTable:
    """Speed over the batch size."""
    batches = reported.WINDOW_BATCHES
    in_core = {batch: setting(batch).in_core(experiments, batch) for batch in batches}
    scheduled = _scheduled(experiments, 'pool')
    virtual = _scheduled(experiments, 'virtual')
    lms = {batch: _lms(batch).run(experiments, batch, 'lms') for batch in batches}
    rows = [
        *_in_core_rows('in-core (V100)', reported.WINDOW_IN_CORE, in_core),
        *_speeds(SCHEDULING, reported.WINDOW_SCHEDULING, scheduled),
        *_speeds(VIRTUAL, reported.WINDOW_VIRTUAL, virtual),
        *_in_core_rows('in-core (P100)', reported.WINDOW_P100_IN_CORE,
                       {batch: _lms(batch).in_core(experiments, batch) for batch in batches}),
        *_speeds(LMS, reported.WINDOW_LMS, lms),
        *_kept({SCHEDULING: scheduled, VIRTUAL: virtual, LMS: lms}),
        _quotient(reported.WINDOW_LARGER, _largest(virtual), _largest(lms)),
        _quotient(reported.WINDOW_BEYOND, _largest(virtual), _largest(in_core)),
        claim('batch 928, scheduling faster than LMS', _is_more(scheduled[928], lms[928])),
        claim('batch 928, scheduling + VA faster than scheduling alone', is_faster(virtual[928], scheduled[928])),
    ]
    return PaperTable('window-va', 'table 1', 'Speed of ResNet-50 over the batch size', tuple(rows),
                      (*_NOTES, _MAPPING))


def _scheduled(experiments: Experiments, allocator: str) -> dict[int, Outcome]:
    return {batch: setting(batch, allocator).run(experiments, batch, 'window') for batch in reported.WINDOW_BATCHES}


def _in_core_rows(series: str, figures: Mapping[int, Reported], outcomes: Mapping[int, Outcome]) -> list[Row]:
    """What was put in, whether it fits where the paper's did, and that it fails where the paper's failed."""
    rows = []
    for batch, outcome in outcomes.items():
        if batch in figures:
            rows.append(figures[batch].beside(outcome.in_core_images_per_second, series=series, group=str(batch),
                                              is_input=True))
            rows.append(claim(f'batch {batch}, {series} fits', outcome.feasible))
        else:
            rows.append(fails(f'batch {batch}, {series} out of memory', outcome))
    return rows


def _speeds(series: str, figures: Mapping[int, Reported], outcomes: Mapping[int, Outcome]) -> list[Row]:
    """Speeds beside those stated; where the paper ran out of memory, that we do too."""
    return [measured(figures[batch].what, outcome, 'images/s', series, str(batch), stated=figures[batch])
            if batch in figures else fails(f'batch {batch}, {series} out of memory', outcome)
            for batch, outcome in outcomes.items()]


def _kept(outcomes: Mapping[str, Mapping[int, Outcome]]) -> list[Row]:
    rows = []
    for (series, batch), figure in reported.WINDOW_KEPT.items():
        outcome = outcomes[series][batch]
        lost = outcome.below if outcome.feasible else None
        rows.append(figure.beside(None if lost is None else 1 - lost, out_of_memory=lost is None))
    return rows


def _largest(outcomes: Mapping[int, Outcome]) -> int | None:
    """The largest of the table's batches that runs."""
    return max((batch for batch, each in outcomes.items() if each.feasible), default=None)


def _quotient(figure: Reported, larger: int | None, smaller: int | None) -> Row:
    ours = None if larger is None or smaller is None else larger / smaller
    return figure.beside(ours, out_of_memory=ours is None)


def _is_more(first: Outcome, second: Outcome) -> bool | None:
    """Whether a run gives more images per second than one on another machine."""
    if not (first.feasible and second.feasible):
        return None if first.feasible else False
    return (first.images_per_second or 0.0) > (second.images_per_second or 0.0)


def figure_3(experiments: Experiments) -> PaperTable:
    """The budget that could be given, and what it took from the device."""
    rows = []
    wasted: dict[tuple[str, int], float | None] = {}
    for name, allocator in ((SCHEDULING, 'pool'), (VIRTUAL, 'virtual')):
        for batch, outcome in _scheduled(experiments, allocator).items():
            is_stated = (name, batch) == (SCHEDULING, 928)
            for what, figure, nbytes in (('budget', reported.WINDOW_BUDGET, outcome.budget_bytes),
                                         ('memory taken', reported.WINDOW_CAPACITY, outcome.device_bytes)):
                gigabytes = nbytes / _GIGA if outcome.feasible and nbytes is not None else None
                rows.append(Row(f'batch {batch}, {name}, {what}', figure.bounds if is_stated else None, gigabytes, 'GB',
                                series=f'{name}, {what}', group=str(batch), out_of_memory=not outcome.feasible))
            wasted[name, batch] = _wasted(outcome)
    rows += [
        claim(f'batch {batch}, VA loses less to fragmentation',
              _is_less(wasted[VIRTUAL, batch], wasted[SCHEDULING, batch]))
        for batch in reported.WINDOW_SCHEDULING if batch > _LAST_IN_CORE]
    rows += [reported.WINDOW_CHUNK.beside(CHUNK_BYTES / 2**20, is_input=True),
             reported.WINDOW_SMALLEST_CHUNK.beside(SMALLEST_CHUNK_BYTES / 2**20, is_input=True)]
    return PaperTable('window-va', '3', 'Budget that scheduling can be given, and memory that it takes', tuple(rows), (
        *_NOTES, ('The budget is the largest in steps of 5 % whose plan fits the device through its allocator. How the '
                  "paper's was found it does not say.")))


def _wasted(outcome: Outcome) -> float | None:
    if not outcome.feasible or outcome.device_bytes is None:
        return None
    return (outcome.device_bytes - outcome.budget_bytes) / outcome.device_bytes


def _is_less(first: float | None, second: float | None) -> bool | None:
    return None if first is None or second is None else first < second
