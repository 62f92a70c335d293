"""What near memory holds is divided by kind, and nothing is lost or counted twice."""
import dataclasses

import pytest
from hypothesis import given

from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.problem import Verdict, problem_of
from chainer_ooc.report.memory import GRADIENTS, MOST_BLOCKS, OTHERS, PARAMETERS, SCRATCH, by_kind, find_blocks
from chainer_ooc.schedule.schedule import lay_out
from chainer_ooc.simulate.simulator import simulate
from support.planning.drawn_trace import MB, TRACE, a_map
from support.planning.random_problems import problems


def at_paths(*paths):
    """The drawn trace, its calls made in links of these paths."""
    calls = tuple(dataclasses.replace(call, path=path) for call, path in zip(TRACE.calls, paths, strict=True))
    return dataclasses.replace(TRACE, calls=calls)


def kinds_of(trace, budget_bytes=9 * MB, policy='swap-all'):
    problem = problem_of(trace, budget_bytes, 0)
    schedule = lay_out(problem, POLICIES[policy].decide(problem))
    return {each.name: [nbytes // MB for nbytes in each.nbytes] for each in by_kind(
        problem, schedule, simulate(problem, schedule), find_blocks(trace))}


@given(problems())
def test_kinds_together_are_what_memory_holds(given):
    problem, schedule = given
    timeline = simulate(problem, schedule)
    kinds = by_kind(problem, schedule, timeline, find_blocks(problem.trace))
    assert [sum(column) for column in zip(*(each.nbytes for each in kinds), strict=True)] == [*timeline.near_bytes]
    assert min((nbytes for each in kinds if each.name != SCRATCH for nbytes in each.nbytes), default=0) >= 0
    most = [*(each.peak_bytes + each.other_bytes for each in problem.trace.calls),
            *(each.peak_bytes for each in problem.trace.steps)]
    assert all(nbytes <= most[position] for position, nbytes in enumerate(kinds[-1].nbytes)
               if position not in schedule.chains.calls_at)


def test_the_drawn_iteration_holds_this():
    """Map 1 stays for call 2, which waits until map 0's successor has left: see drawn_trace.py."""
    assert kinds_of(at_paths('/a', '/b', '/b')) == {
        PARAMETERS: [1] * 6, GRADIENTS: [0] * 6,
        'a': [4, 4, 0, 0, 4, 0], 'b': [0, 2, 2, 2, 0, 0], OTHERS: [1] * 6, SCRATCH: [0, 0, 5, 5, 0, 0]}


def test_gradients_that_stand_in_forward_are_no_parameters():
    found = kinds_of(dataclasses.replace(TRACE, standing_forward_bytes=3 * MB), 12 * MB)
    assert (found[PARAMETERS], found[GRADIENTS]) == ([1] * 6, [2, 2, 2, 0, 0, 0])


def test_gradients_in_backward_are_what_steps_begin_with():
    steps = tuple(dataclasses.replace(each, other_bytes=number * MB) for number, each in enumerate(TRACE.steps))
    assert kinds_of(dataclasses.replace(TRACE, steps=steps), 12 * MB)[GRADIENTS] == [0, 0, 0, 0, 1, 2]


@pytest.mark.parametrize(('paths', 'names'), [
    (('/predictor/a/x', '/predictor/b/y', '/predictor/c'), ('a', 'b')),
    (('/predictor/a/x', '/predictor/a/y', '/'), ('x', 'y')),
    (('/a', '/b', '/c'), ('a', 'b')),
    (('', '', ''), ()),
    (('/only', '/only', '/only'), ('only',)),
])
def test_blocks_are_the_links_below_the_one_that_all_are_in(paths, names):
    found = find_blocks(at_paths(*paths))
    assert [each for each in found.names if each != OTHERS] == [*names]
    assert found.of_map[0] == found.names.index(OTHERS), 'the batch is of no block'


def test_small_blocks_and_those_beyond_the_most_are_others():
    count = MOST_BLOCKS + 2
    calls = tuple(dataclasses.replace(TRACE.calls[0], index=each, path=f'/block{each}') for each in range(count))
    maps = tuple(a_map(each, 100 + each, each, each, count + each) for each in range(count))
    found = find_blocks(dataclasses.replace(TRACE, calls=calls, maps=maps))
    assert found.names == (*(f'block{each}' for each in range(2, count)), OTHERS)
    tiny = tuple(dataclasses.replace(each, nbytes=1 if each.id == 1 else each.nbytes) for each in maps[:3])
    assert find_blocks(dataclasses.replace(TRACE, calls=calls, maps=tiny)).names == ('block0', 'block2', OTHERS)


def test_a_recomputed_map_counts_for_its_block_from_where_it_is_made_again():
    trace = at_paths('/a', '/b', '/b')
    problem = problem_of(trace, 12 * MB, 0)
    decision = dataclasses.replace(POLICIES['keep'].decide(problem), verdicts=(
        Verdict.KEEP, Verdict.RECOMPUTE, Verdict.KEEP))
    schedule = lay_out(problem, decision)
    kinds = by_kind(problem, schedule, simulate(problem, schedule), find_blocks(trace))
    assert [each.nbytes[4] // MB for each in kinds if each.name == 'a'] == [4]
