"""OOC-Paleo's tables on a experiments of equal layers, whose figures can be worked out by hand."""
import types

import pytest

from chainer_ooc.cost.costs import Costs
from chainer_ooc.papers import ooc_paleo
from chainer_ooc.papers.ooc_paleo import CAPACITY, ON_DEMAND, VDNN, Case, problem_of
from chainer_ooc.trace import Call, FeatureMap, Step, Trace

LAYERS, BYTES, SECONDS = 10, 2 * 10**7, 1e-3  # of one image in each layer: bytes, and seconds of either pass
RATE = 8e9  # so that a layer's transfer takes 2.5 times its computation


class Equal:
    """A experiments with one network, a chain of equal layers of which each retains its output."""

    def trace(self, network, size):
        nbytes = BYTES * size
        calls = tuple(Call(each, '', (), (each,), (), SECONDS * size, nbytes) for each in range(LAYERS))
        steps = tuple(Step(LAYERS + each, LAYERS - 1 - each, (LAYERS - 1 - each,), SECONDS * size, 0, 0)
                      for each in range(LAYERS))
        maps = tuple(FeatureMap(each, nbytes, each, False, True, False, each, (2 * LAYERS - 1 - each,), (nbytes,),
                                'uint8') for each in range(LAYERS))
        return Trace('cuda', calls, steps, maps, 0.0, 0.0, 0.0, standing_forward_bytes=5, standing_backward_bytes=7)

    def in_core(self, network, size, machine):
        return types.SimpleNamespace(in_core_seconds=2 * LAYERS * SECONDS * size)


def machine(rate=RATE, near_bytes=32 * 10**9):
    """One whose near memory holds 160 images."""
    return types.SimpleNamespace(name='fake', near_bytes=near_bytes + 10**9 + 7, reserve_bytes=10**9, rate=rate)


@pytest.fixture(autouse=True)
def _roofline(monkeypatch):
    """Times are those of the trace, as long as all of them make the in-core time."""
    def analytic(trace, machine, in_core_seconds=None):
        seconds = tuple(each.seconds for each in (*trace.calls, *trace.steps))
        assert sum(seconds) == pytest.approx(in_core_seconds)
        return Costs(seconds, machine.rate, machine.rate)
    monkeypatch.setattr(ooc_paleo, 'analytic', analytic)


@pytest.fixture
def tables(monkeypatch):
    """Both tables on a machine, as rows by what they are of."""
    def tables(**attributes):
        monkeypatch.setattr(ooc_paleo, 'read_machine', lambda name: machine(**attributes))
        return tuple({row.what: row for row in make(Equal()).rows}
                     for make in (ooc_paleo.utilisation, ooc_paleo.vgg16_sweep))
    return tables


def case(strategy, size=256, **attributes):
    return Case(strategy, problem_of(Equal(), 'any', size, machine(**attributes)))


def claims(table):
    return {what: row.ours for what, row in table.items() if row.unit == 'holds' and row.stated}


# --- a strategy on an iteration --------------------------------------------------------------------------------------


def test_a_vdnn_like_iteration_by_hand():
    work, swap = SECONDS, BYTES / RATE
    found = case(VDNN, 1)
    assert found.formula.seconds == pytest.approx(2 * (work + (LAYERS - 1) * swap + swap))
    assert found.simulated_seconds == pytest.approx(LAYERS * (work + swap) + swap + (LAYERS - 1) * swap + work)
    assert found.transfer_seconds == pytest.approx(2 * LAYERS * swap)


def test_a_capacity_based_iteration_by_hand():
    """Of ten layers of 5.12 GB six fit into 32 GB, and the free rest of a layer is no layer."""
    work, swap = SECONDS * 256, BYTES * 256 / RATE
    found = case(CAPACITY)
    assert sum(each > 0 for each in found.passes[1].swap_seconds) == LAYERS - 6
    assert found.full_share == pytest.approx(0.9)  # of four that come three are in time
    assert found.formula.forward_seconds == pytest.approx(work + 4 * swap + work)
    assert found.formula.backward_seconds == pytest.approx(4 * swap + work)
    assert found.simulated_seconds == pytest.approx(found.formula.seconds + work)  # the wait for the first room


def test_what_the_reserve_takes_does_not_fit():
    assert not case(CAPACITY, 160).swaps
    assert case(CAPACITY, 161).swaps


def test_another_link_moves_the_same_maps():
    slow, fast = case(CAPACITY), case(CAPACITY).over(16)
    assert fast.decision == slow.decision
    assert fast.transfer_seconds == pytest.approx(slow.transfer_seconds / 2)


def test_without_prefetching_computation_and_transfer_add_up():
    late, ahead = case(ON_DEMAND), case(CAPACITY)
    assert late.passes == ahead.passes
    swapped = sum(each > 0 for each in late.passes[1].swap_seconds)
    assert late.formula.backward_seconds == pytest.approx(256 * (LAYERS * SECONDS + swapped * BYTES / RATE))
    assert late.seconds['formula'] > ahead.seconds['formula']
    assert late.seconds['simulated'] > ahead.seconds['simulated']


@pytest.mark.parametrize('how', ooc_paleo.WAYS)
def test_computation_bounds_from_the_throughput_on_that_lengthens_it_by_five_percent(how):
    """What is never hidden of vDNN-like: by formula a layer's way out and one in; simulated every layer's way out."""
    exposed = {'formula': 2, 'simulated': LAYERS + 1}[how]
    expected = exposed * BYTES / (0.05 * 2 * LAYERS * SECONDS)
    assert ooc_paleo.bounding_throughput(case(VDNN, 1), how) == pytest.approx(expected / 1e9, rel=2e-3)


def test_no_throughput_is_enough_if_it_does_not_fit():
    found = case(VDNN, near_bytes=10**9)
    assert ooc_paleo.bounding_throughput(found, 'simulated') is None
    assert ooc_paleo.bounding_throughput(found, 'formula') > 0


# --- the tables ------------------------------------------------------------------------------------------------------


def test_all_claims_hold_on_a_slow_link(tables):
    utilisation, sweep = tables(rate=2e9)
    known = {what: holds for what, holds in claims(utilisation).items() if holds is not None}
    assert len(known) == 9
    assert all(known.values()), known
    assert len(claims(sweep)) == 6
    assert all(claims(sweep).values()), claims(sweep)


def test_the_claims_about_slowness_fail_on_a_link_that_takes_no_time(tables):
    utilisation, sweep = tables(rate=1e15)
    failed = {what for what, holds in claims(utilisation).items() if holds == 0.0}
    assert 'vDNN-like is slower than in-core at batch 2 already (4.2)' in failed
    assert 'at batch 640 swapping takes longer than computing (4.2)' in failed
    assert 'the stage of full utilisation shortens as the batch grows (4.3)' in failed
    assert 'at batch 640 transfers bound it (4.3)' in failed
    assert all(claims(sweep).values())  # whose throughputs are its own


def test_the_claims_about_what_does_not_fit_fail_where_all_fits(tables):
    utilisation, sweep = tables(near_bytes=10**12)
    failed = {what for what, holds in claims(utilisation).items() if holds == 0.0}
    assert 'beyond that utilisation is still full when backward begins (4.3)' in failed
    assert 'the speed falls as the batch grows (4.3)' in failed
    assert 'capacity-based, formula: time falls with throughput until computation bounds it (4.4)' in {
        what for what, holds in claims(sweep).items() if holds == 0.0}


def test_what_does_not_fit_is_out_of_memory(tables):
    utilisation, sweep = tables(near_bytes=4 * 10**9)
    for row in (sweep['4 GB/s, vDNN-like, simulated'], sweep['256 GB/s, capacity-based, simulated']):
        assert (row.ours, row.note) == (None, 'out of memory')
    assert utilisation['batch 640, vDNN-like, simulated'].ours == 0.0
    assert sweep['4 GB/s, vDNN-like, formula'].ours > 0


def test_each_batch_and_throughput_has_a_row_for_each_strategy_and_way(tables):
    utilisation, sweep = tables()
    for what in (f'{title}, {how}' for title in ('vDNN-like', 'capacity-based') for how in ('formula', 'simulated')):
        for each in ooc_paleo.BATCHES:
            row = utilisation[f'batch {each}, {what}']
            assert (row.series, row.group, row.stated) == (what, str(each), None)
            assert 0 < row.ours <= 1 + 1e-9
        assert [sweep[f'{each} GB/s, {what}'].group for each in ooc_paleo.THROUGHPUTS] == [
            f'{each} GB/s' for each in ooc_paleo.THROUGHPUTS]


def test_the_gain_of_prefetching_stands_beside_the_stated_one(tables):
    rows = [row for what, row in tables()[0].items() if 'at most' in what]
    assert [row.stated for row in rows] == [(1.35, 1.35)] * 2
    assert all(1 < row.ours <= 2 for row in rows)
