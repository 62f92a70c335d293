"""Step 1 of PoocH on iterations that can be followed by hand. A map of n bytes takes n seconds each way."""
import dataclasses

import pytest

from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.classify.policies.swap_opt import search, unhidden_swap_ins, unhidden_swap_outs
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.plans.making import make_plan
from chainer_ooc.problem import Decision, everything
from chainer_ooc.schedule.schedule import lay_out
from chainer_ooc.simulate.simulator import simulate
from chainer_ooc.simulate.timeline import Cause, Stream
from support.planning.literal_problems import drawn, literal_problem, seconds_of, times_of_all

SWAP_OPT, SWAP_ALL = POLICIES['swap-opt'], POLICIES['swap-all']


def decide(problem):
    return drawn(SWAP_OPT.decide(problem).verdicts)


def own(nbytes, call, again=False):
    """A map that the call makes and that its own step reads."""
    return nbytes, call, (), (call,), again


# Eight layers and a loss, after PoocH's figure 11. Layer n makes map n of 2 bytes, which its step reads. The first five
# layers take 2 s, as long as a copy; the others half a second. Steps of layers take 2 s. 10 bytes of memory:
#
# second    0   2   4   6   8   10  12  14  16  18 19  21  23  25  27  29  31  33  35  37  39  41
# compute   [0 ][1 ][2 ][3 ][4 ]5678................[8]....[7 ]....[6 ][5 ]....[4 ][3 ][2 ][1 ][0 ]
# copy-out      [0 ][1 ][2 ][3 ][4 ][5 ][6 ][7 ]
# copy-in                                              [7 ]    [6 ][5 ]    [4 ][3 ][2 ][1 ][0 ]
#
# The step of the loss fills the memory, so it waits for the last swap-out; so do those of 7 and 5, so that the
# swap-ins of 6 and 4 cannot come early.
FULL, SOME = 7, 4
FIGURE_11 = literal_problem(
    [(2.0, 2)] * 5 + [(0.5, 2)] * 3 + [(0.5, 0)],
    [(1.0, 9), (2.0, FULL), (2.0, SOME), (2.0, FULL), *[(2.0, SOME)] * 5],
    [own(2, layer) for layer in range(8)], budget_bytes=10)


@pytest.fixture(scope='module')
def figure_11():
    return simulate(FIGURE_11, lay_out(FIGURE_11, Decision(everything(FIGURE_11.trace, 1))))


def test_figure_11_is_the_timeline_that_is_drawn(figure_11):
    def copies(stream):
        return [(each.subject, each.start_seconds, each.end_seconds) for each in figure_11.tasks
                if each.stream is stream]

    assert copies(Stream.COPY_OUT) == [
        (0, 2, 4), (1, 4, 6), (2, 6, 8), (3, 8, 10), (4, 10, 12), (5, 12, 14), (6, 14, 16), (7, 16, 18)]
    assert copies(Stream.COPY_IN) == [
        (7, 19, 21), (6, 23, 25), (5, 25, 27), (4, 29, 31), (3, 31, 33), (2, 33, 35), (1, 35, 37), (0, 37, 39)]
    assert figure_11.seconds == 41


def test_swap_outs_that_end_after_forward_are_not_hidden(figure_11):
    assert unhidden_swap_outs(FIGURE_11, figure_11) == {5, 6, 7}


def test_swap_ins_that_are_waited_for_are_not_hidden(figure_11):
    assert unhidden_swap_ins(figure_11) == {7: 2.0, 6: 2.0, 4: 2.0}


def test_a_swap_out_that_memory_waits_for_in_forward_is_not_hidden():
    # second    0 1         5 6         10
    # compute   [0].........[1][2         ][2...
    # copy-out    [0        ]                     4 bytes; call 1 needs the memory
    problem = literal_problem(
        [(1.0, 4), (1.0, 10), (10.0, 0)], [(1.0, 10), (1.0, 0), (1.0, 0)], [own(4, 0)], budget_bytes=10)
    timeline = simulate(problem, lay_out(problem, Decision(everything(problem.trace, 1))))
    assert [(each.map, each.seconds, each.cause) for each in timeline.stalls[:1]] == [(0, 4.0, Cause.MEMORY)]
    assert 0 in unhidden_swap_outs(problem, timeline)


# Maps 0 and 1 leave while call 2 takes its time, and come back one after the other; nothing is there to hide behind.
#
#                    call 0   call 1   call 2  | step 2   step 1   step 0
# peak                  6        4        0        4        0        0
# map 0, 6 bytes                 ######################### (kept) ######
# map 1, 4 bytes                         ############ (kept) #####
#
# bytes that it takes: nothing kept 6, map 1 kept 8, map 0 kept 10 (both, while step 1 runs), both kept 14. To keep
# map 1 saves no time, as it is wanted back while it is still leaving, and stays; but it saves the copy.
TWO = ([(10.0, 6), (10.0, 4), (10.0, 0)], [(0.125, 4), (0.125, 0), (0.125, 0)], [own(6, 0), own(4, 1)])


@pytest.mark.parametrize(('budget_bytes', 'verdicts'), [
    (6, 'SS'), (7, 'SS'), (8, 'SK'), (9, 'SK'), (10, 'KS'), (13, 'KS'), (14, 'KK')])
def test_memory_decides_how_much_is_kept(budget_bytes, verdicts):
    assert decide(literal_problem(*TWO, budget_bytes)) == verdicts


def test_the_tree_finds_what_keeping_one_after_the_other_misses():
    # Maps of 5, 5, 2 and 6 bytes; call 5 and its step leave room for 10. From the output, and from the largest, 3 is
    # kept and then 2 fits, 8 bytes; so they are from the longest wait, as the steps of 2 and 1 hide half a second of
    # the copies behind them. From the smallest 2 and 1 are kept, 7 bytes. The two of 5 bytes would fill the room.
    problem = literal_problem(
        [(10.0, 5), (10.0, 5), (10.0, 2), (10.0, 6), (10.0, 0), (10.0, 20)],
        [(0.125, 20), (0.125, 0), (0.125, 0), (0.5, 0), (0.5, 0), (0.125, 0)],
        [own(5, 0), own(5, 1), own(2, 2), own(6, 3)], 30)
    times = times_of_all(problem)
    assert times['KKSS'] == min(times.values()) < min(times['SSKK'], times['SKKS'], times['KSKS'])
    assert decide(problem) == 'KKSS'


def test_a_map_whose_copies_are_hidden_is_swapped_by_the_search_and_spared_where_there_is_memory():
    # second    0         10        20        30   31   35        45   47
    # compute   [0        ][1        ][2        ][2 ]    [1        ][0]
    # copy-out            [0 ]      [1   ]
    # copy-in                                        [1   ][0 ]           step 2 leaves no room for an early start
    problem = literal_problem(
        [(10.0, 2), (10.0, 4), (10.0, 0)], [(1.0, 7), (10.0, 0), (2.0, 0)], [own(2, 0), own(4, 1)], 9)
    assert seconds_of(problem, 'KS') == seconds_of(problem, 'SS') == 47
    assert drawn(search(problem).best.verdicts) == 'SS'
    assert decide(problem) == 'KS'


def test_of_two_that_save_the_same_the_one_nearer_to_the_output_is_kept():
    # Maps of 5, 5 and 4 bytes, made in no time; call 3 leaves room for 5. Swapping all it waits for 0 and 1, 10 bytes;
    # with one of them kept for the other and 2, 9 bytes; with 2 kept it waits for 0 and 1 again.
    #
    # second    0    5   9 10  14
    # compute   .........[3             ]      1 kept
    # copy-out  [0  ][2 ]
    # compute   ...........[3             ]    all swapped
    # copy-out  [0  ][1  ][2 ]
    problem = literal_problem(
        [(0.0, 5), (0.0, 5), (0.0, 4), (30.0, 10)], [(8.0, 0), (30.0, 0), (30.0, 0), (30.0, 0)],
        [own(5, 0), own(5, 1), own(4, 2)], 15)
    times = times_of_all(problem)
    assert times['KSS'] == times['SKS'] == min(times.values())
    assert times['SSK'] == times['SSS'] == times['SKS'] + 1
    assert decide(problem) == 'SKS'


def test_everything_is_kept_if_it_fits_even_where_swapping_would_cost_no_time():
    ample = dataclasses.replace(FIGURE_11, budget_bytes=100)
    assert seconds_of(ample, 'S' * 8) == seconds_of(ample, 'K' * 8)
    assert decide(ample) == 'K' * 8


def test_below_the_floor_all_is_swapped_and_the_plan_refused_with_the_floor():
    problem = literal_problem(*TWO, 5)
    assert decide(problem) == 'SS'
    with pytest.raises(InfeasibleBudgetError) as caught:
        make_plan(SWAP_OPT, problem)
    assert caught.value.floor_bytes == 6
    assert make_plan(SWAP_OPT, dataclasses.replace(problem, budget_bytes=6)).peak_bytes == 6


@pytest.mark.parametrize('name', ['swap-opt', 'pooch'])
def test_without_time_the_answer_fits_and_is_no_slower_than_swapping_all(name):
    for problem in (FIGURE_11, *(literal_problem(*TWO, budget_bytes) for budget_bytes in (6, 10, 14))):
        hurried = dataclasses.replace(problem, limit_seconds=0.0)
        plan = make_plan(POLICIES[name], hurried)
        assert plan.peak_bytes <= hurried.budget_bytes
        assert plan.seconds <= make_plan(SWAP_ALL, hurried).seconds


def test_time_that_is_up_ends_the_search(monkeypatch):
    asked = []

    class Clock:
        @staticmethod
        def monotonic():
            asked.append(None)
            return float(len(asked))

    monkeypatch.setattr('chainer_ooc.classify.search.time', Clock)
    problem = literal_problem(*TWO, 10, limit_seconds=1.0)
    assert decide(problem) == 'SS', 'found without any time, so the limit is not what ended it'


def test_ten_searches_give_one_decision():
    decisions = [SWAP_OPT.decide(dataclasses.replace(literal_problem(*TWO, 10))) for _ in range(10)]
    assert all(each == decisions[0] for each in decisions)
