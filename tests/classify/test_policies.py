"""What each policy says of hand-written maps: one of each kind that may or may not leave."""
import dataclasses

import pytest

import chainer_ooc
from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.cost.costs import measured
from chainer_ooc.problem import Problem, Standing, Verdict, can_leave
from chainer_ooc.trace import Call, FeatureMap, Step, Trace

MB = 1_000_000
KEEP, SWAP = Verdict.KEEP, Verdict.SWAP


def feature_map(id, nbytes=8 * MB, producer=0, hidden=False, retained=True, foreign=False, uses=(3,)):
    return FeatureMap(id, nbytes, producer, hidden, retained, foreign, 1, uses, (nbytes // 4,), 'float32')


MAPS = {
    'retained': feature_map(0),
    'retained and hidden, as a dropout mask': feature_map(1, hidden=True),
    'not retained': feature_map(2, retained=False, uses=()),
    'held by the user': feature_map(3, foreign=True),
    'hidden and held by the user': feature_map(4, hidden=True, foreign=True),
    'smaller than min_bytes': feature_map(5, nbytes=MB - 1),
    'of min_bytes exactly': feature_map(6, nbytes=MB),
    'from outside and held there, as a batch': feature_map(7, producer=None, foreign=True),
    'from outside and given away': feature_map(8, producer=None),
    'retained but never read backward': feature_map(9, uses=()),
    'without a byte': feature_map(10, nbytes=0),
}
CAN_LEAVE = {
    'retained', 'retained and hidden, as a dropout mask', 'of min_bytes exactly', 'from outside and given away',
    'retained but never read backward'}
TRACE = Trace(
    device='host', calls=tuple(Call(index, 'ReLU', (), (), (), 1.0, 0) for index in range(2)),
    steps=tuple(Step(position, 3 - position, (), 1.0, 0, 0) for position in (2, 3)), maps=tuple(MAPS.values()),
    seconds=4.0, write_bytes_per_second=1e9, read_bytes_per_second=1e9)


@pytest.mark.parametrize('kind', MAPS)
def test_only_a_large_retained_map_of_our_own_can_leave(kind):
    assert can_leave(MAPS[kind], MB) is (kind in CAN_LEAVE)


def test_min_bytes_of_zero_lets_all_but_empty_maps_leave():
    assert can_leave(MAPS['smaller than min_bytes'], 0)
    assert not can_leave(MAPS['without a byte'], 0)


def decide(name, trace, budget_bytes, min_bytes):
    problem = Problem(trace, measured(trace), Standing(0, 0), budget_bytes, min_bytes)
    return POLICIES[name].decide(problem).verdicts


def test_keep_keeps_everything():
    assert decide('keep', TRACE, 10**12, MB) == (KEEP,) * len(MAPS)
    assert decide('keep', TRACE, 1, 0) == (KEEP,) * len(MAPS)


@pytest.mark.parametrize('name', ['swap-all', 'swap-all-naive'])
def test_swap_all_swaps_what_can_leave_and_keeps_the_rest(name):
    verdicts = dict(zip(MAPS, decide(name, TRACE, 10**12, MB), strict=True))
    assert {kind for kind, verdict in verdicts.items() if verdict is SWAP} == CAN_LEAVE
    assert {kind for kind, verdict in verdicts.items() if verdict is KEEP} == set(MAPS) - CAN_LEAVE


@pytest.mark.parametrize('name', ['keep', 'swap-all', 'swap-all-naive'])
@pytest.mark.parametrize('budget_bytes', [1, 64 * MB, 10**15])
def test_these_policies_do_not_look_at_the_budget_and_are_pure(name, budget_bytes):
    before = dataclasses.replace(TRACE)
    assert decide(name, TRACE, budget_bytes, MB) == decide(name, TRACE, 10**9, MB)
    assert before == TRACE


@pytest.mark.parametrize('name', POLICIES)
def test_no_map_gives_no_verdict(name):
    assert decide(name, dataclasses.replace(TRACE, maps=()), 10**9, MB) == ()


def test_the_table_is_keyed_by_name_and_public_with_one_line_each():
    assert list(POLICIES) == [policy.name for policy in POLICIES.values()]
    assert {'keep', 'swap-all', 'swap-all-naive'} <= set(chainer_ooc.policies())
    for name, line in chainer_ooc.policies().items():
        assert line == POLICIES[name].summary
        assert line and '\n' not in line
