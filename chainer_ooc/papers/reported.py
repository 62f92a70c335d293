"""What the papers state, and nothing of ours.

Each figure stands once, with its place. Ratios are quotients of speeds ("+14 %" is 1.14), shares below in-core are 1 -
speed / in-core speed. MB and GB are as the papers write them. Most figures of the papers exist as images only; what is
here is what their texts and tables say.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from chainer_ooc.papers.comparison import Reported


def _exactly(paper: str, place: str, what: str, value: float, unit: str) -> Reported:
    return Reported(paper, place, what, value, value, unit)


def _speeds(what: str, values: Mapping[int, float]) -> dict[int, Reported]:
    """Images per second by batch size, of Window+VA's table."""
    return {batch: _exactly('window-va', 'table 1', what.format(batch), value, 'images/s')
            for batch, value in values.items()}


# PoocH: Ito et al. 2019. x86 has PCIe gen3, POWER9 has NVLink 2.0; both a V100 with 16 GB.
_range, _one = partial(Reported, 'pooch'), partial(_exactly, 'pooch')

POOCH_MEMORY = _range('section 2.2, figure 3', 'ResNet50, batch 640, memory', 50, None, 'GB')
POOCH_VIDEO_MEMORY = _one('section 2.2, figure 4', 'ResNeXt101 (3D), largest input, memory', 58, 'GB')
POOCH_TOO_LARGE = _one('section 5.2', 'ResNet50, smallest batch that fails in-core', 256, 'images')
POOCH_SWAP_ALL = _range('section 5.1, figure 15', 'swap-all over swap-all without scheduling', 1.02, 1.14, 'x')
POOCH_SWAP_OPT = _range('section 5.1, figure 15', 'swap-opt over swap-all', 1.4, 3.0, 'x')
POOCH_RESNET50_GAIN = _one('section 5.1, figure 15', 'ResNet50, PoocH over swap-opt', 1.45, 'x')
# In words only: the difference is small.
POOCH_ALEXNET_GAIN = _one('section 5.1, figure 15', 'AlexNet, PoocH over swap-opt', 1.0, 'x')
POOCH_IN_CORE = _one('section 5.2, figure 17', 'x86, ResNet50, in-core', 316, 'images/s')
# The upper end is in-core, so that of batch 128: from 256 on at least 13 % are lost.
POOCH_SPEED = _range('section 5.2, figure 17', 'x86, ResNet50, batch 128 to 640, PoocH', 195, 316, 'images/s')
POOCH_X86_BELOW = _range('section 5.2, figure 17', 'x86, ResNet50, batch 256 to 640, PoocH below in-core', 0.13, 0.38,
                         'share')
POOCH_OVER_SUPERNEURONS = _range('section 5.2, figure 17', 'x86, ResNet50, batch 256 to 512, PoocH over superneurons',
                                 1.40, 1.73, 'x')
POOCH_POWER9_BELOW = _range('section 5.2, figure 18', 'POWER9, ResNet50, batch 256 to 640, PoocH below in-core', 0.02,
                            0.28, 'share')
#: Maps of ResNet50 at batch 512, by policy and machine: keep, swap, recompute.
POOCH_VERDICTS = {
    (policy, machine): tuple(_one('table 3', f'{machine}, {policy}, {verdict}', count, 'maps')
                             for verdict, count in zip(('keep', 'swap', 'recompute'), counts, strict=True))
    for policy, machine, counts in (
        ('PoocH', 'x86', (66, 12, 27)), ('superneurons', 'x86', (66, 21, 18)),
        ('PoocH', 'POWER9', (66, 36, 3)), ('superneurons', 'POWER9', (66, 21, 18)))}
POOCH_ALEXNET_BELOW = {
    machine: _range(f'section 5.2, figure {figure}', f'{machine}, AlexNet, PoocH below in-core at worst', None, 0.061,
                    'share')
    for machine, figure in (('x86', 19), ('POWER9', 20))}
POOCH_VIDEO_BELOW = {
    machine: _range(f'section 5.2, figure {figure}', f'{machine}, ResNeXt101 (3D), PoocH below in-core at worst', None,
                    0.10, 'share')
    for machine, figure in (('x86', 21), ('POWER9', 22))}
# "About 2 minutes", taken as a bound: to plan faster is no deviation.
POOCH_PLANNING = _range('section 5.2', 'ResNeXt101 (3D), planning', None, 120, 's')
POOCH_LAYERS = _range('section 5.2', 'ResNeXt101 (3D), layers', 300, None, 'calls')
# The sum of each row.
POOCH_MAPS = _one('table 3', 'ResNet50, maps that are classified', 105, 'maps')
# The next two are no statement of the paper: they check the graph, from the structure of ResNet50 as Chainer runs it.
POOCH_BYTES_PER_IMAGE = _one('check of the graph', 'ResNet50, retained for an image', 80.1, 'MB')
POOCH_INPUTS = {
    kind: _one('check of the graph', f'ResNet50, inputs of {kind}', count, 'maps')
    for kind, count in (('batch normalisation', 53), ('convolution', 49), ('max pooling', 1), ('average pooling', 1),
                        ('the linear function', 1))}

# PoocH-2018: its predecessor, on the x86 machine.
_range, _one = partial(Reported, 'pooch-2018'), partial(_exactly, 'pooch-2018')

POOCH_2018_SWAP_ALL = _range('section 5.1, figure 14', 'swap-all over swap-all without scheduling', 1.11, 1.16, 'x')
POOCH_2018_SWAP_OPT = _range('section 5.1, figure 14', 'swap-opt over swap-all', 1.8, 2.7, 'x')
POOCH_2018_GAIN = {
    network: _one('section 5.1, figure 14', f'{network}, proposed over swap-opt', gain, 'x')
    for network, gain in (('ResNet50', 1.47), ('AlexNet', 1.01))}
POOCH_2018_IN_CORE = _one('section 5.2, figure 15', 'ResNet50, in-core', 316, 'images/s')
POOCH_2018_SPEED = _range('section 5.2, figure 15', 'ResNet50, proposed', 207, 316, 'images/s')
POOCH_2018_BELOW = _range('section 5.2, figure 15', 'ResNet50, proposed below in-core', 0.16, 0.34, 'share')
POOCH_2018_OVER_SUPERNEURONS = _range('section 5.2, figure 15', 'ResNet50, proposed over superneurons', 1.33, 1.84, 'x')
POOCH_2018_MEMORY = _range('section 5.2', 'ResNet50, batch 640, memory', 50, None, 'GB')
POOCH_2018_GOOGLENET_BELOW = _range('section 5.2, figure 16', 'GoogLeNet, proposed below in-core', 0.02, 0.39, 'share')
POOCH_2018_GOOGLENET_OVER = _one('section 5.2, figure 16', 'GoogLeNet, proposed over superneurons at best', 1.33, 'x')
POOCH_2018_ALEXNET_BELOW = _range('section 5.2, figure 17', 'AlexNet, proposed below in-core at worst', None, 0.05,
                                  'share')

# Window+VA: ResNet-50, images/s by batch size; a batch that is missing did not fit.
_range, _one = partial(Reported, 'window-va'), partial(_exactly, 'window-va')

WINDOW_BATCHES = (64, 128, 190, 256, 512, 928, 1120, 1248, 1440)
WINDOW_IN_CORE = _speeds('batch {}, in-core (V100)', {64: 336, 128: 492, 190: 581})
WINDOW_SCHEDULING = _speeds('batch {}, scheduling', {64: 320, 128: 439, 190: 533, 256: 559, 512: 457, 928: 400})
WINDOW_VIRTUAL = _speeds('batch {}, scheduling + VA', {
    64: 304, 128: 389, 190: 415, 256: 424, 512: 446, 928: 409, 1120: 398, 1248: 347, 1440: 321})
WINDOW_P100_IN_CORE = _speeds('batch {}, in-core (P100)', {64: 235, 128: 255, 190: 258})
WINDOW_LMS = _speeds('batch {}, LMS (P100)', {64: 235, 128: 255, 190: 241, 256: 236, 512: 209, 928: 137})
WINDOW_KEPT = {
    (series, batch): _one('abstract and section 5.1', f'batch {batch}, {series}, of in-core speed', share, 'share')
    for series, batch, share in (('scheduling', 928, 0.68), ('scheduling + VA', 1440, 0.55), ('LMS (P100)', 928, 0.53))}
WINDOW_LARGER = _one('section 1', 'largest batch with VA over the largest of LMS', 1.55, 'x')
WINDOW_BEYOND = _one('abstract', 'largest batch with VA over the largest in-core', 7.5, 'x')
WINDOW_BUDGET = _one('section 5.1, figure 3a', 'batch 928, budget that scheduling alone could be given', 8, 'GB')
# Almost 16 GB.
WINDOW_CAPACITY = _one('section 5.1, figure 3a', 'batch 928, memory that it took', 16, 'GB')
# MB in the paper; CUDA knows multiples of 2 MiB.
WINDOW_CHUNK = _one('section 4', 'physical chunk', 40, 'MiB')
WINDOW_SMALLEST_CHUNK = _one('section 4', 'smallest physical chunk of the device', 2, 'MiB')

# SuperNeurons: K40c with 12 GB. A MB is 2^20 bytes there.
_range, _one = partial(Reported, 'superneurons'), partial(_exactly, 'superneurons')

SUPERNEURONS_PEAKS = {
    way: _one('section 4.1.1, figure 10', f'AlexNet, peak, {way}', peak, 'MB')
    for way, peak in (('one allocation each', 2189.437), ('liveness analysis', 1489.355),
                      ('offloading', 1132.155), ('recomputation', 886))}
SUPERNEURONS_TENSORS = {
    way: _one('section 4.1.1', f'AlexNet, tensors, {way}', count, 'tensors')
    for way, count in (('one allocation each', 36), ('liveness analysis', 17), ('offloading', 9))}
SUPERNEURONS_TO_POOL5 = _one('section 4.1.1', 'AlexNet, forward tensors up to pool5', 1409.277, 'MB')
SUPERNEURONS_AT_POOL5 = _one('section 4.1.1', 'AlexNet, tensors of the backward of pool5', 80.078, 'MB')
SUPERNEURONS_CONVOLUTIONS = {
    number: _one('section 4.1.1', f'AlexNet, output of conv{number}', nbytes, 'MB')
    for number, nbytes in enumerate((221.56, 142.38, 49.51, 49.51), start=1)}
#: Extra recomputations, and the peak: speed-centric, memory-centric, cost-aware.
SUPERNEURONS_RECOMPUTATIONS = {
    (network, strategy): (_one('table 1', f'{network}, {strategy}, recomputations', count, 'calls'),
                          _one('table 1', f'{network}, {strategy}, peak', peak, 'MB'))
    for network, row in (('AlexNet', ((14, 993.018), (23, 886.23), (17, 886.23))),
                         ('ResNet50', ((84, 455.125), (118, 401), (85, 401))),
                         ('ResNet101', ((169, 455.125), (237, 401), (170, 401))))
    for strategy, (count, peak) in zip(('speed-centric', 'memory-centric', 'cost-aware'), row, strict=True)}
#: By batch size of AlexNet: without the tensor cache, with it.
SUPERNEURONS_TRAFFIC = {
    batch: (_one('table 3', f'AlexNet, batch {batch}, traffic without tensor cache', without, 'GB'),
            _one('table 3', f'AlexNet, batch {batch}, traffic with tensor cache', cached, 'GB'))
    for batch, without, cached in ((256, 2.56, 0), (384, 3.72, 0), (512, 4.88, 0), (640, 6.03, 0), (896, 8.35, 0),
                                   (1024, 9.50, 0.88))}
SUPERNEURONS_POOL = {
    network: _one('table 2', f'{network}, pool over cudaMalloc', gain, 'x')
    for network, gain in (('AlexNet', 1.12), ('VGG16', 1.19), ('InceptionV4', 1.48), ('ResNet50', 1.53),
                          ('ResNet101', 1.68), ('ResNet152', 1.77))}
SUPERNEURONS_PEAK_BATCHES = {
    network: _one('table 5', f'{network}, peak batch', batch, 'images')
    for network, batch in (('AlexNet', 1792), ('VGG16', 224), ('InceptionV4', 240), ('ResNet50', 384),
                           ('ResNet101', 256), ('ResNet152', 176))}
# At batch 16, which the text at hand does not say.
SUPERNEURONS_DEPTH = _one('table 4', 'deepest ResNet', 1920, 'layers')
SUPERNEURONS_UNITS = _one('section 4.2', 'residual units at batch 1', 2500, 'units')

# OOC-Paleo: V100 with 16 GB on PCIe gen3. The rest of what it says are claims without a number.
# "About 35 %".
PALEO_PREFETCHING = _exactly('ooc-paleo', 'section 4.3', 'Unified Memory with prefetching over without', 1.35, 'x')
