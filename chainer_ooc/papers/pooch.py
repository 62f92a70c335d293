"""PoocH's evaluation: memory, what each optimisation is worth, speeds beside superneurons and in-core, the graphs.

Source: PoocH section 2.2 (figures 3 and 4), section 5.1 (figures 15 and 16), section 5.2 (figures 17 to 22, table 3).
Most figures were lost, with the heights of their bars: where only a range over several runs is stated, its ends are
held against the ends of ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from chainer_ooc.papers import reported
from chainer_ooc.papers.comparison import CLIP, NETWORK, PaperTable, Reported, Row, claim
from chainer_ooc.papers.experiments import MIN_BYTES, POOCH_CHAINER, Experiments, Outcome, Size
from chainer_ooc.papers.published import POOCH, SUPERNEURONS, SWAP_OPT
from chainer_ooc.papers.sweeps import (
    BASE,
    CALIBRATED,
    FASTER,
    MACHINES,
    OURS,
    TO_THE_LETTER,
    UNCALIBRATED,
    Measure,
    Setting,
    are_no_slower,
    below,
    fails,
    falls,
    fits,
    gain,
    gains,
    is_faster,
    measured,
    orderings,
    runs_of,
    speed,
    speeds_from,
    worst,
)
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
#: What is left of the figures' axes: no bar is much higher.
_AXIS = 'The last number on the axis of the lost figure is {}.'
#: Of the batches of ResNet50: those beyond the memory, and those of them that superneurons runs too.
_EXCEEDING, _SHARED = slice(1, None), slice(1, 4)
_MOVED = (
    'The plan for POWER9 at batch 640: the paper says that mallocs and frees come in another order, which "may cause '
    'GPU memory shortage". In the program that its authors published a malloc waits for all swap-outs before it fails, '
    'backward begins when all of them are over, and swap-ins are issued at fixed steps: then the order does not depend '
    'on the link, and a plan whose bytes fit one machine fits the other, more slowly.')
#: Functions by a part of their names; the first that reads a map tells what the map is an input of.
_READERS = (('BatchNormalization', 'batch normalisation'), ('MaxPooling', 'max pooling'),
            ('AveragePooling', 'average pooling'), ('Linear', 'the linear function'), ('Convolution', 'convolution'))
Runs = dict[str, list[Outcome]]


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


def voxels(outcome: Outcome) -> float | None:
    """Voxels per millisecond, of one clip; None where it does not run."""
    if isinstance(outcome.size, int) or not outcome.feasible or not outcome.seconds:
        return None
    height, width, frames = outcome.size
    return height * width * frames / (outcome.seconds * 1e3)


def three_ways(experiments: Experiments, setting: Setting, sizes: Sequence[Size], proposed: str = 'PoocH') -> Runs:
    """In-core, superneurons, PoocH to the letter and policy pooch over sizes."""
    return {
        'in-core': [setting.in_core(experiments, size) for size in sizes],
        'superneurons': [setting.run(experiments, size, SUPERNEURONS) for size in sizes],
        proposed: [setting.run(experiments, size, POOCH) for size in sizes],
        OURS: [setting.run(experiments, size, 'pooch') for size in sizes],
    }


def speed_rows(runs: Runs, unit: str = 'images/s', name: Callable[[Size], str] = 'batch {}'.format,
               measure: Measure = speed) -> list[Row]:
    """A row for each bar; their heights were lost."""
    return [measured(f'{name(each.size)}, {series}', each, unit, series, group, measure)
            for series, outcomes in runs.items() for each in outcomes
            for group in [name(each.size).removeprefix('batch ')]]


def held_to_a_bound(bound: Reported, runs: Runs, proposed: str = 'PoocH') -> tuple[Row, Row]:
    """What is lost at worst beside a bound on it, and that superneurons is no faster."""
    return (worst(bound, runs[proposed]),
            claim(f'{proposed} no slower than superneurons', are_no_slower(runs[proposed], runs['superneurons'])))


def figure_17(experiments: Experiments) -> PaperTable:
    """ResNet50 on x86, with the plan that was made for POWER9."""
    setting, moved_to = RESNET50['x86'], 'PoocH, planned for POWER9'
    runs = three_ways(experiments, setting, RESNET50_BATCHES)
    runs[moved_to] = [setting.run(experiments, batch, POOCH, MACHINES['POWER9']) for batch in RESNET50_BATCHES]
    pooch, superneurons, moved = runs['PoocH'], runs['superneurons'], runs[moved_to]
    in_core = runs['in-core'][0].in_core_images_per_second
    rows = [
        reported.POOCH_IN_CORE.beside(in_core, is_input=True),
        *speed_rows(runs),
        *speeds_from(reported.POOCH_SPEED, pooch, 'PoocH'),
        *reported.POOCH_X86_BELOW.ends_beside([below(each) for each in pooch[_EXCEEDING]]),
        *reported.POOCH_OVER_SUPERNEURONS.ends_beside(list(map(gain, pooch[_SHARED], superneurons[_SHARED]))),
        *_faster('PoocH faster than superneurons', pooch, superneurons),
        *_faster('PoocH faster than with the plan made for POWER9', pooch, moved),
        fits('batch 640, PoocH runs', pooch[-1]),
        fails('batch 640, superneurons runs out of memory', superneurons[-1]),
        fails('batch 640, the plan made for POWER9 runs out of memory', moved[-1]),
        claim('PoocH slows down as the batch grows', falls(pooch)),
        claim('superneurons slows down as the batch grows', falls(superneurons)),
    ]
    return PaperTable('pooch', '17', 'ResNet50 on x86', tuple(rows), (RESNET50_NOTE, TO_THE_LETTER, FASTER, _MOVED))


def _faster(what: str, pooch: Sequence[Outcome], others: Sequence[Outcome]) -> list[Row]:
    return [claim(f'batch {mine.size}, {what}', is_faster(mine, theirs))
            for mine, theirs in zip(pooch[_SHARED], others[_SHARED], strict=True)]


def figure_18(experiments: Experiments) -> PaperTable:
    """ResNet50 on POWER9."""
    runs = three_ways(experiments, RESNET50['POWER9'], RESNET50_BATCHES)
    rows = [
        *speed_rows(runs),
        *reported.POOCH_POWER9_BELOW.ends_beside([below(each) for each in runs['PoocH'][_EXCEEDING]]),
        claim('PoocH no slower than superneurons', are_no_slower(runs['PoocH'], runs['superneurons'])),
    ]
    return PaperTable('pooch', '18', 'ResNet50 on POWER9', tuple(rows), (
        RESNET50_NOTE, TO_THE_LETTER, FASTER,
        'The in-core throughput of figure 17 is used on POWER9 too: it is the same GPU.'))


def table_3(experiments: Experiments) -> PaperTable:
    """Verdicts of two policies on two machines."""
    verdicts = ('keep', 'swap', 'recompute')
    policies = {'PoocH': POOCH, 'superneurons': SUPERNEURONS}
    found = {(policy, machine): RESNET50[machine].run(experiments, 512, policies[policy])
             for policy, machine in reported.POOCH_VERDICTS}
    rows = [
        figure.beside(getattr(found[key], verdict) if found[key].feasible else None, series=', '.join(key),
                      group=verdict, out_of_memory=not found[key].feasible)
        for key, figures in reported.POOCH_VERDICTS.items() for figure, verdict in zip(figures, verdicts, strict=True)]
    rows += [Row(f'{machine}, {OURS}, {verdict}', None, getattr(ours, verdict), 'maps', series=f'{OURS}, {machine}',
                 group=verdict)
             for machine, setting in RESNET50.items() for ours in [setting.run(experiments, 512, 'pooch')]
             for verdict in verdicts]
    theirs = [tuple(getattr(found['superneurons', machine], verdict) for verdict in verdicts) for machine in MACHINES]
    rows += [
        claim('PoocH recomputes more maps on x86 than on POWER9',
              found['PoocH', 'x86'].recompute > found['PoocH', 'POWER9'].recompute),
        claim('superneurons decides alike on both machines', theirs[0] == theirs[1]),
    ]
    return PaperTable('pooch', 'table 3', 'Maps kept, swapped and recomputed, ResNet50, batch 512', tuple(rows),
                      (RESNET50_NOTE, TO_THE_LETTER), axis='verdict')


def alexnet(experiments: Experiments, machine: str, figure: str) -> PaperTable:
    """AlexNet on a machine: figures 19 and 20."""
    runs = three_ways(experiments, ALEXNET[machine], ALEXNET_BATCHES)
    rows = (
        *speed_rows(runs),
        *held_to_a_bound(reported.POOCH_ALEXNET_BELOW[machine], runs),
        claim('recomputation rarely chosen', all(map(recomputes_rarely, runs['PoocH']))),
    )
    return PaperTable('pooch', figure, f'AlexNet on {machine}', rows, (
        UNCALIBRATED, RARELY_NOTE, _AXIS.format('1600 images/s')))


def videos(experiments: Experiments, machine: str, figure: str) -> PaperTable:
    """The 3D network on a machine: figures 21 and 22."""
    runs = three_ways(experiments, VIDEO[machine], VIDEOS)
    rows = (
        *speed_rows(runs, 'voxels/ms', lambda size: str(size) if isinstance(size, int) else video_name(size), voxels),
        *held_to_a_bound(reported.POOCH_VIDEO_BELOW[machine], runs),
    )
    return PaperTable('pooch', figure, f'ResNeXt101 (3D) on {machine}, batch 1', rows, (
        UNCALIBRATED, _AXIS.format('2000 voxels/ms')), axis=CLIP)


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
