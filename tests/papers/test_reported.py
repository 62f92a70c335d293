"""The stated figures agree with each other where the papers say the same thing twice."""
import pytest

from chainer_ooc.papers import reported
from support.stated import all_stated

FIGURES = all_stated()


def test_each_paper_has_figures_and_each_figure_a_place():
    assert {each.paper for each in FIGURES} == {'pooch', 'pooch-2018', 'window-va', 'superneurons', 'ooc-paleo'}
    assert all(each.place and each.what and each.unit for each in FIGURES)
    assert len({(each.paper, each.place, each.what) for each in FIGURES}) == len(FIGURES)


def test_no_range_is_upside_down_or_empty():
    assert all(each.bounds != (None, None) for each in FIGURES)
    assert all(each.low <= each.high for each in FIGURES if None not in each.bounds)


def test_verdicts_of_each_policy_sum_up_to_all_maps():
    for figures in reported.POOCH_VERDICTS.values():
        assert sum(each.low for each in figures) == reported.POOCH_MAPS.low
    assert sum(each.low for each in reported.POOCH_INPUTS.values()) == reported.POOCH_MAPS.low


@pytest.mark.parametrize(('speed', 'in_core', 'below'), [
    (reported.POOCH_SPEED, reported.POOCH_IN_CORE, reported.POOCH_X86_BELOW),
    (reported.POOCH_2018_SPEED, reported.POOCH_2018_IN_CORE, reported.POOCH_2018_BELOW)])
def test_the_slowest_run_is_as_far_below_in_core_as_the_text_says(speed, in_core, below):
    assert 1 - speed.low / in_core.low == pytest.approx(below.high, abs=0.006)
    assert speed.high == in_core.low


def test_an_image_times_the_batch_exceeds_the_memory_that_is_stated():
    assert 640 * reported.POOCH_BYTES_PER_IMAGE.low / 1000 > reported.POOCH_MEMORY.low


def test_table_1_gives_the_shares_that_the_text_of_window_va_says():
    speeds = {'scheduling': reported.WINDOW_SCHEDULING, 'scheduling + VA': reported.WINDOW_VIRTUAL,
              'LMS (P100)': reported.WINDOW_LMS}
    in_core = {'scheduling': 581, 'scheduling + VA': 581, 'LMS (P100)': 258}
    for (series, batch), share in reported.WINDOW_KEPT.items():
        assert speeds[series][batch].low / in_core[series] == pytest.approx(share.low, abs=0.01)
    largest = max(reported.WINDOW_VIRTUAL)
    assert largest / max(reported.WINDOW_LMS) == pytest.approx(reported.WINDOW_LARGER.low, abs=0.005)
    assert largest / max(reported.WINDOW_IN_CORE) == pytest.approx(reported.WINDOW_BEYOND.low, abs=0.1)


def test_every_batch_of_table_1_is_one_of_its_columns():
    for figures in (reported.WINDOW_IN_CORE, reported.WINDOW_SCHEDULING, reported.WINDOW_VIRTUAL, reported.WINDOW_LMS):
        assert tuple(figures) == reported.WINDOW_BATCHES[:len(figures)]


def test_superneurons_peak_at_pool5_is_the_sum_that_its_text_gives():
    peak = reported.SUPERNEURONS_TO_POOL5.low + reported.SUPERNEURONS_AT_POOL5.low
    assert peak == pytest.approx(reported.SUPERNEURONS_PEAKS['liveness analysis'].low)


def test_superneurons_traffic_grows_by_the_image():
    per_image = [(later.low - earlier.low) / (next_batch - batch)
                 for (batch, (earlier, _)), (next_batch, (later, _)) in zip(
                     list(reported.SUPERNEURONS_TRAFFIC.items())[:-1], list(reported.SUPERNEURONS_TRAFFIC.items())[1:],
                     strict=True)]
    assert per_image == pytest.approx([per_image[0]] * len(per_image), rel=0.02)
