"""Which mallocs and frees an iteration has, in the order of its timeline.

A line is a position, `<` what happens at the edge before its computation, `=` what happens in it: `+name bytes` is a
malloc, `-name` a free. `m0` is map 0, `t` temporary memory.
"""
import dataclasses

import pytest

from chainer_ooc.cost.costs import Costs
from chainer_ooc.papers.allocators.events import events_of
from chainer_ooc.problem import WITH_THE_STEP_BEFORE, Decision, Problem, Standing, Verdict
from chainer_ooc.schedule.schedule import lay_out
from chainer_ooc.simulate.simulator import simulate
from chainer_ooc.simulate.timeline import Stream, Task, Timeline

KEEP, SWAP, RECOMPUTE = Verdict.KEEP, Verdict.SWAP, Verdict.RECOMPUTE
NOTHING = Standing(0, 0)
NAMES = {'temporary': 't', 'gradients': 'g', 'others': 'o', 'old gradients': 'old', 'standing': 's'}


def shown(events):
    """The events as lines."""
    lines = {}
    for event in events:
        name = NAMES.get(event.purpose, event.purpose.replace('map ', 'm'))
        word = f'+{name} {event.nbytes}' if event.kind == 'malloc' else f'-{name}'
        lines.setdefault((event.position, '<' if event.at_edge else '='), []).append(word)
    return [f'{position} {side} {"  ".join(words)}' for (position, side), words in lines.items()]


def derive(trace, verdicts=None, standing=NOTHING, budget_bytes=10**6, recalls=True, **decision):
    """The lines of an iteration whose positions take 10 s each, and copies a second for each byte."""
    costs = Costs((10.0,) * trace.positions, 1.0, 1.0)
    problem = Problem(trace, costs, standing, budget_bytes, 1, recalls=recalls)
    schedule = lay_out(problem, Decision(verdicts or (KEEP,) * len(trace.maps), WITH_THE_STEP_BEFORE, **decision))
    return shown(events_of(problem, schedule, simulate(problem, schedule)))


def test_a_call_allocates_its_output_and_then_what_it_needs_besides(trace_of):
    # map 0 is made by call 0 and read by step 2; map 1 dies with call 1
    trace = trace_of([10, 7], [5, 6], [(4, 0, 0, [2]), (3, 1, 1, [])])
    assert derive(trace) == [
        '-1 < +s 0',
        '0 = +m0 4  +t 6  -t',
        '1 = +m1 3  +t 4  -t  -m1',
        '2 = +t 5  -t  -m0',
        '3 = +t 6  -t']


def test_what_comes_from_outside_is_there_before_the_first_call(trace_of):
    trace = trace_of([10], [5], [(4, None, 0, [1])])
    assert derive(trace) == ['-1 < +s 0', '0 < +m0 4', '0 = +t 10  -t', '1 = +t 5  -t  -m0']


def test_what_still_lives_is_freed_at_the_end_of_the_iteration(trace_of):
    trace = trace_of([10], [5], [(4, 0, 0, [1], {'held': True}), (2, None, 0, [], {'foreign': True})])
    assert derive(trace)[-1] == '1 = +t 5  -t  -m0  -m1'


def test_standing_memory_is_one_block_and_old_gradients_go_before_backward(trace_of):
    trace = trace_of([10], [5], [])
    assert derive(trace, standing=Standing(9, 6)) == [
        '-1 < +s 6', '0 < +old 3', '0 = +t 10  -t', '1 < -old', '1 = +t 5  -t']
    assert derive(trace, standing=Standing(6, 9)) == ['-1 < +s 6', '0 = +t 10  -t', '1 < +s 3', '1 = +t 5  -t  -s']


def test_what_lives_beside_maps_in_forward_grows_with_its_calls_and_goes_where_it_is_less(trace_of):
    # other bytes   0: 2   1: 5   2: 1
    trace = trace_of([4, 4], [4], [], [1], [2, 5])
    assert derive(trace)[1:] == ['0 < +o 2', '0 = +o 3  +t 1  -t', '1 = +t 4  -t', '2 < -o  -o  +g 1',
                                 '2 = +t 4  -t  -g']


def test_gradients_grow_as_part_of_what_the_step_before_allocates(trace_of):
    # other bytes   1: 2   2: 5   3: 5
    trace = trace_of([1], [4, 4, 4], [], [2, 5, 5])
    assert derive(trace)[2:] == ['1 < +g 2', '1 = +g 3  +t 1  -t', '2 = +t 4  -t', '3 = +t 4  -t  -g  -g']


def test_gradients_that_outgrow_a_step_come_behind_it(trace_of):
    trace = trace_of([1], [4, 4], [], [2, 9])
    assert derive(trace)[2:] == ['1 < +g 2', '1 = +t 4  -t', '2 < +g 7', '2 = +t 4  -t  -g  -g']


def test_where_gradients_shrink_the_youngest_go(trace_of):
    # other bytes   1: 2   2: 8   3: 4     of the 6 that came with step 1 two are left: a block of 2, and the 6 go
    trace = trace_of([1], [6, 6, 6], [], [2, 8, 4])
    assert derive(trace)[2:] == [
        '1 < +g 2', '1 = +g 6  +t 0  -t', '2 = +g 2  +t 4  -t  -g', '3 = +t 6  -t  -g  -g']


def test_a_swapped_map_is_freed_when_its_copy_is_whole_and_comes_back_when_that_is_issued(trace_of):
    # compute   [F0     ][F1     ][F2     ][B3     ][B4     ][B5     ]
    # copy-out           [m0 15s       ]
    # copy-in                                       [m0 15s       ]
    trace = trace_of([20, 2, 2], [3, 3, 3], [(15, 0, 0, [5])])
    assert derive(trace, (SWAP,)) == [
        '-1 < +s 0', '0 = +m0 15  +t 5  -t', '1 = +t 2  -t', '2 = +t 2  -t', '3 < -m0', '3 = +t 3  -t',
        '4 < +m0 15', '4 = +t 3  -t', '5 = +t 3  -t  -m0']


def test_a_map_that_is_wanted_before_its_copy_is_whole_stays(trace_of):
    # compute   [F0     ][B1     ][B2     ]
    # copy-out           [m0 15s       ]
    trace = trace_of([20], [3, 3], [(15, 0, 0, [2])])
    assert derive(trace, (SWAP,)) == [
        '-1 < +s 0', '0 = +m0 15  +t 5  -t', '1 = +t 3  -t', '2 = +t 3  -t  -m0']


def test_a_map_that_stayed_is_not_freed_before_its_copy_is_whole(trace_of):
    # compute   [F0     ][B1     ][B2     ][B3     ]
    # copy-out           [m0 15s       ]
    trace = trace_of([20], [3, 3, 3], [(15, 0, 0, [1])])
    assert derive(trace, (SWAP,)) == [
        '-1 < +s 0', '0 = +m0 15  +t 5  -t', '1 = +t 3  -t', '2 = +t 3  -t', '3 < -m0', '3 = +t 3  -t']


def test_without_recall_a_map_that_is_still_leaving_keeps_its_memory_until_it_is_back(trace_of):
    # compute   [F0     ][F1     ][B2     ]      [B3           wanted by 3, asked for with 2
    # copy-out           [m0      ][m1      ]
    # copy-in                               [m1      ]
    trace = trace_of([9, 9], [3, 3, 3], [(9, 0, 0, [4]), (9, 1, 1, [3])])
    assert derive(trace, (SWAP, SWAP), recalls=False) == [
        '-1 < +s 0', '0 = +m0 9  +t 0  -t', '1 = +m1 9  +t 0  -t', '2 < -m0', '2 = +t 3  -t', '3 < +m0 9',
        '3 = +t 3  -t  -m1', '4 = +t 3  -t  -m0']


def test_without_recall_what_leaves_before_it_is_free_when_its_own_copy_is_whole(trace_of):
    # compute   [F0     ][F1     ][B2     ]                    m0 leaves until 35, m1 after it; 2 asks for m1
    # copy-out           [m0                      ][m1      ]
    trace = trace_of([25, 9], [3, 3, 3], [(25, 0, 0, [4]), (9, 1, 1, [3])])
    lines = derive(trace, (SWAP, SWAP), recalls=False)
    assert '2 = +t 3  -t' in lines
    assert not any(line.startswith('2 <') for line in lines)  # nothing is free yet when 2 computes, from 20 to 30


def test_a_swapped_map_that_nobody_reads_again_goes_for_good(trace_of):
    trace = trace_of([20, 2, 2], [3], [(5, 0, 0, [], {'retained': True})])
    assert derive(trace, (SWAP,)) == [
        '-1 < +s 0', '0 = +m0 5  +t 15  -t', '1 = +t 2  -t', '2 < -m0', '2 = +t 2  -t', '3 = +t 3  -t']


def test_a_swap_in_at_an_edge_comes_before_swap_outs_that_are_noticed_there(trace_of):
    # compute   [F0     ][F1     ][F2     ][B3     ][B4     ][B5     ]
    # copy-out           [m0  ]            [m1  ]
    # copy-in                                       [m0  ]
    trace = trace_of([20, 2, 10], [3, 3, 3], [(5, 0, 0, [5]), (5, 2, 2, [], {'retained': True})])
    assert derive(trace, (SWAP, SWAP))[3:] == [
        '2 < -m0', '2 = +m1 5  +t 5  -t', '3 = +t 3  -t', '4 < +m0 5  -m1', '4 = +t 3  -t', '5 = +t 3  -t  -m0']


def test_a_swap_in_that_waits_for_memory_comes_after_the_swap_out_that_frees_it(trace_of):
    # compute   [F0     ][F1     ][F2     ]              [B3     ]
    # copy-out           [m0  ]            [m1 15s      ]
    # copy-in                                             [m0  ]     with a budget of 20: 15 + 5 + 3 are too much
    trace = trace_of([20, 2, 20], [3, 3], [(5, 0, 0, [3]), (15, 2, 2, [4])])
    lines = derive(trace, (SWAP, SWAP), budget_bytes=20)
    assert '3 < -m1  +m0 5' in lines


def test_where_copies_are_waited_for_a_swap_in_comes_after_the_swap_outs_before_it(trace_of):
    # compute   [F0     ]      [F1     ]             [B2     ][B3     ]
    # copy-out           [m0  ]         [m1 12s     ]                       both are waited for
    # copy-in                                        [m0  ]
    trace = trace_of([20, 20], [3, 3], [(5, 0, 0, [3]), (12, 1, 1, [], {'retained': True})])
    problem = Problem(trace, Costs((10.0,) * 4, 1.0, 1.0), NOTHING, 10**6, 1)
    schedule = lay_out(problem, Decision((SWAP, SWAP), WITH_THE_STEP_BEFORE, synchronous=True))
    tasks = (
        Task(Stream.COMPUTE, 0, 0.0, 10.0), Task(Stream.COPY_OUT, 0, 10.0, 15.0),
        Task(Stream.COMPUTE, 1, 15.0, 25.0), Task(Stream.COPY_OUT, 1, 25.0, 37.0),
        Task(Stream.COPY_IN, 0, 37.0, 42.0), Task(Stream.COMPUTE, 2, 37.0, 47.0), Task(Stream.COMPUTE, 3, 47.0, 57.0))
    assert shown(events_of(problem, schedule, Timeline(57.0, 0, tasks, (), ()))) == [
        '-1 < +s 0', '0 = +m0 5  +t 15  -t', '1 < -m0', '1 = +m1 12  +t 8  -t', '2 < -m1  +m0 5', '2 = +t 3  -t',
        '3 = +t 3  -t  -m0']


def test_a_chain_makes_its_maps_again_before_the_step(trace_of):
    # call      0 -> 1 -> 2      map 0 is kept, maps 1 and 2 are made again for step 3, which reads map 2
    trace = trace_of([9, 7, 8], [10, 3], [(4, 0, 1, [4]), (3, 1, 2, [4]), (5, 2, 2, [3])])
    trace = dataclasses.replace(
        trace, calls=tuple(dataclasses.replace(call, inputs=(call.index - 1,), outputs=(call.index,), repeatable=True)
                           for call in trace.calls),
        steps=tuple(dataclasses.replace(step, maps=maps)
                    for step, maps in zip(trace.steps, [(2,), (0, 1)], strict=True)))
    assert derive(trace, (KEEP, RECOMPUTE, RECOMPUTE), shares_chains=True) == [
        '-1 < +s 0', '0 = +m0 4  +t 5  -t', '1 = +m1 3  +t 4  -t', '2 = +m2 5  +t 3  -t  -m1  -m2',
        '3 = +m1 3  +t 4  -t  +m2 5  +t 3  -t  +t 10  -t  -m2', '4 = +t 3  -t  -m0  -m1']
    # not shared: map 1 passes with the chain of step 3, and is made once more for step 4
    assert derive(trace, (KEEP, RECOMPUTE, RECOMPUTE), shares_chains=False)[4:] == [
        '3 = +m1 3  +t 4  -t  +m2 5  +t 3  -t  -m1  +t 10  -t  -m2', '4 = +m1 3  +t 4  -t  +t 3  -t  -m0  -m1']


@pytest.mark.parametrize(('calls', 'steps'), [(0, 0), (1, 0), (0, 1)])
def test_an_iteration_without_calls_or_steps_has_what_there_is(trace_of, calls, steps):
    trace = trace_of([3] * calls, [4] * steps, [], [5] * steps)
    if steps and not calls:
        trace = dataclasses.replace(trace, steps=(dataclasses.replace(trace.steps[0], call=-1),))
    lines = derive(trace, standing=Standing(1, 2))
    assert lines == {
        (0, 0): ['-1 < +s 2'],
        (1, 0): ['-1 < +s 1', '0 = +t 3  -t'],
        (0, 1): ['-1 < +s 2', '0 < +g 5', '0 = +t 4  -t  -g'],
    }[calls, steps]
