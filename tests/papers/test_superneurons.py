"""SuperNeurons' tables."""
import pytest

from chainer_ooc.papers import superneurons

TABLES = (superneurons.peaks, superneurons.recomputations, superneurons.pool, superneurons.traffic,
          superneurons.peak_batches, superneurons.depths)


@pytest.fixture(params=TABLES, ids=lambda make: make.__name__)
def table(request):
    return request.param(None)


def _ours(table):
    return {row.what: row.ours for row in table.rows}


def test_rows_say_what_they_are_once(table):
    assert table.paper == 'superneurons'
    assert len({row.what for row in table.rows}) == len(table.rows) > 0
    assert table.notes


def test_alexnets_peaks_are_exact_to_a_thousandth():
    found = superneurons.peaks(None).rows
    assert [row.what for row in found if row.stated is None or row.ours is None] == []
    assert {row.what: row.deviation for row in found if abs(row.deviation) > 1e-3} == {}
    assert [round(row.ours, 3) for row in found if row.series == 'peak'] == [2189.437, 1489.355, 1132.056, 886.23]


def test_all_counts_of_recomputations_are_exact():
    rows = [row for row in superneurons.recomputations(None).rows if row.unit == 'calls']
    assert [row.ours for row in rows] == [14, 23, 17, 84, 118, 85, 169, 237, 170]
    assert all(row.deviation == 0 for row in rows)


def test_peaks_with_recomputation_are_within_two_percent_and_exact_where_all_stays():
    rows = {row.what: row for row in superneurons.recomputations(None).rows if row.unit == 'MB'}
    assert all(abs(row.deviation) <= 0.02 for row in rows.values())
    assert [what for what, row in rows.items() if abs(row.deviation) > 1e-5] == [
        f'{network}, {strategy}, peak' for network in ('ResNet50', 'ResNet101')
        for strategy in ('memory-centric', 'cost-aware')]


def test_what_needs_a_gpu_is_shown_without_ours():
    rows = superneurons.pool(None).rows
    assert len(rows) == 6
    assert all(row.ours is None and row.note and row.is_met() is None for row in rows)


def test_traffic_without_a_cache_grows_with_the_batch_and_is_below_what_is_stated():
    rows = [row for row in superneurons.traffic(None).rows if row.series == 'without tensor cache']
    assert rows[-1].ours / rows[0].ours == pytest.approx(1024 / 256)
    assert all(-0.5 < row.deviation < 0 for row in rows)


def test_the_cache_transfers_nothing_while_all_fits():
    rows = [row for row in superneurons.traffic(None).rows if row.series == 'tensor cache']
    assert [row.ours for row in rows] == [0] * 6
    assert [row.is_met() for row in rows] == [True] * 5 + [False]


def test_a_batch_that_is_one_larger_does_not_fit():
    network = superneurons.alexnet()
    batch = superneurons.largest_batch(network)
    image_bytes = superneurons.cost_aware(network).peak.numbers * 4
    spare = 12 * 2 ** 30 - 3 * 4 * network.weights - batch * image_bytes
    assert 0 <= spare < image_bytes


def test_peak_batches_are_larger_than_stated_but_for_vgg16():
    rows = superneurons.peak_batches(None).rows
    assert [row.what for row in rows if row.deviation < 0] == ['VGG16, peak batch']
    assert [row.is_met() for row in rows] == [False, True, False, False, False, False]


@pytest.mark.parametrize('batch', [1, 16])
def test_one_unit_more_than_the_deepest_does_not_fit(batch):
    units = superneurons.deepest(batch)
    peak_bytes = superneurons.cost_aware(superneurons.resnet(1, 1, 1, 1)).peak.numbers * 4 * batch
    spare = [12 * 2 ** 30 - peak_bytes - 3 * 4 * superneurons.resnet(6, 32, count, 6).weights
             for count in (units, units + 1)]
    assert spare[1] < 0 <= spare[0]


def test_layers_at_batch_1_are_within_a_fifth_of_the_stated_2500():
    assert _ours(superneurons.depths(None))['ResNet at batch 1, layers'] == pytest.approx(2500, rel=0.2)
