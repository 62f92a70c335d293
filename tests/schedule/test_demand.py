"""Where each map lies in near memory, and what each position needs. `|` marks the beginning of backward."""
import pytest

from chainer_ooc.problem import Standing, Verdict
from chainer_ooc.schedule.chains import find_chains
from chainer_ooc.schedule.schedule import demand, residency

KEEP, SWAP = Verdict.KEEP, Verdict.SWAP
NOTHING = Standing(0, 0)


@pytest.fixture
def lives(trace_of):
    """Residency of a single map of 10 bytes in an iteration of three calls and three steps."""
    def lives(producer, last, uses, verdict, min_bytes=1, mapped=False, **attributes):
        trace = trace_of([0] * 3, [0] * 3, [(10, producer, last, uses, attributes)])
        return residency(trace, trace.maps[0], verdict, min_bytes, find_chains(trace, (verdict,)), mapped=mapped)
    return lives


def drawn(intervals, positions=6):
    """'.##|#..': where a map lies, position by position."""
    marks = ['.'] * positions
    for first, last in intervals:
        marks[first:last + 1] = '#' * max(0, last + 1 - first)
    return ''.join(marks[:3]) + '|' + ''.join(marks[3:])


def test_a_kept_map_lives_from_the_position_after_its_call_to_its_last_backward_use(lives):
    #                         012 345
    # call 0 makes it, within its own peak; call 1 reads it; steps 3 and 4 read it
    assert drawn(lives(0, 1, [3, 4], KEEP)) == '.##|##.'


def test_a_swapped_map_is_away_between_its_last_forward_and_its_first_backward_use(lives):
    #                         012 345
    assert drawn(lives(0, 1, [4, 5], SWAP)) == '.#.|.##'


def test_a_map_that_is_read_where_it_is_never_comes_back(lives):
    #                                      012 345
    assert drawn(lives(0, 1, [4, 5], SWAP, mapped=True)) == '.#.|...'
    assert drawn(lives(0, 1, [4, 5], KEEP, mapped=True)) == '.##|###'


def test_a_swapped_map_stays_between_its_backward_uses(lives):
    #                         012 345
    assert drawn(lives(0, 0, [3, 5], SWAP)) == '...|###'


def test_a_swapped_map_that_only_its_own_call_sees_leaves_at_once(lives):
    #                         012 345
    assert drawn(lives(1, 1, [4], SWAP)) == '...|.#.'


def test_a_map_of_the_last_call_swapped_comes_back_for_its_use(lives):
    #                         012 345
    assert drawn(lives(2, 2, [3], SWAP)) == '...|#..'


def test_a_swapped_map_that_backward_never_reads_does_not_come_back(lives):
    #                         012 345
    assert drawn(lives(0, 2, [], SWAP, retained=True)) == '.##|...'


def test_what_nobody_retains_dies_after_its_last_forward_use(lives):
    #                         012 345
    assert drawn(lives(0, 2, [], KEEP)) == '.##|...'
    assert drawn(lives(1, 1, [], KEEP)) == '...|...'


def test_what_local_variables_of_the_model_hold_lives_until_they_let_go(lives):
    #                         012 345
    # read by call 1; the model's forward returned, and let go, after call 2 (or in step 3)
    assert drawn(lives(0, 1, [], KEEP, last_alive=2)) == '.##|...'
    assert drawn(lives(0, 1, [], KEEP, last_alive=3)) == '.##|#..'
    assert drawn(lives(0, 1, [], KEEP, last_alive=-1)) == '.#.|...'


def test_a_kept_map_that_is_retained_but_never_read_lives_as_long_as_the_graph(lives):
    #                         012 345
    assert drawn(lives(0, 1, [], KEEP, retained=True)) == '.##|###'


def test_a_small_map_is_not_worth_freeing(lives):
    #                         012 345
    assert drawn(lives(0, 1, [3], KEEP, min_bytes=11)) == '.##|###'
    assert drawn(lives(0, 1, [3], KEEP, min_bytes=10)) == '.##|#..'


@pytest.mark.parametrize('verdict', [KEEP, SWAP])
def test_a_foreign_map_cannot_be_freed(lives, verdict):
    #                         012 345
    assert drawn(lives(0, 1, [3], verdict, foreign=True)) == '.##|###'


@pytest.mark.parametrize('verdict', [KEEP, SWAP])
def test_a_batch_from_outside_lies_there_all_the_time(lives, verdict):
    #                         012 345
    assert drawn(lives(None, 0, [5], verdict, foreign=True)) == '###|###'


# call     0    1    2  |  2    1    0
# position 0    1    2     3    4    5
# calls   +5   +6   +7    +1   +2   +3     what each allocates
# a 10         ##   ##    ##   ##   ##     made by 0, read by 1; steps 4 and 5 (kept: alive in between)
# b 20              ##    ##   ##          made by 1, read by 2; steps 3 and 4
# c 40                                       made by 0 and not retained: it dies with its call
CALLS, STEPS = [5, 6, 7], [1, 2, 3]
MAPS = [(10, 0, 1, [4, 5]), (20, 1, 2, [3, 4]), (40, 0, 0, [])]


def test_demand_of_kept_maps(trace_of):
    # position   0    1    2  |  3    4    5
    # computing  5    6    7     1    2    3
    # a               10   10    10   10   10
    # b                    20    20   20
    need = demand(trace_of(CALLS, STEPS, MAPS), (KEEP, KEEP, KEEP), NOTHING, 1)
    assert need.tolist() == [5, 16, 37, 31, 32, 13]


def test_demand_of_swapped_maps(trace_of):
    # position   0    1    2  |  3    4    5
    # computing  5    6    7     1    2    3
    # a               10                10   10
    # b                    20    20   20
    need = demand(trace_of(CALLS, STEPS, MAPS), (SWAP, SWAP, KEEP), NOTHING, 1)
    assert need.tolist() == [5, 16, 27, 21, 32, 13]


def test_what_stands_counts_in_its_own_half(trace_of):
    # position   0    1    2  |  3    4    5
    # standing  100  100  100   60   60   60     the old gradients are gone when backward begins
    # others     .    .    .     0    7    9     the new ones appear
    need = demand(trace_of(CALLS, STEPS, [], others=[0, 7, 9]), (), Standing(100, 60), 1)
    assert need.tolist() == [105, 106, 107, 61, 69, 72]


def test_what_lives_beside_maps_in_forward_counts_there(trace_of):
    # position   0    1    2  |  3    4    5
    # others     0    4    9     3    0    0     scratch of forward calls; what of it is still there in backward
    need = demand(trace_of(CALLS, STEPS, [], others=[3, 0, 0], forward_others=[0, 4, 9]), (), NOTHING, 1)
    assert need.tolist() == [5, 10, 16, 4, 2, 3]


def test_demand_is_exact_beyond_32_bits(trace_of):
    huge = 2**40
    need = demand(trace_of([huge], [huge], [(huge, 0, 0, [1])]), (KEEP,), Standing(huge, huge), 1)
    assert need.tolist() == [2 * huge, 3 * huge]


def test_an_iteration_without_backward_or_without_anything_has_a_demand(trace_of):
    assert demand(trace_of([5], [], [(10, None, 0, [])]), (KEEP,), NOTHING, 1).tolist() == [15]
    assert demand(trace_of([], [], []), (), NOTHING, 1).tolist() == []


def test_a_verdict_too_few_is_a_fault(trace_of):
    with pytest.raises(ValueError, match='zip'):
        demand(trace_of(CALLS, STEPS, MAPS), (KEEP, KEEP), NOTHING, 1)
