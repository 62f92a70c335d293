"""PoocH beside superneurons and in-core: three networks on two machines.

Source: PoocH section 5.2 (figures 17 to 22, table 3). The bars' heights were lost; the text states ranges and bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chainer_ooc.papers import reported
from chainer_ooc.papers.comparison import CLIP, PaperTable, Reported, Row, claim
from chainer_ooc.papers.experiments import Experiments, Outcome, Size
from chainer_ooc.papers.pooch import (
    ALEXNET,
    ALEXNET_BATCHES,
    RARELY_NOTE,
    RESNET50,
    RESNET50_BATCHES,
    RESNET50_NOTE,
    VIDEO,
    VIDEOS,
    recomputes_rarely,
    video_name,
)
from chainer_ooc.papers.published import POOCH, SUPERNEURONS
from chainer_ooc.papers.sweeps import (
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
    is_faster,
    measured,
    speed,
    speeds_from,
    worst,
)

#: What is left of the figures' axes: no bar is much higher.
_AXIS = 'The last number on the axis of the lost figure is {}.'
#: Of the batches of ResNet50: those beyond the memory, and those of them that superneurons runs too.
_EXCEEDING, _SHARED = slice(1, None), slice(1, 4)
Runs = dict[str, list[Outcome]]
_MOVED = (
    'The plan for POWER9 at batch 640: the paper says that mallocs and frees come in another order, which "may cause '
    'GPU memory shortage". In the program that its authors published a malloc waits for all swap-outs before it fails, '
    'backward begins when all of them are over, and swap-ins are issued at fixed steps: then the order does not depend '
    'on the link, and a plan whose bytes fit one machine fits the other, more slowly.')


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


def figure_19(experiments: Experiments) -> PaperTable:
    """AlexNet on x86."""
    return _alexnet(experiments, 'x86', '19')


def figure_20(experiments: Experiments) -> PaperTable:
    """AlexNet on POWER9."""
    return _alexnet(experiments, 'POWER9', '20')


def _alexnet(experiments: Experiments, machine: str, figure: str) -> PaperTable:
    runs = three_ways(experiments, ALEXNET[machine], ALEXNET_BATCHES)
    rows = (
        *speed_rows(runs),
        *held_to_a_bound(reported.POOCH_ALEXNET_BELOW[machine], runs),
        claim('recomputation rarely chosen', all(map(recomputes_rarely, runs['PoocH']))),
    )
    return PaperTable('pooch', figure, f'AlexNet on {machine}', rows, (
        UNCALIBRATED, RARELY_NOTE, _AXIS.format('1600 images/s')))


def figure_21(experiments: Experiments) -> PaperTable:
    """The 3D network on x86."""
    return _videos(experiments, 'x86', '21')


def figure_22(experiments: Experiments) -> PaperTable:
    """The 3D network on POWER9."""
    return _videos(experiments, 'POWER9', '22')


def _videos(experiments: Experiments, machine: str, figure: str) -> PaperTable:
    runs = three_ways(experiments, VIDEO[machine], VIDEOS)
    rows = (
        *speed_rows(runs, 'voxels/ms', lambda size: str(size) if isinstance(size, int) else video_name(size), voxels),
        *held_to_a_bound(reported.POOCH_VIDEO_BELOW[machine], runs),
    )
    return PaperTable('pooch', figure, f'ResNeXt101 (3D) on {machine}, batch 1', rows, (
        UNCALIBRATED, _AXIS.format('2000 voxels/ms')), axis=CLIP)
