"""The tables of PoocH, PoocH-2018 and Window+VA, made in a experiments of formulas."""
import collections

import pytest

from chainer_ooc.papers import TABLES, pooch
from chainer_ooc.papers.comparison import PaperTable
from chainer_ooc.papers.published import POOCH
from support.fake_experiments import FakeExperiments
from support.stated import all_stated

PAPERS = ('pooch', 'pooch-2018', 'window-va')
ENTRIES = [each for each in TABLES if each.paper in PAPERS]


@pytest.fixture
def experiments():
    return FakeExperiments()


def made(experiments, paper, figure):
    return next(each for each in TABLES if (each.paper, each.figure) == (paper, figure)).make(experiments)


def only(table, what):
    found = [each for each in table.rows if each.what == what]
    assert len(found) == 1, [each.what for each in table.rows]
    return found[0]


def test_no_table_is_registered_twice():
    assert len({(each.paper, each.figure) for each in TABLES}) == len(TABLES)


@pytest.mark.parametrize('entry', ENTRIES, ids=lambda each: f'{each.paper}-{each.figure}')
def test_an_entry_makes_the_table_that_it_names(experiments, entry):
    table = entry.make(experiments)
    assert isinstance(table, PaperTable)
    assert (table.paper, table.figure) == (entry.paper, entry.figure)
    assert len({each.what for each in table.rows}) == len(table.rows)
    assert table == entry.make(FakeExperiments())


@pytest.mark.parametrize('paper', PAPERS)
def test_every_stated_figure_stands_in_a_row(experiments, paper):
    rows = collections.Counter((each.unit, each.stated) for entry in ENTRIES if entry.paper == paper
                               for each in entry.make(experiments).rows)
    for figure in (each for each in all_stated() if each.paper == paper):
        low, high = figure.bounds
        keys = [(figure.unit, figure.bounds)]
        if keys[0] not in rows:
            keys = [(figure.unit, (low, low)), (figure.unit, (high, high))]
        for key in keys:
            assert rows[key] > 0, figure
            rows[key] -= 1


def test_every_series_of_a_group_is_drawn_once(experiments):
    for entry in ENTRIES:
        places = [(each.unit, each.group, each.series) for each in entry.make(experiments).rows if each.group]
        assert len(set(places)) == len(places), entry


def test_pooch_runs_where_superneurons_and_the_other_plan_do_not(experiments):
    table = made(experiments, 'pooch', '17')
    assert only(table, 'batch 640, superneurons runs out of memory').is_met() is True
    assert only(table, 'batch 640, the plan made for POWER9 runs out of memory').is_met() is True
    assert only(table, 'batch 640, superneurons').out_of_memory is True
    assert only(table, 'batch 640, PoocH').ours == pytest.approx(316 / (1 + 0.6 * (1 - 16 / 51.2)))
    assert only(table, 'batch 512, PoocH faster than with the plan made for POWER9').is_met() is True
    assert ('resnet50', 512, 'v100-pcie3', POOCH, 'v100-nvlink2', 'exact', 316) in experiments.asked


def test_in_core_has_a_speed_only_where_it_fits(experiments):
    table = made(experiments, 'pooch', '17')
    assert only(table, 'batch 128, in-core').ours == 316
    assert only(table, 'batch 256, in-core').ours is None
    assert only(table, 'x86, ResNet50, in-core').is_input is True
    assert only(table, 'x86, ResNet50, batch 128 to 640, PoocH, highest').is_met() is None  # it is in-core's


def test_ends_are_compared_with_ends_over_what_exceeds_the_memory(experiments):
    table = made(experiments, 'pooch', '17')
    what = 'x86, ResNet50, batch 256 to 640, PoocH below in-core'
    shares = [1 - 1 / (1 + 0.6 * (1 - 16e9 / (batch * 80e6))) for batch in (256, 640)]
    assert only(table, f'{what}, lowest').ours == pytest.approx(shares[0])
    assert only(table, f'{what}, highest').ours == pytest.approx(shares[1])


@pytest.mark.parametrize(('paper', 'figure', 'what'), [
    ('pooch', '15', 'ResNet50, PoocH no slower than swap-opt'),
    ('pooch', '16', 'GoogLeNet, PoocH no slower than swap-opt'),
    ('pooch', '17', 'batch 512, PoocH faster than superneurons'),
    ('pooch', '19', 'PoocH no slower than superneurons'),
    ('pooch', '22', 'PoocH no slower than superneurons'),
    ('pooch-2018', '14', 'AlexNet, proposed no slower than swap-opt'),
])
def test_an_ordering_that_does_not_hold_is_shown(experiments, paper, figure, what):
    assert only(made(experiments, paper, figure), what).is_met() is True
    experiments.costs[POOCH] = 5.0
    assert only(made(experiments, paper, figure), what).is_met() is False


def test_memory_of_the_first_batch_that_fails(experiments):
    table = made(experiments, 'pooch', '3')
    assert only(table, 'batch 640').ours == pytest.approx(51.2)
    assert only(table, 'smallest of these batches that fails in-core').ours == 256


def test_verdicts_are_those_of_each_policy_on_each_machine(experiments):
    table = made(experiments, 'pooch', 'table 3')
    assert [only(table, f'x86, PoocH, {verdict}').ours for verdict in ('keep', 'swap', 'recompute')] == [60, 10, 35]
    assert only(table, 'PoocH recomputes more maps on x86 than on POWER9').is_met() is True
    assert only(table, 'superneurons decides alike on both machines').is_met() is True


def test_a_bound_over_several_sizes_is_held_against_the_worst(experiments):
    row = only(made(experiments, 'pooch', '19'), 'x86, AlexNet, PoocH below in-core at worst')
    assert row.ours == pytest.approx(1 - 1 / (1 + 0.6 * (1 - 16e9 / (2688 * 7.5e6))))
    assert row.stated == (None, 0.061)


def test_voxels_are_those_of_one_clip(experiments):
    row = only(made(experiments, 'pooch', '21'), '(224*224)*128, in-core')
    assert (row.unit, row.ours) == ('voxels/ms', pytest.approx(1.0))  # 1000 voxels a second, in the fake


def test_maps_are_told_by_what_reads_them(experiments):
    trace = experiments.trace('resnet50', 512)
    assert [pooch.reader(trace, each) for each in trace.maps] == [
        'convolution', 'batch normalisation', 'others', 'max pooling', 'convolution', 'average pooling',
        'the linear function']
    table = made(experiments, 'pooch', 'text')
    assert only(table, 'ResNet50, maps that are classified').ours == 6
    assert only(table, 'ResNet50, inputs of convolution').ours == 2
    assert only(table, 'ResNet50, retained for an image').ours == 6
    assert only(table, 'ResNeXt101 (3D), planning').ours == 2.5


def test_window_is_calibrated_by_the_throughput_of_each_batch(experiments):
    made(experiments, 'window-va', 'table 1')
    windows = [each for each in experiments.asked if each[3] == 'window']
    assert {(each[1], each[6]) for each in windows} >= {(64, 336), (128, 492), (190, 581), (256, 581), (1440, 581)}
    assert {each[5] for each in windows} == {'pool', 'virtual'}
    assert {(each[1], each[2], each[6]) for each in experiments.asked if each[3] == 'lms'} >= {
        (64, 'p100-nvlink', 235), (1440, 'p100-nvlink', 258)}


def test_window_runs_out_of_memory_where_the_paper_does(experiments):
    table = made(experiments, 'window-va', 'table 1')
    assert only(table, 'batch 1120, scheduling out of memory').is_met() is True
    assert only(table, 'batch 1440, scheduling + VA').stated == (321, 321)
    assert only(table, 'largest batch with VA over the largest of LMS').ours == pytest.approx(1440 / 928)
    assert only(table, 'batch 256, in-core (V100) out of memory').is_met() is True


def test_fragmentation_is_what_the_device_needs_beyond_the_budget(experiments):
    table = made(experiments, 'window-va', '3')
    assert only(table, 'batch 928, scheduling, budget').ours == 8
    assert only(table, 'batch 928, scheduling, memory taken').stated == (16, 16)
    assert only(table, 'batch 1120, scheduling, budget').out_of_memory is True
    assert only(table, 'batch 928, VA loses less to fragmentation').is_met() is True
    assert only(table, 'physical chunk').ours == 40
