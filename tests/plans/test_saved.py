"""Plans in files: what is kept of them, what they are refused for, and what a crash leaves."""
import dataclasses
import json
import os

import pytest

from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.cost.costs import measured
from chainer_ooc.errors import PlanFormatError, PlanMismatchError
from chainer_ooc.plans.making import make_plan
from chainer_ooc.plans.saved import check_plan, dump_plans, load_plans, put_plan, read_plans, save_plan
from chainer_ooc.problem import Problem, Standing
from chainer_ooc.trace.model import VERSION

VERSIONS = {'chainer': '7.8.1', 'numpy': '2.0.0', 'python': '3.12.1', 'chainer_ooc': '0.1.0', 'onednn': '3.2.0',
            'parameters': 'file'}


@pytest.fixture
def saved(trace_of):
    """A saved plan for an iteration of as many calls as are asked for, budget 100."""
    def saved(calls=2, budget_bytes=100):
        maps = [(4, 0, 1, [calls + 1])]
        trace = dataclasses.replace(
            trace_of([1] * calls, [1] * calls, maps), versions=VERSIONS, machine='a machine', workspace_bytes=64)
        plan = make_plan(POLICIES['swap-all'], Problem(trace, measured(trace), Standing(5, 5), budget_bytes, 1))
        return save_plan(trace, plan, min_bytes=1)
    return saved


def test_the_terms_are_those_of_the_recording_and_the_plan(saved):
    terms = saved().terms
    assert dataclasses.asdict(terms) == {
        'graph': saved().trace.fingerprint, 'device': 'host', 'machine': 'a machine', **VERSIONS, 'policy': 'swap-all',
        'min_bytes': 1, 'workspace_bytes': 64, 'budget_bytes': 100}


@pytest.mark.parametrize('metered', [True, False])
def test_a_file_reads_back_equal(saved, metered):
    plans = [saved(), dataclasses.replace(saved(3), metered=metered)]
    assert load_plans(dump_plans(plans)) == plans
    assert load_plans(dump_plans([])) == []


def test_a_plan_holds_on_its_own_terms_and_under_a_larger_budget(saved):
    check_plan(saved(), saved().terms)
    check_plan(saved(), dataclasses.replace(saved().terms, budget_bytes=101))


@pytest.mark.parametrize(('name', 'value', 'message'), [
    ('graph', 'f' * 64, 'another graph: made for graph {graph}, here it is graph ffffffffffff; delete the file'),
    ('device', 'cuda', "another device: made for 'host', here it is 'cuda'; delete the file"),
    ('machine', 'B', "another machine: made for 'a machine', here it is 'B'; delete the file"),
    ('machine', '', "another machine: made for 'a machine', here it is none; delete the file"),
    ('chainer', '8', "another version of Chainer: made for '7.8.1', here it is '8'; delete the file"),
    ('numpy', '1.26.0', "another version of NumPy: made for '2.0.0', here it is '1.26.0'; delete the file"),
    ('python', '3.13.0', "another version of Python: made for '3.12.1', here it is '3.13.0'; delete the file"),
    ('chainer_ooc', '1', "another version of chainer_ooc: made for '0.1.0', here it is '1'; delete the file"),
    ('policy', 'keep', "another policy: made for 'swap-all', here it is 'keep'; set chainer.config.ooc = 'swap-all'"),
    ('min_bytes', 0, 'another ooc_min_bytes: made for 1 byte, here it is 0 bytes; set chainer.config.ooc_min_bytes'),
    ('budget_bytes', 99, 'another budget: made for 100 bytes, here it is 99 bytes; raise chainer.config.ooc_budget'),
])
def test_another_term_is_named_with_both_values_and_the_next_step(saved, name, value, message):
    with pytest.raises(PlanMismatchError) as refused:
        check_plan(saved(), dataclasses.replace(saved().terms, **{name: value}))
    assert str(refused.value).startswith('the saved plan is for ' + message.format(graph=saved().terms.graph[:12]))


def test_a_file_has_one_plan_for_each_graph(saved, tmp_path):
    path = str(tmp_path / 'plans.json')
    assert read_plans(path) == []
    for each in (saved(2), saved(3), saved(2, budget_bytes=50)):
        put_plan(path, each)
    assert read_plans(path) == [saved(3), saved(2, budget_bytes=50)]


@pytest.mark.parametrize('other', [
    {'workspace_bytes': 65}, {'versions': {**VERSIONS, 'onednn': ''}}, {'versions': {**VERSIONS, 'parameters': ''}}])
def test_a_file_has_plans_of_one_graph_for_each_workspace_and_onednn(saved, tmp_path, other):
    path = str(tmp_path / 'plans.json')
    under_other = [save_plan(dataclasses.replace(each.trace, **other), each.plan, min_bytes=1)
                   for each in (saved(), saved(budget_bytes=50))]
    for each in (saved(), under_other[0], saved(budget_bytes=50), under_other[1]):
        put_plan(path, each)
    assert read_plans(path) == [saved(budget_bytes=50), under_other[1]]


@pytest.mark.parametrize('step', ['fsync', 'replace'])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(saved, tmp_path, monkeypatch, step):
    path = str(tmp_path / 'plans.json')
    put_plan(path, saved(2))

    def fail(*_):
        raise OSError(28, 'No space left on device')
    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match='No space left'):
        put_plan(path, saved(3))
    assert os.listdir(tmp_path) == ['plans.json']
    assert read_plans(path) == [saved(2)]


def test_a_link_to_a_file_stays_a_link(saved, tmp_path):
    (tmp_path / 'link.json').symlink_to(tmp_path / 'plans.json')
    put_plan(str(tmp_path / 'link.json'), saved())
    assert (tmp_path / 'link.json').is_symlink()
    assert read_plans(str(tmp_path / 'plans.json')) == [saved()]


def test_a_file_of_something_else_is_not_written_over(saved, tmp_path):
    (tmp_path / 'notes.txt').write_text('my notes\n')
    with pytest.raises(PlanFormatError, match=r'notes.txt: not a file of plans: no JSON \(.+line 1 column 1'):
        put_plan(str(tmp_path / 'notes.txt'), saved())
    assert (tmp_path / 'notes.txt').read_text() == 'my notes\n'


@pytest.mark.parametrize('content', [b'\xff\xfe', b'[' * 100000])
def test_a_file_of_bytes_is_refused_with_its_path(tmp_path, content):
    (tmp_path / 'plans.json').write_bytes(content)
    with pytest.raises(PlanFormatError, match=r'cannot read the plans in .+plans.json: .+; name a file of plans'):
        read_plans(str(tmp_path / 'plans.json'))


@pytest.mark.parametrize('path', ['/dev/full', '/dev/zero', '/dev/null'])
def test_a_device_is_refused_and_not_replaced(saved, path):
    """The first two never end."""
    with pytest.raises(PlanFormatError, match=f'cannot read the plans in {path}: it is no regular file; name another'):
        put_plan(path, saved())


def damaged(saved, change):
    read = json.loads(dump_plans([saved()]))
    change(read)
    return json.dumps(read)


@pytest.mark.parametrize(('change', 'message'), [
    (lambda read: read.update(version=9), 'file of plans of version 9, this release reads 2; delete it'),
    (lambda read: read['plans'][0]['plan'].update(version=9), 'plan of version 9, this release reads 2'),
    (lambda read: read['plans'][0]['trace'].update(version=2), f'trace of version 2, this release reads {VERSION}'),
    (lambda read: read['plans'][0]['plan']['maps'][1].__setitem__(1, None),
     'maps, row 0: leave is None, not int; plan again; or delete the file to have it written anew'),
    (lambda read: read['plans'][0]['trace'].update(version=7),
     'and plan again with "chainer-ooc plan TRACE --save FILE"; or delete the file to have it written anew'),
    (lambda read: read.pop('plans'), 'damaged file of plans: plans: no list'),
    (lambda read: read.update(plans={}), 'damaged file of plans: plans: no list'),
    (lambda read: read['plans'].append(7), 'plans, entry 1: no object with "terms", "metered", "plan" and "trace"'),
    (lambda read: read['plans'][0].pop('terms'), 'plans, entry 0: no object with "terms"'),
    (lambda read: read['plans'][0].pop('plan'), 'not a plan: the key "format"'),
    (lambda read: read['plans'][0].update(metered=1), 'plans, entry 0: metered is 1, not bool'),
    (lambda read: read['plans'][0].update(colour=1), "plans, entry 0: 'colour' is unknown"),
    (lambda read: read['plans'][0]['terms'].pop('device'), "plans, entry 0, terms: 'device' is missing"),
    (lambda read: read['plans'][0]['terms'].update(min_bytes=-1), 'entry 0, terms, min_bytes: -1 is no amount'),
    (lambda read: read['plans'][0]['terms'].update(graph='0'), 'plans, entry 0: its terms and its trace are of two'),
    (lambda read: read['plans'][0]['terms'].update(policy='keep'), 'its terms and its plan are of two policies'),
    (lambda read: read['plans'][0]['plan']['swap_ins'][1].__setitem__(0, 7), 'swap_ins, row 0, map: 7 is no feature'),
    (lambda read: read['plans'][0]['plan']['swap_ins'][1].__setitem__(1, 9), 'swap_ins, row 0, start: 9 is no posi'),
    (lambda read: read['plans'][0]['plan']['swap_ins'][1].__setitem__(2, 1), 'swap_ins, row 0, use: 1 is no position'),
    (lambda read: read['plans'][0]['plan']['maps'][1].__setitem__(0, 'keep'), 'row 0, map: map 0 is not swapped'),
    (lambda read: read['plans'][0]['plan']['maps'][1].__setitem__(1, 0), 'maps, row 0, leave: 0 is no position'),
    (lambda read: read['plans'][0]['plan']['maps'][1].__setitem__(2, [1]), 'maps, row 0, uses: 1 is no position'),
    (lambda read: read['plans'][0]['plan']['maps'][1].__setitem__(3, 4), 'maps, row 0, restored: 4 is no position'),
    (lambda read: read['plans'][0]['plan']['maps'].pop(), 'maps: verdicts for 0 feature maps, and the trace has 1'),
    (lambda read: read['plans'][0]['plan']['chains'].append([1, [0]]), 'chains, position: 1 is no position of a step'),
    (lambda read: read['plans'][0]['plan']['chains'].append([2, [2]]), 'chains, position 2, calls: 2 is no call'),
    (lambda read: read['plans'][0]['plan'].update(shares_chains=[1]), 'shares_chains: 1 is no feature map'),
    (lambda read: read['plans'][0]['trace']['maps'][1].__setitem__(0, 1), 'damaged trace: maps, row 0: its id is 1'),
])
def test_damage_is_named(saved, change, message):
    with pytest.raises(PlanFormatError) as refused:
        load_plans(damaged(saved, change))
    assert message in str(refused.value)
