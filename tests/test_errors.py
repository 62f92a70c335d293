"""Each error can be caught by the built-in that a stranger would expect, and survives a trip between processes."""
import copy
import pickle

import pytest

from chainer_ooc import errors

BUILT_INS = {
    errors.ForkError: ImportError, errors.ConfigError: ValueError, errors.InfeasibleBudgetError: ValueError,
    errors.SpillError: OSError, errors.LostMapError: RuntimeError, errors.TraceFormatError: ValueError,
    errors.RecomputeMismatchError: RuntimeError, errors.PlanFormatError: ValueError, errors.RunFormatError: ValueError,
    errors.ReentryError: RuntimeError, errors.PlanMismatchError: ValueError, errors.DeviceMemoryError: MemoryError,
    errors.ProfileError: TypeError, errors.PolicyError: RuntimeError}
WITH_VALUES = {errors.InfeasibleBudgetError, errors.RecomputeMismatchError, errors.PlanMismatchError,
               errors.DeviceMemoryError}


def infeasible():
    return errors.InfeasibleBudgetError(
        'swap-all', 2 * 10**9, 2_600_000_000, 'Convolution2DFunction, forward of call 14')


@pytest.mark.parametrize('kind', BUILT_INS)
def test_an_error_is_ours_and_a_built_in(kind):
    assert issubclass(kind, errors.OocError)
    assert issubclass(kind, BUILT_INS[kind])


def test_no_error_is_missing_from_this_table():
    ours = {each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.OocError)}
    assert ours - {errors.OocError} == set(BUILT_INS)


def test_an_infeasible_budget_says_what_where_and_what_to_do():
    error = infeasible()
    assert str(error) == (
        "budget too small for policy 'swap-all' (budget 2.00 GB, smallest that works for such iterations 2.60 GB, "
        'set by Convolution2DFunction, forward of call 14); raise chainer.config.ooc_budget, choose another policy '
        'or lower the batch size')
    assert (error.budget_bytes, error.floor_bytes) == (2 * 10**9, 2_600_000_000)
    assert error.where == 'Convolution2DFunction, forward of call 14'


def test_an_infeasible_budget_says_what_a_workspace_would_bring():
    error = errors.InfeasibleBudgetError('keep', 10**9, 2 * 10**9, 'ReLU, backward of call 3',
                                         workspace_floor_bytes=1_234_500_000)
    assert 'set by ReLU, backward of call 3; with a workspace of 32MB about 1.24 GB); raise' in str(error)
    assert "; raise chainer.config.ooc_budget, set chainer.config.ooc_workspace = '32MB', choose another" in str(error)
    assert infeasible().workspace_floor_bytes is None


def test_an_infeasible_budget_has_what_it_says_without_what_to_do():
    finding, _, step = str(infeasible()).rpartition('; ')
    assert infeasible().finding == finding
    assert step == 'raise chainer.config.ooc_budget, choose another policy or lower the batch size'


def test_an_infeasible_budget_says_what_its_floor_counts_and_whether_it_is_certain():
    error = errors.InfeasibleBudgetError(
        'keep', 10**9, 2 * 10**9, 'ReLU, backward of call 3', expected_bytes=256 * 10**6, doubt='other threads ran')
    assert 'needed as far as is known 2.00 GB, set by ReLU, backward of call 3, 256.0 MB of it for' in str(error)
    assert '); other threads ran; raise' in str(error)
    assert (error.expected_bytes, error.doubt) == (256 * 10**6, 'other threads ran')
    assert (infeasible().expected_bytes, infeasible().doubt) == (0, '')


@pytest.mark.parametrize('again', [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
@pytest.mark.parametrize('error', [
    infeasible(), errors.DeviceMemoryError('no room', 7), errors.SpillError(28, 'no space', '/folder')],
    ids=lambda error: type(error).__name__)
def test_an_error_keeps_its_values_when_it_travels(error, again):
    other = again(error)
    assert other.args == error.args
    assert getattr(other, 'filename', None) == getattr(error, 'filename', None)
    assert type(other) is type(error)
    assert str(other) == str(error)
    assert vars(other) == vars(error)


def test_a_mismatch_says_both_forms_and_travels():
    error = errors.RecomputeMismatchError('Noise', ((2, 3), 'float32'), ((3, 2), 'float64'))
    other = pickle.loads(pickle.dumps(error))
    assert str(other) == (
        'Noise gave an array of shape (2, 3), dtype float32 at first, and of shape (3, 2), dtype float64 when it was '
        'recomputed; set ooc_recompute = False on the class of a function whose result depends on anything but its '
        'inputs')
    assert (other.recorded, other.recomputed) == (((2, 3), 'float32'), ((3, 2), 'float64'))


def test_a_plan_that_does_not_hold_says_what_differs_and_travels():
    error = errors.PlanMismatchError('machine', "'a'", "'b'", 'delete the file')
    other = pickle.loads(pickle.dumps(error))
    assert str(other) == "the saved plan is for another machine: made for 'a', here it is 'b'; delete the file"
    assert (other.what, other.saved, other.present, other.next_step) == ('machine', "'a'", "'b'", 'delete the file')


@pytest.mark.parametrize('kind', sorted(
    set(BUILT_INS) - WITH_VALUES, key=lambda kind: kind.__name__))
def test_other_errors_travel_too(kind):
    other = pickle.loads(pickle.dumps(kind('what failed')))
    assert (type(other), str(other)) == (kind, 'what failed')
