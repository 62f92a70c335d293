"""The stated figures agree with each other where the papers say the same thing twice."""
import pytest

from chainer_ooc.papers import stated

FIGURES = stated.all_stated()


def test_each_paper_has_figures_and_each_figure_a_place():
    assert {each.paper for each in FIGURES} == {'pooch', 'pooch-2018', 'window-va', 'superneurons', 'ooc-paleo'}
    assert all(each.place and each.what and each.unit for each in FIGURES)
    assert len({(each.paper, each.place, each.what) for each in FIGURES}) == len(FIGURES)


def test_no_range_is_upside_down_or_empty():
    assert all(each.bounds != (None, None) for each in FIGURES)
    assert all(each.low <= each.high for each in FIGURES if None not in each.bounds)


def test_verdicts_of_each_policy_sum_up_to_all_maps():
    for figures in stated.POOCH_VERDICTS.values():
        assert sum(each.low for each in figures) == stated.POOCH_MAPS.low
    assert sum(each.low for each in stated.POOCH_INPUTS.values()) == stated.POOCH_MAPS.low


@pytest.mark.parametrize(('speed', 'in_core', 'below'), [
    (stated.POOCH_SPEED, stated.POOCH_IN_CORE, stated.POOCH_X86_BELOW),
    (stated.POOCH_2018_SPEED, stated.POOCH_2018_IN_CORE, stated.POOCH_2018_BELOW)])
def test_the_slowest_run_is_as_far_below_in_core_as_the_text_says(speed, in_core, below):
    assert 1 - speed.low / in_core.low == pytest.approx(below.high, abs=0.006)
    assert speed.high == in_core.low


def test_an_image_times_the_batch_exceeds_the_memory_that_is_stated():
    assert 640 * stated.POOCH_BYTES_PER_IMAGE.low / 1000 > stated.POOCH_MEMORY.low


def test_table_1_gives_the_shares_that_the_text_of_window_va_says():
    speeds = {'scheduling': stated.WINDOW_SCHEDULING, 'scheduling + VA': stated.WINDOW_VIRTUAL,
              'LMS (P100)': stated.WINDOW_LMS}
    in_core = {'scheduling': 581, 'scheduling + VA': 581, 'LMS (P100)': 258}
    for (series, batch), share in stated.WINDOW_KEPT.items():
        assert speeds[series][batch].low / in_core[series] == pytest.approx(share.low, abs=0.01)
    assert max(stated.WINDOW_VIRTUAL) / max(stated.WINDOW_LMS) == pytest.approx(stated.WINDOW_LARGER.low, abs=0.005)
    assert max(stated.WINDOW_VIRTUAL) / max(stated.WINDOW_IN_CORE) == pytest.approx(stated.WINDOW_BEYOND.low, abs=0.1)


def test_every_batch_of_table_1_is_one_of_its_columns():
    for figures in (stated.WINDOW_IN_CORE, stated.WINDOW_SCHEDULING, stated.WINDOW_VIRTUAL, stated.WINDOW_LMS):
        assert tuple(figures) == stated.WINDOW_BATCHES[:len(figures)]


def test_superneurons_peak_at_pool5_is_the_sum_that_its_text_gives():
    peak = stated.SUPERNEURONS_TO_POOL5.low + stated.SUPERNEURONS_AT_POOL5.low
    assert peak == pytest.approx(stated.SUPERNEURONS_PEAKS['liveness analysis'].low)


def test_superneurons_traffic_grows_by_the_image():
    per_image = [(later.low - earlier.low) / (next_batch - batch)
                 for (batch, (earlier, _)), (next_batch, (later, _)) in zip(
                     list(stated.SUPERNEURONS_TRAFFIC.items())[:-1], list(stated.SUPERNEURONS_TRAFFIC.items())[1:],
                     strict=True)]
    assert per_image == pytest.approx([per_image[0]] * len(per_image), rel=0.02)
