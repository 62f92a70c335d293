"""PoocH's evaluation: memory, what each optimisation is worth, and what the text says of the graphs.

Source: PoocH section 2.2 (figures 3 and 4), section 5.1 (figures 15 and 16) and 5.2. Most figures were lost: where only
a range over several runs is stated, its ends are held against the ends of ours. `pooch_speeds` has the rest.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

from chainer_ooc.papers import reported
from chainer_ooc.papers.comparison import CLIP, NETWORK, PaperTable, Reported, Row, claim
from chainer_ooc.papers.experiments import MIN_BYTES, POOCH_CHAINER, Experiments, Outcome, Size
from chainer_ooc.papers.optimizations import BASE, gains, orderings, runs_of
from chainer_ooc.papers.published import POOCH, SWAP_OPT
from chainer_ooc.papers.sweeps import CALIBRATED, MACHINES, TO_THE_LETTER, UNCALIBRATED, Setting, fits, gain
from chainer_ooc.trace import FeatureMap, Trace

RESNET50_BATCHES = (128, 256, 384, 512, 640)
ALEXNET_BATCHES = (2304, 2432, 2560, 2688)
#: Height, width and frames of a clip; the batch is one clip.
VIDEOS = ((224, 224, 128), (224, 224, 256), (448, 224, 128), (448, 224, 256))
#: "Rarely recomputing" as a number, which the paper does not give: at most this share of the maps.
RARELY = 0.1

_IN_CORE = reported.POOCH_IN_CORE.low
_setting = partial(Setting, framework=POOCH_CHAINER)
RESNET50 = {name: _setting('resnet50', machine, _IN_CORE) for name, machine in MACHINES.items()}
ALEXNET = {name: _setting('alexnet', machine) for name, machine in MACHINES.items()}
GOOGLENET = {name: _setting('googlenet_bn', machine) for name, machine in MACHINES.items()}
VIDEO = {name: _setting('resnext3d', machine) for name, machine in MACHINES.items()}

RESNET50_NOTE = CALIBRATED.format(_IN_CORE)
GOOGLENET_NOTE = ("GoogLeNet is the one with batch normalisation. The papers do not say so, but their authors' scripts "
                  'run googlenetbn at the batch sizes of the figures, and the plain one fits in core at batch 384, '
                  'where PoocH 5.1 has sizes that exceed the memory.')
RARELY_NOTE = f'"Rarely" is taken as at most {RARELY:.0%} of the maps that are classified.'.replace('%', ' %')
_PEAK_NOTE = 'Peak of plain Chainer, which holds all maps until backward has ended; GB are 10^9 bytes.'
_ROOM = ('swap-opt of ResNet50 keeps 92 of 104 maps here and copies 12, so that there is little for recomputation to '
         'gain. At batch 512 it keeps 68 where table 3 has 66; what keeps it from more at batch 256 is not known.')
#: Functions by a part of their names; the first that reads a map tells what the map is an input of.
_READERS = (('BatchNormalization', 'batch normalisation'), ('MaxPooling', 'max pooling'),
            ('AveragePooling', 'average pooling'), ('Linear', 'the linear function'), ('Convolution', 'convolution'))


def video_name(size: tuple[int, ...]) -> str:
    """A clip as the paper's axis writes it."""
    return f'({size[0]}*{size[1]})*{size[2]}'


def recomputes_rarely(outcome: Outcome) -> bool:
    """Whether a plan recomputes next to nothing."""
    maps = outcome.keep + outcome.swap + outcome.recompute
    return outcome.feasible and outcome.recompute <= RARELY * maps


def figure_3(experiments: Experiments) -> PaperTable:
    """Memory of ResNet50 over the batch size."""
    found = {batch: RESNET50['x86'].in_core(experiments, batch) for batch in RESNET50_BATCHES}
    rows = [_memory(f'batch {batch}', each, 'ResNet50', str(batch), reported.POOCH_MEMORY if batch == 640 else None)
            for batch, each in found.items()]
    too_large = next((batch for batch, each in found.items() if not each.feasible), None)
    rows.append(reported.POOCH_TOO_LARGE.beside(too_large, 'smallest of these batches that fails in-core'))
    rows.append(fits('batch 128 fits 16 GB in-core', found[128]))
    return PaperTable('pooch', '3', 'Memory usage of ResNet50', tuple(rows), (_PEAK_NOTE,))


def figure_4(experiments: Experiments) -> PaperTable:
    """Memory of the 3D network over the size of the clip."""
    rows = tuple(_memory(video_name(size), VIDEO['x86'].in_core(experiments, size), 'ResNeXt101 (3D)', video_name(size),
                         reported.POOCH_VIDEO_MEMORY if size == VIDEOS[-1] else None) for size in VIDEOS)
    return PaperTable('pooch', '4', 'Memory usage of ResNeXt101 (3D), batch 1', rows, (_PEAK_NOTE,), axis=CLIP)


def _memory(what: str, outcome: Outcome, series: str, group: str, figure: Reported | None) -> Row:
    ours = outcome.peak_bytes / 1e9 if outcome.peak_bytes is not None else None
    return Row(what, figure.bounds if figure else None, ours, 'GB', series=series, group=group)


def figure_15(experiments: Experiments) -> PaperTable:
    """What each optimisation is worth on x86."""
    networks: dict[str, tuple[Setting, Size]] = {
        'ResNet50': (RESNET50['x86'], 256), 'AlexNet': (ALEXNET['x86'], 2432)}
    found = runs_of(experiments, networks, 'PoocH')
    rows = [
        *gains(found, 'PoocH'),
        *reported.POOCH_SWAP_ALL.ends_beside([gain(each['swap-all'], each[BASE]) for each in found.values()]),
        *reported.POOCH_SWAP_OPT.ends_beside([gain(each['swap-opt'], each['swap-all']) for each in found.values()]),
        over_swap_opt(reported.POOCH_RESNET50_GAIN, found['ResNet50'], 'PoocH'),
        over_swap_opt(reported.POOCH_ALEXNET_GAIN, found['AlexNet'], 'PoocH'),
        *orderings(found, 'PoocH'),
        claim('AlexNet, recomputation rarely chosen', recomputes_rarely(found['AlexNet']['PoocH'])),
    ]
    return PaperTable('pooch', '15', 'Each optimisation on x86, relative to swap-all without scheduling', tuple(rows), (
        'ResNet50: ' + RESNET50_NOTE, 'AlexNet: ' + UNCALIBRATED, RARELY_NOTE, TO_THE_LETTER, _ROOM), axis=NETWORK)


def over_swap_opt(figure: Reported, found: dict[str, Outcome], last: str) -> Row:
    """What recomputing is worth beside what is stated."""
    ours = gain(found[last], found['swap-opt'])
    return figure.beside(ours, out_of_memory=ours is None)


def figure_16(experiments: Experiments) -> PaperTable:
    """What each optimisation is worth on POWER9."""
    networks: dict[str, tuple[Setting, Size]] = {
        'ResNet50': (RESNET50['POWER9'], 256), 'GoogLeNet': (GOOGLENET['POWER9'], 384),
        'AlexNet': (ALEXNET['POWER9'], 2432)}
    found = runs_of(experiments, networks, 'PoocH')
    rows = [*gains(found, 'PoocH'), *orderings(found, 'PoocH'),
            claim('ResNet50, PoocH gains less over swap-opt than on x86', _gains_less(experiments, found['ResNet50']))]
    return PaperTable('pooch', '16', 'Each optimisation on POWER9, relative to swap-all without scheduling',
                      tuple(rows), ('ResNet50: ' + RESNET50_NOTE, 'GoogLeNet, AlexNet: ' + UNCALIBRATED,
                      GOOGLENET_NOTE, TO_THE_LETTER), axis=NETWORK)


def _gains_less(experiments: Experiments, found: dict[str, Outcome]) -> bool | None:
    here = gain(found['PoocH'], found['swap-opt'])
    x86 = RESNET50['x86']
    there = gain(x86.run(experiments, 256, POOCH), x86.run(experiments, 256, SWAP_OPT))
    return None if here is None or there is None else here < there


def text(experiments: Experiments) -> PaperTable:
    """Maps, bytes, layers and planning time."""
    batch = 512
    trace = experiments.trace('resnet50', batch)
    maps = [each for each in trace.maps if each.retained and each.nbytes >= MIN_BYTES]
    counts = Counter(reader(trace, each) for each in maps)
    planned = [setting.run(experiments, VIDEOS[-1], 'pooch') for setting in VIDEO.values()]
    rows = (
        reported.POOCH_MAPS.beside(len(maps)),
        *(figure.beside(counts[kind]) for kind, figure in reported.POOCH_INPUTS.items()),
        reported.POOCH_BYTES_PER_IMAGE.beside(sum(each.nbytes for each in maps) / batch / 1e6),
        reported.POOCH_LAYERS.beside(len(experiments.trace('resnext3d', VIDEOS[-1]).calls)),
        reported.POOCH_PLANNING.beside(max(each.planning_seconds for each in planned)),
    )
    return PaperTable('pooch', 'text', 'What the text says of the graphs', rows, (
        ('What each map is an input of, and the bytes of an image, are no statements of the paper: they check the '
         'graph against the 105 maps of its table 3.'),
        'Planning is measured on the machine that runs this: its figure differs from run to run.'))


def reader(trace: Trace, feature_map: FeatureMap) -> str:
    """The kind of function that a map is an input of; of several the first in the order above."""
    labels = [call.label for call in trace.calls if feature_map.id in call.inputs]
    return next((kind for name, kind in _READERS if any(name in label for label in labels)), 'others')
