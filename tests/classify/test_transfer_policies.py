"""The policies that only keep and swap, on iterations that are small enough to draw.

In the drawings `m` is where a map is made, `|` where backward begins, `u` a use there. Links move 10 bytes a second.
"""
import dataclasses
import random

import pytest

from chainer_ooc.classify.policies import POLICIES, lms
from chainer_ooc.classify.search import evaluate
from chainer_ooc.cost.costs import measured
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.plans.making import make_plan
from chainer_ooc.problem import EARLY, WITH_THE_STEP_BEFORE, Decision, Problem, Standing, Starts, Verdict
from chainer_ooc.schedule.schedule import SwapIn
from chainer_ooc.trace import Call, FeatureMap, Step, Trace

KEEP, SWAP = Verdict.KEEP, Verdict.SWAP
OURS = ['vdnn-all', 'vdnn-conv', 'vdnn++', 'capacity', 'lms', 'window', 'unified']


def problem(calls, steps, maps, budget_bytes=10**9, min_bytes=1, standing=(0, 0), rate=10.0):
    """A literal iteration.

    Args:
        calls: (seconds, bytes at its highest, and, if it matters, label and inputs) of each.
        steps: (seconds, bytes at its highest) of each; they undo the calls in reverse.
        maps: (bytes, producer, last forward use, backward uses), and a dict of attributes if not as usual.
        budget_bytes: of the problem.
        min_bytes: of the problem.
        standing: bytes in forward and in backward.
        rate: bytes a second of both links.
    """
    rows = [(seconds, peak, *(rest or ('Layer', ()))) for seconds, peak, *rest in calls]
    trace = Trace(
        device='host',
        calls=tuple(Call(index, label, tuple(inputs), (), (), seconds, peak)
                    for index, (seconds, peak, label, inputs) in enumerate(rows)),
        steps=tuple(Step(len(calls) + number, len(calls) - 1 - number, (), seconds, peak, 0)
                    for number, (seconds, peak) in enumerate(steps)),
        maps=tuple(feature_map(map_id, *row) for map_id, row in enumerate(maps)), seconds=1.0,
        write_bytes_per_second=rate, read_bytes_per_second=rate)
    return Problem(trace, measured(trace), Standing(*standing), budget_bytes, min_bytes)


def feature_map(map_id, nbytes, producer, last_forward_use, uses, attributes=None):
    usual = FeatureMap(map_id, nbytes, producer, False, True, False, last_forward_use, tuple(uses), (nbytes,), 'uint8')
    return dataclasses.replace(usual, **(attributes or {}))


def chain(sizes, budget_bytes=10**9, forward_seconds=1.0, backward_seconds=1.0, **others):
    """Call i makes map i, which call i + 1 reads; the step of call i reads map i and needs nothing else::

        position   0  1  2  3 | 4  5  6  7
        map 0      m  .           .  .  .  u
        map 3               m   u
    """
    last = len(sizes) - 1
    maps = [(nbytes, index, min(index + 1, last), [2 * last + 1 - index]) for index, nbytes in enumerate(sizes)]
    return problem([(forward_seconds, nbytes) for nbytes in sizes], [(backward_seconds, 0)] * len(sizes), maps,
                   budget_bytes, **others)


def decide(name, found):
    return POLICIES[name].decide(found)


def kept(name, found):
    """Ids of the maps that stay."""
    return {each for each, verdict in enumerate(decide(name, found).verdicts) if verdict is KEEP}


def starts(name, found):
    """Where each map's swap-in starts."""
    return {each.map: each.start for each in make_plan(POLICIES[name], found).swap_ins}


def any_problem(seed):
    """Drawn at random: uses anywhere, maps that may not leave, computations that allocate."""
    draw = random.Random(seed)
    calls, steps = draw.randint(1, 8), draw.randint(1, 10)
    maps = []
    for _ in range(draw.randint(0, 10)):
        producer = draw.choice([None, draw.randrange(calls)])
        uses = sorted(draw.sample(range(calls, calls + steps), min(steps, draw.randint(0, 3))))
        maps.append((draw.randint(0, 50), producer, draw.randint(producer or 0, calls - 1), uses, {
            'foreign': draw.random() < 0.1, 'reused': draw.random() < 0.1, 'held': draw.random() < 0.1,
            'retained': bool(uses) or draw.random() < 0.5, 'last_held': draw.choice([-1, draw.randrange(calls)])}))
    return problem([(draw.random(), draw.randint(0, 50)) for _ in range(calls)],
                   [(draw.random(), draw.randint(0, 50)) for _ in range(steps)],
                   maps, draw.randint(50, 400), min_bytes=5, standing=(draw.randint(0, 50), draw.randint(0, 50)))


# --- all of them -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('name', OURS)
def test_only_what_can_leave_is_swapped(name):
    found = problem([(1, 0, 'Convolution2DFunction', range(6))], [(1, 0)], [
        (10, 0, 0, [1]), (4, 0, 0, [1]), (10, 0, 0, [1], {'foreign': True}), (10, 0, 0, [1]),
        (10, 0, 0, [], {'retained': False}), (5, 0, 0, [1])], budget_bytes=1, min_bytes=5)
    assert kept(name, found) == {1, 2, 4}


@pytest.mark.parametrize('name', OURS)
def test_the_same_problem_gives_the_same_decision(name):
    for seed in range(20):
        assert decide(name, any_problem(seed)) == decide(name, any_problem(seed))


@pytest.mark.parametrize('name', OURS)
def test_a_plan_keeps_within_the_budget_or_the_refusal_names_a_floor_that_works(name):
    refused = 0
    for seed in range(300):
        found = any_problem(seed)
        if not evaluate(found, decide(name, found)).fits:
            refused += 1
            with pytest.raises(InfeasibleBudgetError) as error:
                make_plan(POLICIES[name], found)
            assert error.value.floor_bytes > found.budget_bytes
            found = dataclasses.replace(found, budget_bytes=error.value.floor_bytes)
        plan = make_plan(POLICIES[name], found)
        assert plan.peak_bytes <= found.budget_bytes
    assert 20 < refused < 280


@pytest.mark.parametrize('name', ['vdnn-all', 'vdnn++', 'capacity', 'window', 'unified'])
def test_what_swap_all_can_train_they_can(name):
    feasible = 0
    for seed in range(300):
        found = any_problem(seed)
        if evaluate(found, decide('swap-all', found)).fits:
            feasible += 1
            make_plan(POLICIES[name], found)
    assert feasible > 20


@pytest.mark.parametrize('name', ['capacity', 'lms', 'window'])
def test_with_room_for_everything_everything_stays(name):
    assert kept(name, chain([10] * 5)) == {0, 1, 2, 3, 4}


# --- vDNN ------------------------------------------------------------------------------------------------------------


def test_vdnn_all_swaps_everything_with_the_step_before_and_waits():
    found = chain([10] * 3)
    assert decide('vdnn-all', found) == Decision((SWAP,) * 3, WITH_THE_STEP_BEFORE, synchronous=True)


def test_vdnn_all_waits_at_the_end_of_each_layer_and_vdnn_pp_does_not():
    # Calls take 5 s, steps 1 s, copies 3 s; each of the first three calls makes a map, which leaves after it.
    #
    # seconds   0    5    0    5    0    5    0    5    0    5
    # vdnn-all
    # compute   [F0 ]   [F1 ]   [F2 ]   [F3 ][F4 ]BB  B  B  B       up to 45
    # copy-out       [0]     [1]     [2]
    # copy-in                                      [2][1][0]
    # vdnn++
    # compute   [F0 ][F1 ][F2 ][F3 ][F4 ]BB  B  B  B                up to 36
    # copy-out       [0]  [1]  [2]
    # copy-in                             [2][1][0]
    found = problem([(5, 0)] * 5, [(1, 0)] * 5, [(30, index, index, [9 - index]) for index in range(3)])
    assert evaluate(found, decide('vdnn-all', found)).seconds == 45
    assert evaluate(found, decide('vdnn++', found)).seconds == 36


@pytest.mark.parametrize(('swap_seconds', 'step_seconds'), [(3, 5), (5, 3), (4, 4)])
def test_a_step_of_vdnn_takes_the_longer_of_its_computation_and_the_swap_in_beside_it(swap_seconds, step_seconds):
    """OOC-Paleo, formula 7."""
    size, layers = 10 * swap_seconds, 6
    found = problem([(1, 0)] * layers, [(step_seconds, 0)] * layers,
                    [(size, index, index, [2 * layers - 1 - index]) for index in range(layers)])
    one_more = problem([(1, 0)] * (layers + 1), [(step_seconds, 0)] * (layers + 1),
                       [(size, index, index, [2 * layers + 1 - index]) for index in range(layers + 1)])
    forward_seconds = 1 + swap_seconds  # its swap-out is waited for
    assert (evaluate(one_more, decide('vdnn-all', one_more)).seconds
            - evaluate(found, decide('vdnn-all', found)).seconds) == forward_seconds + max(swap_seconds, step_seconds)


def test_vdnn_pp_is_vdnn_all_without_the_waits():
    found = chain([10] * 4)
    assert decide('vdnn++', found) == dataclasses.replace(decide('vdnn-all', found), synchronous=False)


def test_vdnn_conv_swaps_what_convolutions_read_while_the_convolution_before_runs():
    # position   0     1     2     3  |  4     5     6     7
    #            conv  relu  conv  relu  relu  conv  relu  conv
    # map 0      .                                         u      the batch: with conv at 5
    # map 1      m     .                          u               of relu alone: stays
    # map 2            m     .               u                    no convolution before 5: when backward begins
    # map 3                  m     .   u
    found = problem(
        [(1, 0, 'Convolution2DFunction', [0]), (1, 0, 'ReLU', [1]), (1, 0, 'ConvolutionND', [2]), (1, 0, 'ReLU', [3])],
        [(1, 0)] * 4, [(10, None, 0, [7]), (10, 0, 1, [6]), (10, 1, 2, [5]), (10, 2, 3, [4])])
    assert decide('vdnn-conv', found) == Decision(
        (SWAP, KEEP, SWAP, KEEP), Starts(ahead=1, gates=(5, 7)), synchronous=True)
    assert starts('vdnn-conv', found) == {2: 4, 0: 5}


def test_vdnn_conv_without_a_convolution_keeps_everything():
    assert kept('vdnn-conv', chain([10] * 3)) == {0, 1, 2}


# --- capacity --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(('budget_bytes', 'stay'), [(20, {2, 3}), (29, {2, 3}), (30, {1, 2, 3}), (40, {0, 1, 2, 3})])
def test_capacity_keeps_from_the_output_backwards_what_fits(budget_bytes, stay):
    # position   0  1  2  3 | 4  5  6  7       with two maps that stay
    # computing 10 10 10 10   0  0  0  0
    # map 0         =                 u
    # map 1            =           u
    # map 2               =   =  u
    # map 3                   u
    # need      10 20 20 20  20 10 10 10
    found = chain([10] * 4, budget_bytes)
    assert kept('capacity', found) == stay
    assert decide('capacity', found).starts == EARLY


def test_what_a_kept_map_frees_lets_the_next_swap_in_start():
    # position   0  1  2  3 | 4  5  6  7
    # need      10 20 20 20  20 10 10 10       budget 20
    # map 1                      [= u
    # map 0                         [= u
    assert make_plan(POLICIES['capacity'], chain([10] * 4, 20)).swap_ins == (SwapIn(1, 5, 6), SwapIn(0, 6, 7))


def test_capacity_stops_at_the_first_map_that_does_not_fit():
    # position   0  1  2  3 | 4  5  6  7
    # map 2 (30) is too large for the budget beside map 3; map 0, which would fit, leaves too
    found = problem([(1, 0)] * 4, [(1, 0)] * 4,
                    [(10, 0, 0, [7]), (10, 1, 1, [6]), (30, 2, 2, [5]), (10, 3, 3, [4])], 30)
    assert kept('capacity', found) == {3}


def test_what_backward_never_reads_leaves_under_capacity():
    # position   0  1  2 | 3  4
    # map 1         m                          is retained for nothing
    found = problem([(1, 0)] * 3, [(1, 0)] * 2, [(10, 0, 0, [4]), (10, 1, 1, []), (10, 2, 2, [3])])
    assert kept('capacity', found) == {0, 2}


def test_capacity_tries_one_map_more_or_less_at_a_time_only_at_the_end(monkeypatch):
    from chainer_ooc.classify.policies import capacity
    tried = []
    monkeypatch.setattr(capacity, 'evaluate', lambda *given: tried.append(given) or evaluate(*given))
    found = chain([10] * 300, 1500)
    assert kept('capacity', found) == set(range(150, 300))
    assert len(tried) <= 10


# --- unified ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(('budget_bytes', 'stay'), [(20, {2, 3}), (29, {2, 3}), (30, {1, 2, 3}), (40, {0, 1, 2, 3})])
def test_unified_keeps_what_capacity_keeps_and_has_the_rest_mapped(budget_bytes, stay):
    found = chain([10] * 4, budget_bytes)
    assert kept('unified', found) == kept('capacity', found) == stay
    assert decide('unified', found).mapped and not decide('capacity', found).mapped


def test_unified_keeps_more_than_capacity_where_backward_is_short_of_memory():
    # position   0  1  2 | 3  4  5
    # computing  0  0  0   5 30  5       budget 30: with map 0 or map 1 in it, step 4 does not fit
    # map 0         =           u
    # map 1            =     u
    # map 2               u
    found = problem([(1, 0)] * 3, [(1, 5), (1, 30), (1, 5)], [(10, 0, 0, [5]), (10, 1, 1, [4]), (10, 2, 2, [3])], 30)
    with pytest.raises(InfeasibleBudgetError) as refused:
        make_plan(POLICIES['capacity'], found)
    assert refused.value.floor_bytes == 40
    assert kept('unified', found) == {2}
    plan = make_plan(POLICIES['unified'], found)
    assert (plan.mapped, plan.peak_bytes) == (True, 30)


def test_unified_has_the_system_told_some_steps_ahead_whatever_memory_there_is():
    # position   0 .. 7 | 8  9 10 11 12 13 14 15
    # map 0      =                   [= == == == u
    # map 3        =      [= == == == u
    found = chain([10] * 8, 20)
    assert kept('unified', found) == {6, 7}
    assert starts('unified', found) == {5: 8, 4: 8, 3: 8, 2: 9, 1: 10, 0: 11}


# --- LMS -------------------------------------------------------------------------------------------------------------


def exhaustive(found):
    """The fastest seconds of all pairs of thresholds that fit."""
    tuning = lms._Tuning(found)
    tried = [evaluate(found, tuning.decision(number, ahead))
             for number in range(len(tuning.thresholds)) for ahead in range(1, tuning.most_ahead + 1)]
    return min((each.seconds for each in tried if each.fits), default=None)


def test_lms_swaps_what_is_away_for_longer_than_a_threshold():
    # position   0  1  2  3 | 4  5  6  7
    # map 0         .                 u        away for 6
    # map 1            .           u           4
    # map 2               .     u              2
    # map 3               .  u                 1
    for budget_bytes, stay in ((20, {2, 3}), (30, {1, 2, 3}), (40, {0, 1, 2, 3})):
        assert kept('lms', chain([10] * 4, budget_bytes)) == stay


def test_lms_brings_in_a_fixed_number_of_steps_ahead_whatever_memory_there_is():
    # Steps take 1 s, copies 3 s: three steps ahead hides them. Map 0 is read by the last step alone.
    #
    # position   0  1  2 | 3  4  5  6  7
    # map 0 (30) =                     u
    # map 1 (60)    =      u                   with it there is no room for map 0 at 3
    found = problem([(9, 0), (9, 0), (9, 0)], [(1, 0)] * 5, [(30, 0, 0, [7]), (60, 2, 2, [3])], 80)
    decision = decide('lms', found)
    assert decision == Decision((SWAP, KEEP), Starts(ahead=3, checks_memory=False))
    assert evaluate(found, decision).seconds == 27 + 5
    assert starts('lms', found) == {0: 4}


def test_lms_looks_farther_ahead_though_the_next_steps_gain_nothing():
    # position   0  1 | 2  3  4  5  6
    # seconds    9  9   1  5  0  0  1          only with 3 there is time beside which the copy can run
    # map 0 (50) =               [= u
    found = problem([(9, 0)] * 2, [(1, 0), (5, 0), (0, 0), (0, 0), (1, 0)], [(50, 0, 0, [6]), (60, 1, 1, [2])], 100)
    assert decide('lms', found) == Decision((SWAP, KEEP), Starts(ahead=3, checks_memory=False))


def test_lms_looks_between_the_distances_that_it_tries_first():
    # Steps take 1 s, the copy of map 0 takes 11 s. Until position 9 there is no room for it beside map 1, so that 11
    # steps ahead of position 21 is the best; far ahead, the first search tries 10 and 12.
    found = problem([(50, 0)] * 2, [(1, 0)] * 20, [(110, 0, 0, [21]), (200, 1, 1, [9])], 250)
    assert decide('lms', found) == Decision((SWAP, KEEP), Starts(ahead=11, checks_memory=False))


def test_lms_finds_what_trying_everything_finds():
    for seed in range(60):
        draw = random.Random(seed)
        sizes = [draw.randint(5, 40) for _ in range(draw.randint(3, 9))]
        found = chain(sizes, int(sum(sizes) * draw.uniform(0.5, 1.0)), backward_seconds=draw.choice([1.0, 3.0]))
        best = exhaustive(found)
        if best is not None:
            assert evaluate(found, decide('lms', found)).seconds == pytest.approx(best)


def test_lms_does_not_try_more_than_it_may(monkeypatch):
    tried = []
    monkeypatch.setattr(lms, 'SIMULATIONS', 30)
    monkeypatch.setattr(lms, 'evaluate', lambda *given: tried.append(given) or evaluate(*given))
    found = chain([10 + index % 7 for index in range(250)], 1200)
    decision = decide('lms', found)
    assert len(tried) == 30
    assert evaluate(found, decision).fits and kept('lms', found)


def test_lms_that_nothing_fits_is_refused_with_the_least_that_works():
    # position   0  1  2 | 3  4  5             map 1 comes back with 3, map 0 with 4: one map beside the one in use
    # need      10 20 20  20 20 10
    with pytest.raises(InfeasibleBudgetError) as refused:
        make_plan(POLICIES['lms'], chain([10] * 3, 15))
    assert refused.value.floor_bytes == 20


# --- window ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(('budget_bytes', 'stay', 'back'), [
    # position   0    1    2    3  | 4    5    6    7
    # sequence   0    0 1  1 2  2 3  3    2    1    0
    # at 3                      [= = = = = =]              holds 2 and 3, which stay
    # at 5                                [= = = =]        1 enters, 0 does not
    # at 6                                     [= = = =]   0 enters
    (20, {2, 3}, {1: 5, 0: 6}),
    # at 2                 [= = = = = = = = = = =]         holds 1, 2 and 3
    # at 5                                [= = = = = = =]  0 enters when 3 is gone
    (30, {1, 2, 3}, {0: 5}),
    # at 0       [= = = = = = = = = = = = = = = = = = =]
    (40, {0, 1, 2, 3}, {}),
])
def test_the_window_keeps_what_it_holds_when_forward_uses_end_and_brings_in_what_it_comes_to(budget_bytes, stay, back):
    found = chain([10] * 4, budget_bytes)
    assert kept('window', found) == stay
    assert decide('window', found).starts == Starts(positions=back)
    assert starts('window', found) == back


def test_the_window_holds_many_small_maps_or_few_large_ones():
    # position   0  1  2  3  4  5 | 6  7  8  9 10 11
    # bytes     40 40 40 15 15 15  15 15 15 40 40 40    and 0 to 4 are read by the next call too
    # at 3                [= =]                         2, 3 and 4: 70; so 2 leaves
    # at 4                   [= = = = = = =]            3, 4 and 5: 45; they stay
    # at 7                            [= = =]           4, 3 and 2: 70; 2 comes, two steps ahead
    # at 9                                  [= =]       2 and 1: 80; 1 comes, one step ahead
    found = chain([40, 40, 40, 15, 15, 15], 80)
    assert kept('window', found) == {3, 4, 5}
    assert decide('window', found).starts.positions == {2: 7, 1: 9, 0: 10}


def test_the_window_leaves_room_for_what_the_computations_in_it_allocate():
    # position   0  1  2  3 | 4  5  6  7
    # computing 10 10 10 10   0 15  0  0
    # at 3 the window ends before 5, where 2 and 3 and 15 more would need 35: so 2 leaves
    found = problem([(1, 10)] * 4, [(1, 0), (1, 15), (1, 0), (1, 0)],
                    [(10, 0, 1, [7]), (10, 1, 2, [6]), (10, 2, 3, [5]), (10, 3, 3, [4])], 30)
    assert kept('window', found) == {3}
    assert decide('window', found).starts.positions == {2: 4 + 1, 1: 6, 0: 6}


def test_a_map_that_a_later_iteration_reads_leaves_since_it_would_stay_for_good():
    found = chain([10] * 3)
    maps = (dataclasses.replace(found.trace.maps[0], reused=True), *found.trace.maps[1:])
    found = dataclasses.replace(found, trace=dataclasses.replace(found.trace, maps=maps))
    assert kept('window', found) == {1, 2}


def test_the_window_leaves_room_for_what_somebody_holds_after_its_last_use():
    # position   0  1  2  3 | 4  5  6  7       call 2 has 20 beside the maps
    # map 0      m  h  h                   u   held until 2
    # map 1         m                   u
    # at 1          [= =]                      1, which 0 is beside at 2: so 1 leaves
    found = problem([(1, 10), (1, 10), (1, 20), (1, 0)], [(1, 0)] * 4,
                    [(10, 0, 0, [7], {'last_held': 2}), (10, 1, 1, [6])], 30)
    make_plan(POLICIES['swap-all'], found)
    make_plan(POLICIES['window'], found)
    assert kept('window', found) == set()


def test_without_memory_beside_the_one_in_use_the_window_is_one_map():
    # position   0  1  2 | 3  4  5             a call makes one map and has 10 beside it; so has a step
    found = problem([(1, 20)] * 3, [(1, 10)] * 3, [(10, index, index, [5 - index]) for index in range(3)], 20)
    assert kept('window', found) == {2}
    assert starts('window', found) == {1: 4, 0: 5}
