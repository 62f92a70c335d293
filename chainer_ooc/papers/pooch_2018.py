"""PoocH-2018's evaluation: the same method, one machine, and GoogLeNet.

Source: PoocH-2018 section 5 (figures 14 to 17). Its figures are lost with their axes: where a batch size is not in the
text, a table's notes say which were taken.
"""

from __future__ import annotations

from functools import partial

from chainer_ooc.papers import reported
from chainer_ooc.papers.comparison import NETWORK, PaperTable, Reported, Row, claim
from chainer_ooc.papers.experiments import POOCH_CHAINER, Experiments, Outcome, Size
from chainer_ooc.papers.pooch import (
    ALEXNET_BATCHES,
    GOOGLENET_NOTE,
    RESNET50_BATCHES,
    held_to_a_bound,
    over_swap_opt,
    speed_rows,
    three_ways,
)
from chainer_ooc.papers.sweeps import (
    BASE,
    CALIBRATED,
    FASTER,
    MACHINES,
    TO_THE_LETTER,
    UNCALIBRATED,
    Setting,
    are_no_slower,
    below,
    fails,
    falls,
    gain,
    gains,
    orderings,
    runs_of,
    speeds_from,
)

PROPOSED = 'proposed'
GOOGLENET_BATCHES = (256, 384, 512, 640, 768, 896)
_IN_CORE = reported.POOCH_2018_IN_CORE.low
_setting = partial(Setting, framework=POOCH_CHAINER)
RESNET50 = _setting('resnet50', MACHINES['x86'], _IN_CORE)
GOOGLENET = _setting('googlenet_bn', MACHINES['x86'])
ALEXNET = _setting('alexnet', MACHINES['x86'])
_RESNET50_NOTE = CALIBRATED.format(_IN_CORE)
_BATCHES = ('The axis was lost with the figure: the batch sizes are those of the scripts that the authors published '
            '(github.com/yukiito2/chainer, branch 3.0.0rc1-pooch, examples/imagenet).')


def figure_14(experiments: Experiments) -> PaperTable:
    """What each optimisation is worth."""
    networks: dict[str, tuple[Setting, Size]] = {
        'ResNet50': (RESNET50, 640), 'GoogLeNet': (GOOGLENET, 896), 'AlexNet': (ALEXNET, 2688)}
    found = runs_of(experiments, networks, PROPOSED)
    rows = (
        *gains(found, PROPOSED),
        *reported.POOCH_2018_SWAP_ALL.ends_beside([gain(each['swap-all'], each[BASE]) for each in found.values()]),
        *reported.POOCH_2018_SWAP_OPT.ends_beside(
            [gain(each['swap-opt'], each['swap-all']) for each in found.values()]),
        *(over_swap_opt(figure, found[network], PROPOSED) for network, figure in reported.POOCH_2018_GAIN.items()),
        *orderings(found, PROPOSED),
    )
    return PaperTable('pooch-2018', '14', 'Each optimisation, relative to swap-all without scheduling', rows, (
        'ResNet50: ' + _RESNET50_NOTE, 'GoogLeNet, AlexNet: ' + UNCALIBRATED, GOOGLENET_NOTE, TO_THE_LETTER,
        ('At batch 640 the copies of what swap-opt cannot keep decide alone, so that it gains little, and '
         'recomputation gains what the paper gains only in part: see figure 15.')), axis=NETWORK)


def figure_15(experiments: Experiments) -> PaperTable:
    """ResNet50."""
    runs = three_ways(experiments, RESNET50, RESNET50_BATCHES, PROPOSED)
    ours, theirs, in_core = runs[PROPOSED], runs['superneurons'], runs['in-core']
    peak_bytes = in_core[-1].peak_bytes
    rows = (
        reported.POOCH_2018_IN_CORE.beside(in_core[0].in_core_images_per_second, is_input=True),
        *speed_rows(runs),
        *speeds_from(reported.POOCH_2018_SPEED, ours, PROPOSED),
        *reported.POOCH_2018_BELOW.ends_beside([below(each) for each in ours[1:]]),
        *reported.POOCH_2018_OVER_SUPERNEURONS.ends_beside(_gains(ours[1:], theirs[1:])),
        reported.POOCH_2018_MEMORY.beside(None if peak_bytes is None else peak_bytes / 1e9),
        fails('batch 256, in-core runs out of memory', in_core[1]),
        claim('proposed slows down as the batch grows', falls(ours)),
        claim('superneurons slows down as the batch grows', falls(theirs)),
    )
    return PaperTable('pooch-2018', '15', 'ResNet50', rows, (
        _RESNET50_NOTE, _BATCHES, TO_THE_LETTER, FASTER))


def _gains(ours: list[Outcome], theirs: list[Outcome]) -> list[float | None]:
    """Quotients at the sizes that superneurons runs: at others the paper can have none."""
    return [gain(mine, other) for mine, other in zip(ours, theirs, strict=True) if other.feasible]


def figure_16(experiments: Experiments) -> PaperTable:
    """GoogLeNet."""
    runs = three_ways(experiments, GOOGLENET, GOOGLENET_BATCHES, PROPOSED)
    exceeding = [place for place, each in enumerate(runs['in-core']) if not each.feasible]
    ours, theirs = ([runs[name][place] for place in exceeding] for name in (PROPOSED, 'superneurons'))
    rows = (
        *speed_rows(runs),
        *reported.POOCH_2018_GOOGLENET_BELOW.ends_beside([below(each) for each in ours]),
        _best(reported.POOCH_2018_GOOGLENET_OVER, _gains(ours, theirs)),
        claim('proposed no slower than superneurons', are_no_slower(ours, theirs)),
    )
    return PaperTable('pooch-2018', '16', 'GoogLeNet', rows, (
        UNCALIBRATED, TO_THE_LETTER, FASTER,
        GOOGLENET_NOTE, _BATCHES, 'Ranges are held against the sizes that exceed the memory.'))


def _best(figure: Reported, found: list[float | None]) -> Row:
    told = [each for each in found if each is not None]
    return figure.beside(max(told) if told else None, out_of_memory=not told)


def figure_17(experiments: Experiments) -> PaperTable:
    """AlexNet."""
    runs = three_ways(experiments, ALEXNET, ALEXNET_BATCHES, PROPOSED)
    rows = (*speed_rows(runs), *held_to_a_bound(reported.POOCH_2018_ALEXNET_BELOW, runs, PROPOSED))
    return PaperTable('pooch-2018', '17', 'AlexNet', rows, (UNCALIBRATED, _BATCHES, TO_THE_LETTER))
