"""The benchmark of the lower bound: its rows and its networks."""
import math
from dataclasses import replace

import chainer
import numpy as np
import pytest

import bound
import bound_networks
import planning


@pytest.fixture(scope='module')
def problem():
    chain = bound.NETWORKS['alexnet'].build()
    return bound.problem(planning.record(chain, (3, 63, 63)), bound.Row('alexnet', 'v100-pcie3', '1.15GB', 2432))


def test_a_row_has_the_bound_below_the_plans_and_what_binds(problem):
    row = bound.measure('alexnet', 'v100-pcie3', 2432, problem, ['pooch', 'auto'])
    assert 1 < row['bound'] <= row['auto'] <= row['pooch']
    assert 0 <= row['auto_gap'] <= row['pooch_gap']
    assert row['auto_planning_seconds'] > 0
    assert row['binds'].startswith('memory at ')
    assert 'a link twice as fast -' in row['binds']
    assert {each.key for each in bound.columns(['pooch', 'auto'])} <= {*row}


def test_a_row_of_a_budget_in_which_nothing_fits(problem):
    row = bound.measure('alexnet', 'v100-pcie3', 2432, replace(problem, budget_bytes=10 ** 8), ['pooch'])
    assert (row['bound'], row['pooch'], row['pooch_gap']) == (math.inf, None, None)
    assert row['binds'].startswith('nothing fits below ')


def test_shares_lead_from_the_smallest_budget_to_in_core(monkeypatch):
    small = bound_networks.Network('LSTM', lambda: bound_networks.LSTM(8, 16), (6, 8), 16)
    monkeypatch.setitem(bound.NETWORKS, 'lstm', small)
    monkeypatch.setattr(bound, 'TRACES', {})
    (_, _, batch, least), (*_, most) = bound.by_shares(['lstm'], [0.0, 1.0])
    assert bound.in_core(most).peak_bytes == pytest.approx(bound.GROWN_BYTES, rel=0.01)
    assert bound.measure('lstm', bound.MACHINE, batch, most, ['keep'])['keep'] == pytest.approx(1)
    assert bound.measure('lstm', bound.MACHINE, batch, least, ['swap-all'])['swap-all'] > 1
    below = replace(least, budget_bytes=least.budget_bytes - 1)
    assert bound.measure('lstm', bound.MACHINE, batch, below, ['swap-all'])['swap-all'] is None


@pytest.mark.parametrize(('build', 'shape'), [
    (lambda: bound_networks.UNet(channels=4, depth=2), (1, 16, 16)),
    (lambda: bound_networks.TransformerEncoder(layers=2, size=24, heads=3, patch=8), (3, 16, 16)),
    (lambda: bound_networks.LSTM(8, 16), (6, 8)),
], ids=['unet', 'transformer', 'lstm'])
def test_a_network_learns_two_examples(build, shape):
    np.random.seed(0)
    chain, images = build(), np.random.default_rng(0).standard_normal((2, *shape), dtype=np.float32)
    optimizer = chainer.optimizers.Adam(0.01).setup(chain)
    losses = []
    for _ in range(30):
        loss = chain(images, np.array([0, 1], np.int32))
        losses.append(float(loss.array))
        chain.cleargrads()
        loss.backward()
        optimizer.update()
    assert losses[-1] < 0.7 * losses[0]
