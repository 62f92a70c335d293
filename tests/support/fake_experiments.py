"""A experiments without networks: every outcome follows from a formula, the same in every run.

Memory grows with the size; what exceeds 16 GB costs time by policy and machine; some policies give up beyond a limit.
"""
import math

from chainer_ooc.papers.experiments import Outcome
from chainer_ooc.papers.published import POOCH, SUPERNEURONS, SWAP_ALL, SWAP_ALL_NAIVE, SWAP_OPT
from chainer_ooc.trace import Call, FeatureMap, Trace

CAPACITY_BYTES = 16e9
BYTES = {'resnet50': 80e6, 'alexnet': 7.5e6, 'googlenet_bn': 45e6, 'resnext3d': 58e9 / (448 * 224 * 256)}
#: Seconds per second of computation that a policy adds when all maps exceed the memory.
COSTS = {SWAP_ALL_NAIVE: 3.0, SWAP_ALL: 2.6, SWAP_OPT: 1.2, POOCH: 0.6, 'pooch': 0.5, SUPERNEURONS: 1.4,
         'window': 0.5, 'lms': 0.9}
LINKS = {'v100-pcie3': 1.0, 'v100-nvlink2': 0.1, 'p100-nvlink': 1.0}
#: From how many bytes on a policy runs out of memory.
LIMITS = {SUPERNEURONS: 50e9, 'window': 80e9, 'lms': 80e9}
VERDICTS = {(POOCH, 'v100-pcie3'): (60, 10, 35), (POOCH, 'v100-nvlink2'): (60, 40, 5)}


class FakeExperiments:
    """Takes what a Experiments takes.

    Attributes:
        asked: the arguments of each run, in order.
        costs: by policy; a test that wants another order changes them.
    """

    def __init__(self, record=None):
        self.asked = []
        self.costs = dict(COSTS)

    def trace(self, network, size):
        labels = ['Convolution2DFunction', 'BatchNormalization', 'ReLU', 'MaxPoolingND', 'Convolution2DFunction',
                  'AveragePooling2D', 'LinearFunction']
        maps = tuple(
            FeatureMap(each, size * 1_000_000 if isinstance(size, int) else 10**7, each - 1 if each else None, False,
                       each != 2, False, min(each, 6), (13 - min(each, 6),), (1,), 'float32')
            for each in range(len(labels)))
        calls = tuple(Call(each, label, (each,), (each + 1 if each + 1 < len(maps) else -1,), (), 1.0, 0)
                      for each, label in enumerate(labels))
        return Trace('cuda', calls, (), maps, 1.0, 1.0, 1.0)

    def in_core(self, network, size, machine, allocator='exact', images_per_second=None, framework='chainer'):
        nbytes = self._bytes(network, size)
        seconds = self._in_core_seconds(size, images_per_second)
        return Outcome(network, size, machine, 'keep', nbytes <= CAPACITY_BYTES, seconds, seconds, 16 * 10**9,
                       int(nbytes), int(nbytes), 100, 0, 0)

    def run(self, network, size, machine, policy, planned_for=None, allocator='exact', images_per_second=None,
            framework='chainer'):
        self.asked.append((network, size, machine, policy, planned_for, allocator, images_per_second))
        nbytes, in_core_seconds = self._bytes(network, size), self._in_core_seconds(size, images_per_second)
        limit = LIMITS.get(policy, math.inf) if allocator != 'virtual' else math.inf
        if planned_for not in (None, machine):
            limit = 50e9
        if nbytes > limit:
            return Outcome(network, size, machine, policy, False, None, in_core_seconds, 16 * 10**9)
        excess = max(0.0, 1 - CAPACITY_BYTES / nbytes)
        cost = self.costs[policy] * LINKS[machine] * excess * (1.2 if planned_for not in (None, machine) else 1.0)
        keep, swap, recompute = VERDICTS.get((policy, machine), (66, 21, 18)) if network == 'resnet50' else (90, 10, 5)
        budget_bytes = 8 * 10**9 if allocator != 'virtual' else 15 * 10**9
        return Outcome(network, size, machine, policy, True, in_core_seconds * (1 + cost), in_core_seconds,
                       budget_bytes, budget_bytes, 16 * 10**9, keep, swap, recompute, 2.5)

    def _bytes(self, network, size):
        return BYTES[network] * (math.prod(size) if isinstance(size, tuple) else size)

    def _in_core_seconds(self, size, images_per_second):
        return (math.prod(size) if isinstance(size, tuple) else size) / (images_per_second or 1000.0)
