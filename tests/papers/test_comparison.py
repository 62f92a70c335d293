import math

import pytest

from chainer_ooc.papers.comparison import Reported, Row, claim


def row(stated, ours, unit='images/s', **more):
    return Row('speed', stated, ours, unit, **more)


@pytest.mark.parametrize(('stated', 'ours', 'deviation'), [
    ((200, 200), 200, 0.0), ((200, 200), 150, -0.25), ((200, 200), 250, 0.25),
    ((200, 300), 250, 0.0), ((200, 300), 100, -0.5), ((200, 300), 330, 0.1),
    ((None, 50), 10, 0.0), ((None, 50), 60, 0.2), ((50, None), 1000, 0.0), ((50, None), 40, -0.2),
])
def test_deviation_is_relative_to_the_nearest_end(stated, ours, deviation):
    assert row(stated, ours).deviation == pytest.approx(deviation)


@pytest.mark.parametrize(('stated', 'ours', 'deviation'), [
    ((None, 0.061), 0.05, 0.0), ((None, 0.061), 0.161, 0.1), ((0.13, 0.38), 0.03, -0.1), ((0.0, 0.0), 0.2, 0.2)])
def test_shares_deviate_by_their_difference(stated, ours, deviation):
    assert row(stated, ours, 'share').deviation == pytest.approx(deviation)


@pytest.mark.parametrize(('stated', 'ours'), [(None, 5.0), ((None, None), 5.0), ((5, 5), None)])
def test_what_is_missing_cannot_be_compared(stated, ours):
    assert row(stated, ours).deviation is None
    assert row(stated, ours).is_met() is None


def test_nothing_is_within_any_share_of_zero():
    assert row((0, 0), 0.1, 'GB').deviation == math.inf
    assert row((0, 0), 0.1, 'GB').is_met() is False
    assert row((0, 0), 0.0, 'GB').is_met() is True


@pytest.mark.parametrize(('ours', 'is_met'), [(85.1, True), (84.9, False), (114.9, True), (115.1, False)])
def test_a_figure_is_met_within_fifteen_percent(ours, is_met):
    assert row((100, 100), ours).is_met() is is_met


def test_a_run_that_does_not_fit_misses_what_is_stated():
    assert row((195, 195), None, out_of_memory=True).is_met() is False
    assert row(None, None, out_of_memory=True).is_met() is None


def test_what_was_put_in_is_never_met():
    assert row((316, 316), 316, is_input=True).is_met() is None


@pytest.mark.parametrize(('holds', 'is_met'), [(True, True), (False, False), (None, None)])
def test_a_claim_holds_or_not(holds, is_met):
    assert claim('PoocH is faster', holds).is_met() is is_met


SPEED = Reported('pooch', 'figure 17', 'PoocH', 195, 316, 'images/s')


def test_the_ends_of_a_range_are_held_against_the_ends_of_ours():
    low, high = SPEED.ends_beside([316, 250, 180])
    assert (low.what, low.stated, low.ours) == ('PoocH, lowest', (195, 195), 180)
    assert (high.what, high.stated, high.ours) == ('PoocH, highest', (316, 316), 316)
    assert [(each.series, each.group) for each in (low, high)] == [('PoocH', 'lowest'), ('PoocH', 'highest')]


def test_runs_that_do_not_fit_are_left_out_of_the_ends_and_counted():
    low, high = SPEED.ends_beside([316, None, None])
    assert (low.ours, high.ours) == (316, 316)
    assert low.note == '2 of 3 do not run here'
    assert low.is_met() is False


@pytest.mark.parametrize('ours', [[], [None, None]])
def test_without_any_run_both_ends_are_missed(ours):
    assert [each.is_met() for each in SPEED.ends_beside(ours)] == [False, False]
