"""The JSON form of a plan: what is written reads back equal; what is no plan is refused with a reason."""
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainer_ooc.errors import PlanFormatError
from chainer_ooc.plans.plan import VERSION, Plan
from chainer_ooc.problem import Verdict
from chainer_ooc.schedule.chains import Chains
from chainer_ooc.schedule.schedule import SwapIn

NUMBERS = st.integers(-1, 2**62)
BYTES = st.integers(0, 2**60)
IDS = st.lists(st.integers(0, 1000), max_size=4).map(tuple)
SHARED = st.booleans() | st.frozensets(st.integers(0, 1000), max_size=3)
TIMES = st.just(0.0) | st.floats(1e-15, 1e12)


@st.composite
def plans(draw):
    """Any plan, whether or not there is a trace that it fits."""
    rows = draw(st.lists(st.tuples(st.sampled_from(Verdict), NUMBERS, IDS, NUMBERS), max_size=5))
    verdicts, leaves, uses, restored = zip(*rows, strict=True) if rows else ((), (), (), ())
    calls_at = draw(st.dictionaries(NUMBERS, IDS, max_size=3))
    return Plan(
        policy=draw(st.text(max_size=9)), budget_bytes=draw(BYTES), verdicts=verdicts, leaves=leaves,
        swap_ins=draw(st.lists(st.builds(SwapIn, NUMBERS, NUMBERS, NUMBERS), max_size=3).map(tuple)),
        chains=Chains(calls_at, uses, restored, draw(SHARED)), synchronous=draw(st.booleans()),
        mapped=draw(st.booleans()), peak_bytes=draw(BYTES), seconds=draw(TIMES))


SMALL = Plan(
    policy='pooch', budget_bytes=100, verdicts=(Verdict.KEEP, Verdict.SWAP, Verdict.RECOMPUTE), leaves=(0, 1, 2),
    swap_ins=(SwapIn(1, 3, 4),), chains=Chains({4: (1, 2)}, ((5,), (4,), (4, 5)), (-1, -1, 4), False),
    synchronous=True, mapped=False, peak_bytes=90, seconds=1.5)


@given(plans())
def test_a_plan_reads_back_equal(plan):
    back = Plan.from_json(plan.to_json())
    assert back == plan
    assert back.to_json() == plan.to_json()


def test_the_form_has_a_row_for_each_map_swap_in_and_chain():
    text = SMALL.to_json()
    read = json.loads(text)
    assert (read['format'], read['version'], read['policy']) == ('chainer_ooc plan', VERSION, 'pooch')
    assert read['maps'] == [['verdict', 'leave', 'uses', 'restored'], ['keep', 0, [5], -1], ['swap', 1, [4], -1],
                            ['recompute', 2, [4, 5], 4]]
    assert read['swap_ins'] == [['map', 'start', 'use'], [1, 3, 4]]
    assert read['chains'] == [['position', 'calls'], [4, [1, 2]]]
    assert sum(line.strip().startswith('["swap"') for line in text.splitlines()) == 1


def test_what_is_read_is_immutable_and_of_the_same_types():
    back = Plan.from_json(SMALL.to_json())
    for name in ('verdicts', 'leaves', 'swap_ins'):
        assert type(getattr(back, name)) is tuple
    assert all(type(each) is tuple for each in (back.chains.uses, back.chains.restored, *back.chains.uses))
    assert back.chains.calls_at == {4: (1, 2)}


@pytest.mark.parametrize('text', ['', 'hello', SMALL.to_json()[:-20]])
def test_what_is_no_json_is_no_plan(text):
    with pytest.raises(PlanFormatError, match=r'not a plan: no JSON \(.+\); write one with "chainer-ooc plan TRACE'):
        Plan.from_json(text)


@pytest.mark.parametrize('text', ['null', '[]', '{}', '{"format": "chainer_ooc trace", "version": 1}'])
def test_json_of_another_kind_is_no_plan(text):
    with pytest.raises(PlanFormatError, match="not a plan: the key \"format\" is not 'chainer_ooc plan'"):
        Plan.from_json(text)


def changed(change):
    read = json.loads(SMALL.to_json())
    change(read)
    return json.dumps(read)


@pytest.mark.parametrize('version', [0, VERSION + 1, '1', None])
def test_another_version_is_named_beside_the_one_that_can_be_read(version):
    with pytest.raises(PlanFormatError) as caught:
        Plan.from_json(changed(lambda read: read.update(version=version)))
    assert str(caught.value) == f'plan of version {version!r}, this release reads {VERSION}; plan again'


DAMAGE = {
    'a table is missing': (lambda read: read.pop('swap_ins'), 'swap_ins: no list of rows'),
    'a value is missing': (lambda read: read.pop('seconds'), "plan: 'seconds' is missing"),
    'an unknown key': (lambda read: read.update(colour='red'), "plan: 'colour' is unknown"),
    'an unknown column': (lambda read: read['maps'][0].__setitem__(0, 'colour'), "maps, row 0: 'colour' is unknown"),
    'an unknown verdict': (lambda read: read['maps'][2].__setitem__(0, 'burn'),
                           "maps, row 1, verdict: 'burn' is none of keep, swap, recompute"),
    'a short row': (lambda read: read['chains'][1].pop(), 'chains, row 0: 1 value for 2 columns'),
    'a position twice': (lambda read: read['chains'].append([4, [1]]), 'chains: two rows for one position'),
    'text for a number': (lambda read: read.update(peak_bytes='many'), "plan: peak_bytes is 'many', not int"),
    'a table is a number': (lambda read: read.update(maps=7), 'maps: no list of rows'),
    'sharing is a number': (lambda read: read.update(shares_chains=1), 'shares_chains: 1 is not true, false or a list'),
    'negative bytes': (lambda read: read.update(budget_bytes=-1), 'budget_bytes: -1 is no amount of bytes'),
    'huge bytes': (lambda read: read.update(peak_bytes=2**70), 'peak_bytes: 1180591620717411303424 is no amount'),
    'no time': (lambda read: read.update(seconds=float('nan')), 'seconds: nan is no time'),
}


@pytest.mark.parametrize('damage', DAMAGE)
def test_a_damaged_plan_is_refused_with_the_place_and_the_reason(damage):
    change, message = DAMAGE[damage]
    with pytest.raises(PlanFormatError) as caught:
        Plan.from_json(changed(change))
    assert str(caught.value).startswith(f'damaged plan: {message}')
    assert str(caught.value).endswith('; plan again')
