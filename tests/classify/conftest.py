"""Networks written down layer by layer, as traces."""
from dataclasses import dataclass, field

import pytest

from chainer_ooc.cost.costs import measured
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.plans.making import make_plan
from chainer_ooc.problem import Problem, Standing
from chainer_ooc.trace import Call, FeatureMap, Step, Trace

#: What Chainer's functions retain for backward, on a GPU.
RETAINS = {
    'Convolution2DFunction': 'i', 'LinearFunction': 'i', 'BatchNormalization': 'i', 'ReLU': 'o', 'Dropout': '',
    'MaxPoolingND': 'i', 'AveragePooling2D': 'i', 'LocalResponseNormalization': 'io', 'Add': '', 'Loss': 'i'}
SHORT = {'conv': 'Convolution2DFunction', 'fc': 'LinearFunction', 'bn': 'BatchNormalization', 'relu': 'ReLU',
         'pool': 'MaxPoolingND', 'mean': 'AveragePooling2D', 'lrn': 'LocalResponseNormalization', 'add': 'Add',
         'loss': 'Loss'}


@dataclass
class Network:
    """A network that grows layer by layer; map 0 is the batch, and map n the output of the n-th layer.

    A call allocates its output, a step the gradients of its call's inputs; the gradient that a step is given counts as
    what lives beside the maps.
    """

    batch_bytes: int
    foreign: bool = False
    repeatable: bool = True
    layers: list = field(default_factory=list)
    sizes: list = field(default_factory=list)

    def __post_init__(self):
        self.sizes = [self.batch_bytes]

    def add(self, kind, nbytes, *inputs):
        """Adds a layer that reads these maps, or the latest; gives the map that it makes."""
        self.layers.append((SHORT[kind], inputs or (len(self.layers),)))
        self.sizes.append(nbytes)
        return len(self.layers)

    @property
    def trace(self):
        count = len(self.layers)
        uses = [set() for _ in self.sizes]
        last = [max(each - 1, 0) for each in range(count + 1)]
        calls, steps = [], []
        for index, (label, inputs) in enumerate(self.layers):
            position = 2 * count - 1 - index
            kept = [*inputs] * ('i' in RETAINS[label]) + [index + 1] * ('o' in RETAINS[label])
            for each in kept:
                uses[each].add(position)
            for each in inputs:
                last[each] = index
            calls.append(Call(index, label, tuple(inputs), (index + 1,), (), 1.0,
                              self.sizes[index + 1], repeatable=self.repeatable))
            steps.append(Step(position, index, tuple(sorted(set(kept))), 2.0, sum(self.sizes[each] for each in inputs),
                              self.sizes[index + 1]))
        maps = [FeatureMap(each, nbytes, each - 1 if each else None, False, bool(uses[each]),
                           self.foreign and each == 0, last[each], tuple(sorted(uses[each])), (nbytes,), 'uint8')
                for each, nbytes in enumerate(self.sizes)]
        return Trace('cuda', tuple(calls), tuple(reversed(steps)), tuple(maps), 1.0, 1.0, 1.0)

    def problem(self, budget_bytes, min_bytes=1):
        trace = self.trace
        return Problem(trace, measured(trace), Standing(0, 0), budget_bytes, min_bytes)


def chain(*layers, batch_bytes=10, **options):
    """One layer after the other: ('conv', 10), ('relu', 10) ..."""
    network = Network(batch_bytes, **options)
    for kind, nbytes in layers:
        network.add(kind, nbytes)
    return network


def resnet50():
    """ResNet50 for one image of 224x224, float32, in kilobytes."""
    network = Network(602)
    for kind, nbytes in (('conv', 3211), ('bn', 3211), ('relu', 3211), ('pool', 803)):
        network.add(kind, nbytes)
    for blocks, narrow in ((3, 803), (4, 401), (6, 201), (3, 100)):
        for block in range(blocks):
            _bottleneck(network, narrow, 4 * narrow, projects=not block)
    network.add('mean', 8)
    network.add('fc', 4)
    network.add('loss', 1)
    return network


def _bottleneck(network, narrow, wide, projects):
    start = h = len(network.layers)
    for kind, nbytes in (('conv', narrow), ('bn', narrow), ('relu', narrow)) * 2 + (('conv', wide), ('bn', wide)):
        h = network.add(kind, nbytes, h)
    if projects:
        start = network.add('bn', wide, network.add('conv', wide, start))
    network.add('relu', wide, network.add('add', wide, h, start))


@pytest.fixture(scope='session')
def network_of():
    return chain


@pytest.fixture
def new_network():
    return Network


@pytest.fixture(scope='session')
def resnet():
    return resnet50()


@pytest.fixture(scope='session')
def planned_or_refused():
    """Plans for each budget; a plan keeps within it, and a refusal names one that works. Gives the number of plans."""
    def attempt(policy, network, budget_bytes):
        try:
            return make_plan(policy, network.problem(budget_bytes)), budget_bytes
        except InfeasibleBudgetError as error:
            return make_plan(policy, network.problem(error.floor_bytes)), error.floor_bytes

    def planned_or_refused(policy, network, budgets):
        found = [(attempt(policy, network, budget_bytes), budget_bytes) for budget_bytes in budgets]
        assert all(plan.peak_bytes <= used_bytes for (plan, used_bytes), _ in found)
        return sum(used_bytes == budget_bytes for (_, used_bytes), budget_bytes in found)
    return planned_or_refused
