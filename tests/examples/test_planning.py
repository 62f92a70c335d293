"""Plans of real networks, as the benchmark of planning times makes them; the times themselves are not tested."""

import numpy as np
import pytest

import devices
import planning
from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.plans.making import make_plan
from chainer_ooc.schedule.schedule import lay_out
from chainer_ooc.simulate.simulator import run
from models.googlenet import GoogLeNet
from models.resnet import ResNet, units_of
from models.resnet50 import ResNet50
from models.resnext3d import ResNeXt3D

NETWORKS = {
    'resnet': (lambda: ResNet(width=8), (3, 32, 32)),
    'googlenet': (GoogLeNet, (3, 32, 32)),
    'resnext3d': (lambda: ResNeXt3D(units=(1, 1, 2, 1), width=16), (3, 8, 32, 32)),
}
BUDGET_BYTES = 14_000_000_000


@pytest.fixture(scope='module', params=NETWORKS)
def trace(request):
    build, shape = NETWORKS[request.param]
    return planning.record(build(), shape)


@pytest.mark.parametrize('times', [1.5, 2.0])
def test_each_policy_is_at_least_as_fast_as_the_one_before_within_the_budget(trace, times):
    problem = planning.problem_of(trace, BUDGET_BYTES, times, 60.0)
    before = float('inf')
    for name in ('swap-all-naive', 'swap-all', 'swap-opt', 'pooch'):
        plan = make_plan(POLICIES[name], problem)
        assert plan.peak_bytes <= BUDGET_BYTES
        assert plan.seconds <= before * (1 + 1e-9)
        before = plan.seconds


def test_a_trace_is_grown_to_the_peak_that_is_asked_for(trace):
    problem = planning.problem_of(trace, BUDGET_BYTES, 2.0, 60.0)
    _, peak_bytes = run(problem, lay_out(problem, POLICIES['keep'].decide(problem)))
    assert peak_bytes == pytest.approx(2 * BUDGET_BYTES, rel=1e-3)
    retained_bytes = sum(each.nbytes for each in problem.trace.maps if each.retained)
    link = problem.costs.write_bytes_per_second
    assert sum(problem.costs.seconds) == pytest.approx(retained_bytes / (2 * link))


@pytest.mark.parametrize(('count', 'units'), [(16, (3, 4, 6, 3)), (33, (3, 4, 23, 3)), (50, (3, 8, 36, 3))])
def test_depth_by_formula_gives_the_published_networks(count, units):
    assert units_of(count) == units


def test_depth_by_formula_goes_on_and_has_a_beginning():
    assert sum(units_of(1000)) == 1000
    with pytest.raises(ValueError, match='ask for 16 or more'):
        units_of(15)


def test_a_resnet_of_16_units_is_resnet50():
    shapes = [sorted(parameter.shape for parameter in chain.params()) for chain in (ResNet(), ResNet50())]
    assert shapes[0] == shapes[1]


def test_resnext101_has_the_parameters_of_the_published_network():
    chain = ResNeXt3D()
    assert sum(np.prod(each.shape) for each in chain.params()) == pytest.approx(48e6, rel=0.02)
    assert sum('spatial' in name and name.endswith('W') for name, _ in chain.namedparams()) == 33


@pytest.mark.long
def test_superneurons_fails_on_16_gb_where_the_paper_says():
    """PoocH 5.2: ResNet50 on 16 GB works at batch 512 and fails at 640, as swap-ins do not look at memory."""
    trace, device_bytes = devices.recorded(), 16 << 30
    problem = devices.problem_of(trace, 512, 13_500_000_000)
    assert devices.device_of(problem, 'superneurons') <= device_bytes
    assert devices.smallest_device(trace, 640, 'superneurons', device_bytes)['device_bytes'] > device_bytes
    problem = devices.problem_of(trace, 640, 7_000_000_000)
    assert devices.device_of(problem, 'swap-all') <= device_bytes
