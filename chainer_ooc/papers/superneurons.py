"""SuperNeurons' tables: what follows from the layers alone, and what does not.

Memory peaks and counts of recomputations follow exactly. The largest batches and depths are what the layers' peak
leaves room for beside the parameters, with nothing else in memory. Speeds need the authors' GPU and are shown as they
are stated.

No figure here needs a trace, so that the experiments that every table is given goes unused.

Source: SuperNeurons, section 4, for a K40c with 12 GB.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from chainer_ooc.papers import reported
from chainer_ooc.papers.comparison import PaperTable, Row, claim
from chainer_ooc.papers.layer_memory import (
    MemoryHistory,
    cost_aware,
    liveness,
    memory_centric,
    offloading,
    speed_centric,
)
from chainer_ooc.papers.layer_networks import RESIDUAL_UNITS, alexnet, inception_v4, resnet, vgg16
from chainer_ooc.papers.layers import CHECKPOINTS, MEGABYTE, NUMBER_BYTES, Network, Tensor, nbytes

#: The batch that the sizes of AlexNet's tensors imply: 221.56 MB are 200 outputs of conv1.
ALEXNET_BATCH = 200
#: The paper does not say table 1's; figure 2 has this one, and ResNet's 455.125 MB are six of its tensors to the digit.
RESNET_BATCH = 32
#: A K40c's memory.
NEAR_BYTES = 12 * 2 ** 30
#: A parameter, its gradient and its momentum.
PARAMETER_COPIES = 3
#: Units of the stages of a deep ResNet, whose third has the rest, as in the public release's deep examples.
_DEEP = (6, 32, 6)

_STRATEGIES: dict[str, Callable[[Network], MemoryHistory]] = {
    'speed-centric': speed_centric, 'memory-centric': memory_centric, 'cost-aware': cost_aware}
_NETWORKS: dict[str, Callable[[], Network]] = {
    'AlexNet': alexnet, 'VGG16': vgg16, 'InceptionV4': inception_v4,
    **{f'ResNet{depth}': partial(resnet, *units) for depth, units in RESIDUAL_UNITS.items()}}


def peaks(experiments: object) -> PaperTable:
    """Section 4.1.1 and figure 10: AlexNet's peak, one technique after the other."""
    network = alexnet()
    schedules = {'liveness analysis': liveness(network), 'offloading': offloading(network),
               'recomputation': cost_aware(network)}
    found = {'one allocation each': (sum(each.numbers for each in network.tensors), len(network.tensors)),
             **{way: (schedule.peak.numbers, schedule.peak.tensors) for way, schedule in schedules.items()}}
    rows = [reported.SUPERNEURONS_PEAKS[way].beside(_megabytes(numbers, ALEXNET_BATCH), series='peak', group=way)
            for way, (numbers, _) in found.items()]
    rows += [reported.SUPERNEURONS_TENSORS[way].beside(found[way][1]) for way in reported.SUPERNEURONS_TENSORS]
    rows += [claim(f'AlexNet, peak, {way}: at the {place}', schedules[way].peak.name == place)
             for way, place in (('liveness analysis', 'backward of pool5'), ('offloading', 'backward of pool2'),
                                ('recomputation', 'backward of lrn1'))]
    largest = network.layers[network.largest_layer].name
    rows.append(claim('AlexNet, largest layer: lrn1', largest == 'lrn1'))
    return PaperTable('superneurons', '10', 'AlexNet, memory at the peak', (*rows, *_parts(network)), (
        f'Batch {ALEXNET_BATCH}, images of 227 x 227, single precision; a MB is 2^20 bytes.',
        ('The 36 tensors are the 23 outputs and 13 gradients: activations and normalisation write theirs in place, the '
         'output of softmax is its own, and conv1 has one for the images. By kind of layer no other choice of 36 '
         'tensors gives the sum within 0.1 %, and no other 13 of the 23 possible gradients give its last digit.'),
        'Offloading: the paper\'s figure is the one before less 357.2 MB, which is rounded.'),
        axis='technique')


def recomputations(experiments: object) -> PaperTable:
    """Table 1: layers that run forward again, and the peak with them."""
    rows: list[Row] = []
    for name, batch in (('AlexNet', ALEXNET_BATCH), ('ResNet50', RESNET_BATCH), ('ResNet101', RESNET_BATCH)):
        network = _NETWORKS[name]()
        for strategy, walk in _STRATEGIES.items():
            schedule = walk(network)
            count, peak = reported.SUPERNEURONS_RECOMPUTATIONS[name, strategy]
            rows += [count.beside(schedule.recomputations, series=strategy, group=name),
                     peak.beside(_megabytes(schedule.peak.numbers, batch))]
    return PaperTable('superneurons', 'table 1', 'Recomputations and the peak with them', tuple(rows), (
        (f'AlexNet: batch {ALEXNET_BATCH}. ResNet: the paper states no batch; {RESNET_BATCH} is that of its figure 2. '
         'With it, and images of 227 x 227 as in the public release, 455.125 MB are exactly the outputs of conv1, bn1, '
         'relu1 and pool1 and two gradients.'),
        ('A segment of cheap layers begins at a convolution, a linear layer, a fork or a join. A layer runs again only '
         'if a backward step needs its output. ResNet50, speed-centric: bn relu pool at the beginning (3), twice bn '
         'relu in each of 16 units (64), the activation after each join but the last (15), and that with the pooling '
         'after it (2). No step needs what normalisation makes before a join or on a shortcut.'),
        ('ResNet\'s 401 MB: ours are conv1, bn1, relu1 and a gradient, as much as the largest layer. 401 MB exactly is '
         'no sum of outputs and gradients for this batch: it was rounded or means something else.')),
        axis='network')


def pool(experiments: object) -> PaperTable:
    """Table 2: what a pool saves over the driver's allocations."""
    note = 'needs a GPU: the time of cudaMalloc and cudaFree'
    rows = tuple(each.beside(None, note=note, group=name) for name, each in reported.SUPERNEURONS_POOL.items())
    return PaperTable('superneurons', 'table 2', 'A pool instead of cudaMalloc', rows, (
        'Not reproduced: how long the driver takes to allocate is no data-sheet number.',))


def traffic(experiments: object) -> PaperTable:
    """Table 3: bytes over the link, without the tensor cache and with it."""
    network = alexnet()
    left = sum(each.numbers for each in _outputs_of(network, frozenset({'conv'})))
    live = liveness(network).peak.numbers
    rows: list[Row] = []
    for batch, (without, cached) in reported.SUPERNEURONS_TRAFFIC.items():
        missing = max(0, live * batch * NUMBER_BYTES + _parameter_bytes(network) - NEAR_BYTES)
        group = str(batch)
        rows += [without.beside(2 * left * batch * NUMBER_BYTES / 1e9, group=group, series='without tensor cache'),
                 cached.beside(2 * missing / 1e9, group=group, series='tensor cache')]
    return PaperTable('superneurons', 'table 3', 'AlexNet, traffic of an iteration', tuple(rows), _traffic_notes(
        network, left, live, max(reported.SUPERNEURONS_TRAFFIC)))


def _traffic_notes(network: Network, left: int, live: int, batch: int) -> tuple[str, ...]:
    def gibibytes(numbers: int) -> str:
        return f'{(numbers * batch * NUMBER_BYTES + _parameter_bytes(network)) / 2 ** 30:.1f} GiB'

    return (
        (f'Without a cache: the outputs of convolutions go and come back, as section 3.3.1 says: {left:,} numbers an '
         f'image, {2 * left * NUMBER_BYTES / 1e6:.2f} MB both ways. The paper\'s figures grow by 9.03 to 9.04 MB an '
         'image from 0.245 to 0.253 GB at batch 0, which is one copy of the parameters '
         f'({network.weights * NUMBER_BYTES / 1e9:.4f} GB). What else travels the text does not say; several sums of '
         'tensors come as close to 9.04 MB, so that none was chosen.'),
        (f'With it: what exceeds 12 GiB under liveness analysis with {PARAMETER_COPIES} copies of the parameters, out '
         f'and back. At batch {batch} that is {gibibytes(live)}, with one allocation each '
         f'{gibibytes(sum(each.numbers for each in network.tensors))}: the layers alone fit either way. The paper\'s '
         '0.88 GB must be due to what is not counted here, such as the workspaces of convolutions and the images.'))


def peak_batches(experiments: object) -> PaperTable:
    """Table 5: the largest batch on a K40c."""
    rows: list[Row] = []
    far: list[str] = []
    for name, each in reported.SUPERNEURONS_PEAK_BATCHES.items():
        network = _NETWORKS[name]()
        rows.append(each.beside(largest_batch(network), group=name, note='as far as the layers go, see below'))
        left = nbytes(_outputs_of(network, CHECKPOINTS), int(each.low or 0))
        far.append(f'{name} {left / 2 ** 30:.1f}')
    alex = alexnet()
    offloaded = (NEAR_BYTES - _parameter_bytes(alex)) // (offloading(alex).peak.numbers * NUMBER_BYTES)
    return PaperTable('superneurons', 'table 5', 'Largest batch on 12 GB', tuple(rows), (
        (f'Ours: the cost-aware peak and {PARAMETER_COPIES} copies of the parameters (with gradient and momentum) in '
         '12 GiB. Workspaces, the images, the CUDA context and fragmentation are not counted.'),
        ('This bound depends on the largest layer, which all three residual networks share, while the paper\'s '
         'batches fall with depth: something else ends them. The outputs of checkpoints, which have to leave for the '
         f'host, take in GiB at the stated batch: {", ".join(far)}. For the residual networks and Inception v4 these '
         'are nearly equal: the likely end is the memory of the host, of which the paper says nothing.'),
        (f'AlexNet: without recomputation ours is {offloaded}. The rest is not explained by the layers; the paper '
         'gives convolutions workspaces.'),
        ('VGG16: of the four tensors at its peak one is the output of conv1, from which relu1 is made again. To drop '
         'it and to fetch it once more, which ours does not, gives room for more than the paper\'s batch.')))


def depths(experiments: object) -> PaperTable:
    """Table 4 and section 4.2: the deepest residual networks on a K40c."""
    at_16, at_1 = deepest(16), deepest(1)
    units = (int(reported.SUPERNEURONS_DEPTH.low or 0) - 2) // 3 - sum(_DEEP)
    far = nbytes(_outputs_of(resnet(*_deep(units)), CHECKPOINTS), 16) / 2 ** 30
    rows = (reported.SUPERNEURONS_DEPTH.beside(_depth(at_16), group='16', note='as far as the layers go, see below'),
            reported.SUPERNEURONS_UNITS.beside(sum(_deep(at_1)), group='1', note='layers are meant, see below'),
            Row('ResNet at batch 1, layers', None, _depth(at_1), 'layers', group='1'))
    return PaperTable('superneurons', 'table 4', 'Deepest residual network on 12 GB', rows, (
        ('Depth is 3 (n1 + n2 + n3 + n4) + 2 with n1 = 6, n2 = 32, n4 = 6, as in the deep examples of the public '
         f'release. Ours: the cost-aware peak and {PARAMETER_COPIES} copies of the parameters in 12 GiB.'),
        (f'At the stated depth and batch 16 the outputs of checkpoints take {far:.1f} GiB, about as much as those of '
         'the residual networks of table 5 at their largest batches: the host\'s memory is the likely end here too.'),
        ('The deepest example of the release has 6 + 32 + 788 + 6 = 832 units, which are 2498 layers: the text\'s '
         '"2500 residual units" are layers by all appearance, to be compared with the last row.')))


def largest_batch(network: Network) -> int:
    """The largest batch whose cost-aware peak fits a K40c beside the parameters."""
    return (NEAR_BYTES - _parameter_bytes(network)) // (cost_aware(network).peak.numbers * NUMBER_BYTES)


def deepest(batch: int) -> int:
    """Units in the third stage of the deepest residual network that fits a K40c."""
    shallow, deeper = resnet(*_deep(1)), resnet(*_deep(2))
    peak_bytes = cost_aware(shallow).peak.numbers * batch * NUMBER_BYTES  # of the stem, at any depth
    spare = NEAR_BYTES - peak_bytes - _parameter_bytes(shallow)
    return 1 + spare // (_parameter_bytes(deeper) - _parameter_bytes(shallow))


def _deep(units: int) -> tuple[int, int, int, int]:
    first, second, last = _DEEP
    return first, second, units, last


def _depth(units: int) -> int:
    return 3 * sum(_deep(units)) + 2


def _parameter_bytes(network: Network) -> int:
    return PARAMETER_COPIES * network.weights * NUMBER_BYTES


def _megabytes(numbers: int, batch: int) -> float:
    return numbers * batch * NUMBER_BYTES / MEGABYTE


def _outputs_of(network: Network, kinds: frozenset[str]) -> list[Tensor]:
    """The outputs of all layers of some kinds."""
    return [each for each in network.tensors if not each.is_gradient and network.layers[each.layer].kind in kinds]


def _parts(network: Network) -> list[Row]:
    """The sums with which section 4.1.1 checks its peaks."""
    at = {layer.name: position for position, layer in enumerate(network.layers)}

    def megabytes(*tensors: Tensor) -> float:
        return nbytes(tensors, ALEXNET_BATCH) / MEGABYTE

    pool5 = network.needed(at['pool5'])
    before = [each for position in range(at['relu5']) for each in network.outputs(position)]
    return [reported.SUPERNEURONS_TO_POOL5.beside(megabytes(*before), note='those up to conv5'),
            reported.SUPERNEURONS_AT_POOL5.beside(megabytes(*pool5)),
            *(each.beside(megabytes(*network.outputs(at[f'conv{number}'])))
              for number, each in reported.SUPERNEURONS_CONVOLUTIONS.items())]
