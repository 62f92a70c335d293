"""What the programme about containers makes of a training's end, and of many trainings."""

import pytest

import contained
import containers

ASKED = 'convolutions', 'pooch', 'group', 1000
ROWS = [{'seconds': 9.0, 'phase': 'profile', 'budget_bytes': 800, 'account_bytes': 500},
        {'seconds': 1.0, 'phase': 'run', 'budget_bytes': 700, 'account_bytes': 600},
        {'seconds': 3.0, 'phase': 'run', 'budget_bytes': 710, 'account_bytes': 610}]


@pytest.mark.parametrize(('status', 'rows', 'outcome', 'message'), [
    (0, [], 'finished', ''), (-9, [], 'killed', ''),
    (contained.REFUSED, [{'error': 'too small'}], 'refused', 'too small'),
    (contained.MEMORY_ERROR, [{'error': 'none left'}], 'MemoryError', 'none left'), (1, [], 'failed', 'last line')])
def test_how_a_training_ended(status, rows, outcome, message):
    trial = contained.make_trial(ASKED, status, [*ROWS, *rows], 'first line\nlast line\n', (990, 900))
    assert (trial.outcome, trial.message) == (outcome, message)
    assert (trial.iterations, trial.seconds, trial.budget_bytes, trial.used) == (3, 2.0, 710, 0.9)


def test_a_training_that_died_at_once_has_no_times():
    trial = contained.make_trial(ASKED, -9, [], '', (1000, 1000))
    assert (trial.iterations, trial.seconds, trial.budget_bytes) == (0, None, None)


def test_the_summary_counts_what_happened_and_looks_at_limits_that_are_too_small_for_all_maps():
    tried = [('keep', 1000, contained.REFUSED, 700), ('pooch', 1000, 0, 900), ('swap-all', 1000, 0, 870),
             ('lms', 1000, -9, 1000), ('keep', 3000, 0, 1200), ('pooch', 3000, 0, 1200)]
    trials = [contained.make_trial(('convolutions', policy, 'group', limit), status, ROWS, '', (limit, kept))
              for policy, limit, status, kept in tried]
    lines = containers.summary([containers.row_of(each, 1.05) for each in trials])
    assert lines[0] == '6 trainings: 1 refused, 4 finished, 1 killed'
    assert ': 2, used to 87% at least (convolutions, swap-all, 0 MB), in the median to 90%' in lines[1]


def test_a_training_behind_a_limit_is_watched():
    arguments = ['--iterations', '1', '--sizes', '2', '16', '--workspace', '1MB']
    trial = contained.run_contained('convolutions', 'swap-all', 'data', 1 << 30, arguments)
    assert (trial.outcome, trial.iterations) == ('finished', 1)
    assert 0 < trial.kept_bytes <= trial.peak_bytes < 1 << 30


def test_a_limit_that_is_too_small_shows():
    trial = contained.run_contained('convolutions', None, 'as', 100 << 20, ['--iterations', '1'])
    assert trial.outcome in ('failed', 'MemoryError')
