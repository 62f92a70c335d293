"""simulate, plan, compare and explain on a drawn iteration: what they say, and that they say it without Chainer.

The iteration is drawn in support/planning/drawn_trace.py.
"""
import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from unittest import mock

import chainer_ooc  # noqa: F401  before chainer

# isort: split
import chainer
import pytest

from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.cli import arguments, compare, plan, prediction
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.plans.making import make_plan
from chainer_ooc.plans.saved import read_plans
from chainer_ooc.problem import problem_of
from chainer_ooc.report.contents import make_report
from chainer_ooc.trace import ArrayForm, Trace
from chainer_ooc.trace.model import VERSION
from support.command_line import BARE, run, run_json
from support.planning.drawn_trace import MB, TRACE
from support.planning.small_problems import draw_problem

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = {
    'simulate': ['--policy', 'swap-all', '--budget', '9MB'],
    'plan': ['--policy', 'swap-all', '--budget', '9MB'],
    'compare': [],
    'explain': ['--policy', 'swap-all', '--budget', '9MB'],
}


WITHOUT_STEPS = dataclasses.replace(
    TRACE, steps=(), maps=tuple(dataclasses.replace(each, backward_uses=()) for each in TRACE.maps))


@pytest.fixture
def file(tmp_path):
    (tmp_path / 'trace.json').write_text(TRACE.to_json())
    return str(tmp_path / 'trace.json')


def simulate(capsys, file, policy, budget, *more):
    return run_json(capsys, 'simulate', file, '--policy', policy, '--budget', budget, *more)


def test_simulate_gives_the_drawn_timeline_under_exactly_these_keys(capsys, file):
    assert simulate(capsys, file, 'swap-all', '9MB') == {
        'policy': 'swap-all', 'machine': 'measured', 'batch': 8, 'feasible': True, 'seconds': 17.0,
        'exchange_seconds': 0.0, 'images_per_second': 8 / 17, 'in_core_images_per_second': 8 / 9,
        'peak_bytes': 9 * MB, 'budget_bytes': 9 * MB,
        'floor_bytes': None, 'floor_set_by': None, 'workspace_floor_bytes': None,
        'keep': 1, 'swap': 2, 'recompute': 0, 'in_core_seconds': 9.0, 'lower_bound_seconds': pytest.approx(10.0),
        'gap': pytest.approx(0.7)}


@pytest.mark.parametrize('command', COMMANDS)
def test_one_of_a_thing_is_no_plural(capsys, file, command):
    more = ['--top', '1'] if command == 'explain' else []
    status, out, err = run(capsys, command, file, *COMMANDS[command], *more)
    assert (status, err) == (0, '')
    things = 'maps|calls|steps|bytes|iterations|graphs|plans|images'
    assert re.findall(rf'(?<![\d.,])1 (?:feature )?(?:{things})\b', out) == []
    assert command != 'plan' or '1 feature map,' in out


def test_a_budget_that_is_too_small_is_an_answer(capsys, file):
    found = simulate(capsys, file, 'swap-all', str(9 * MB - 1))
    assert found == {
        'policy': 'swap-all', 'machine': 'measured', 'batch': 8, 'feasible': False, 'seconds': None,
        'exchange_seconds': 0.0, 'images_per_second': None, 'in_core_images_per_second': 8 / 9, 'peak_bytes': None,
        'budget_bytes': 9 * MB - 1,
        'floor_bytes': 9 * MB, 'floor_set_by': 'Layer2, forward of call 2', 'workspace_floor_bytes': None,
        'keep': None, 'swap': None, 'recompute': None, 'in_core_seconds': 9.0, 'lower_bound_seconds': None, 'gap': None}
    status, out, _ = run(capsys, 'simulate', file, '--policy', 'swap-all', '--budget', '8MB')
    assert status == 0
    assert 'needs at least 9.0 MB, set by Layer2, forward of call 2' in out


def test_simulate_shows_the_same_as_a_table(capsys, file):
    status, out, _ = run(capsys, 'simulate', file, '--policy', 'swap-all', '--budget', '9MB')
    assert status == 0
    for text in ('17.0 s, +88.9 % to in-core', '9.0 MB', '1 keep, 2 swap, 0 recompute', '0.5', '9.00 s'):
        assert text in out


def test_what_stands_beside_the_maps_comes_from_the_trace(capsys, tmp_path):
    trace = dataclasses.replace(TRACE, standing_forward_bytes=3 * MB, standing_backward_bytes=0)
    (tmp_path / 'trace.json').write_text(trace.to_json())
    assert run_json(capsys, 'compare', str(tmp_path / 'trace.json'))['in_core_peak_bytes'] == 15 * MB


@pytest.fixture
def relus(tmp_path):
    """A file of 8 images of half a million numbers through ReLUs, so that bytes and times grow with the batch."""
    forms = (ArrayForm('<f4', (8, 500000)),)
    maps = tuple(dataclasses.replace(each, nbytes=16 * MB, shape=(8, 500000), dtype='float32') for each in TRACE.maps)
    calls = tuple(dataclasses.replace(each, label='ReLU', arguments=forms, results=forms) for each in TRACE.calls)
    (tmp_path / 'trace.json').write_text(dataclasses.replace(TRACE, calls=calls, maps=maps).to_json())
    return str(tmp_path / 'trace.json')


def test_simulate_for_another_machine_takes_its_roofline(capsys, relus):
    found = simulate(capsys, relus, 'keep', '1GB', '--machine', 'v100-pcie3')
    # each call reads and writes 16 MB at 900 GB/s; each step reads its map and gradients
    forward, backward = 3 * 32e6 / 900e9, (16 + 16 + 32 + 32 + 16) * 1e6 / 900e9
    assert found['machine'] == 'v100-pcie3'
    assert found['seconds'] == pytest.approx(forward + backward)
    larger = simulate(capsys, relus, 'keep', '1GB', '--machine', 'v100-pcie3', '--batch', '16')
    assert larger['seconds'] == pytest.approx(2 * found['seconds'])
    # maps double, and what stands beside them, a MB, does not
    assert larger['peak_bytes'] - MB == 2 * (found['peak_bytes'] - MB)


def test_explain_and_compare_are_for_another_machine_and_batch_too(capsys, relus):
    found = simulate(capsys, relus, 'swap-all', '1GB', '--machine', 'v100-pcie3', '--batch', '16')
    for command in (['explain', relus, '--policy', 'swap-all', '--budget', '1GB'],
                    ['compare', relus, '--policies', 'swap-all', '--budgets', '1GB']):
        status, out, err = run(capsys, *command, '--machine', 'v100-pcie3', '--batch', '16', '--json')
        assert (status, err) == (0, '')
        facts = json.loads(out)
        row = facts['rows'][0] if command[0] == 'compare' else facts
        assert {key: row[key] for key in ('seconds', 'peak_bytes', 'lower_bound_seconds')} == {
            key: found[key] for key in ('seconds', 'peak_bytes', 'lower_bound_seconds')}


def test_simulate_names_the_machines_that_there_are(capsys, file):
    status, out, err = run(capsys, 'simulate', file, '--policy', 'keep', '--budget', '1GB', '--machine', 'moon')
    assert (status, out) == (2, '')
    assert "argument --machine: there is no machine 'moon'; there are: " in err
    assert 'v100-nvlink2' in err


def test_a_trace_without_shapes_says_nothing_of_another_machine(capsys, file):
    status, _, err = run(capsys, 'simulate', file, '--policy', 'keep', '--budget', '1GB', '--machine', 'v100-pcie3')
    assert status == 1
    assert 'the trace has 0 shapes for the 1 arrays that call 2 (Layer2) reads' in err


@pytest.mark.parametrize('command', ['simulate', 'compare', 'explain'])
def test_a_budget_under_which_a_training_would_run_is_not_refused(capsys, tmp_path, command):
    """Within all of it superneurons keeps more than leaves room for its swap-ins; it has a plan for a little less."""
    problem = draw_problem(58)
    budget_bytes = int(1.1 * problem.budget_bytes)
    with pytest.raises(InfeasibleBudgetError):
        make_plan(POLICIES['superneurons'], problem_of(problem.trace, budget_bytes, problem.min_bytes))
    path = tmp_path / 'trace.json'
    path.write_text(problem.trace.to_json())
    policy, budget = ('--policies', '--budgets') if command == 'compare' else ('--policy', '--budget')
    given = policy, 'superneurons', budget, str(budget_bytes)
    found = run_json(capsys, command, str(path), *given, '--min-bytes', str(problem.min_bytes))
    found = found['rows'][0] if command == 'compare' else found
    assert 0 < found['peak_bytes'] <= budget_bytes == found['budget_bytes']


def test_smaller_maps_stay(capsys, file):
    assert simulate(capsys, file, 'swap-all', '13MB', '--min-bytes', '3MB')['swap'] == 1
    assert simulate(capsys, file, 'swap-all', '13MB', '--min-bytes', '2000000')['swap'] == 2


def test_a_larger_batch_takes_more_of_everything(capsys, file):
    found = simulate(capsys, file, 'keep', '1GB', '--batch', '16')
    assert (found['batch'], found['seconds'], found['peak_bytes']) == (16, 18.0, 25 * MB)  # what stands does not grow


@pytest.mark.parametrize('option', ['--batch', '--batchsize'])
def test_the_batch_is_given_as_for_a_profile(capsys, file, option):
    assert simulate(capsys, file, 'swap-all', '30MB', option, '16')['batch'] == 16


def test_a_batch_that_no_memory_has_is_refused(capsys, file):
    arguments = ['simulate', file, '--policy', 'keep', '--budget', '1GB', '--batch']
    assert run(capsys, *arguments, '2147483647')[0] == 0  # 12 MB of 8 images
    trace = dataclasses.replace(TRACE, maps=tuple(dataclasses.replace(each, nbytes=2**50) for each in TRACE.maps))
    Path(file).write_text(trace.to_json())
    status, out, err = run(capsys, *arguments, '2147483647')
    assert (status, out) == (2, '')
    assert 'error: --batch 2147483647 makes more of the 3377699.73 GB at batch 8 than any memory has; write' in err


def test_a_smaller_batch_is_refused(capsys, file):
    status, out, err = run(capsys, 'simulate', file, '--policy', 'keep', '--budget', '1GB', '--batch', '4')
    assert (status, out) == (1, '')
    assert err.startswith('error: a trace of batch 8 says nothing safe about batch 4; record one with')


def test_a_trace_that_hides_its_batch_is_scaled_to_none(capsys, tmp_path):
    calls = (dataclasses.replace(TRACE.calls[0], inputs=(-1,)), *TRACE.calls[1:])
    (tmp_path / 'trace.json').write_text(dataclasses.replace(TRACE, calls=calls).to_json())
    found = simulate(capsys, str(tmp_path / 'trace.json'), 'keep', '1GB')
    assert (found['batch'], found['images_per_second']) == (None, None) and found['seconds'] > 0
    status, _, err = run(
        capsys, 'simulate', str(tmp_path / 'trace.json'), '--policy', 'keep', '--budget', '1GB', '--batch', '32')
    assert status == 1
    assert 'error: the trace does not tell its batch size, as no call reads an array from outside' in err


def test_the_batch_is_told_where_the_first_call_reads_parameters_alone(capsys, tmp_path, file):
    """As where a weight is normalized before it is used."""
    whole = simulate(capsys, file, 'keep', '1GB', '--batch', '16')
    calls = (dataclasses.replace(TRACE.calls[0], inputs=(-1,)),
             dataclasses.replace(TRACE.calls[1], inputs=(*TRACE.calls[1].inputs, *TRACE.calls[0].inputs)),
             *TRACE.calls[2:])
    maps = (dataclasses.replace(TRACE.maps[0], last_forward_use=1), *TRACE.maps[1:])
    (tmp_path / 'normalized.json').write_text(dataclasses.replace(TRACE, calls=calls, maps=maps).to_json())
    found = simulate(capsys, str(tmp_path / 'normalized.json'), 'keep', '1GB', '--batch', '16')
    assert (found['batch'], found['seconds'], found['images_per_second']) == (
        16, whole['seconds'], whole['images_per_second'])


def test_plan_writes_a_file_for_ooc_plan(capsys, file, tmp_path):
    save = str(tmp_path / 'plans.json')
    found = run_json(capsys, 'plan', file, *COMMANDS['plan'], '--save', save, '--min-bytes', '1')
    assert {**found, 'planning_seconds': 0.0} == {
        'policy': 'swap-all', 'budget_bytes': 9 * MB, 'min_bytes': 1, 'graph': TRACE.fingerprint, 'keep': 1, 'swap': 2,
        'recompute': 0, 'keep_bytes': MB, 'swap_bytes': 6 * MB, 'recompute_bytes': 0, 'predicted_seconds': 17.0,
        'predicted_peak_bytes': 9 * MB, 'in_core_seconds': 9.0,
        'lower_bound_seconds': pytest.approx(10.0), 'gap': pytest.approx(0.7), 'planning_seconds': 0.0, 'file': save}
    assert found['planning_seconds'] > 0
    (saved,) = read_plans(save)
    assert saved.trace == TRACE
    assert (saved.plan.policy, saved.plan.seconds) == ('swap-all', 17.0)
    assert (saved.terms.machine, saved.terms.min_bytes, saved.terms.budget_bytes) == ('a machine', 1, 9 * MB)


def test_plan_says_what_it_did(capsys, file, tmp_path):
    save = str(tmp_path / 'plans.json')
    status, out, _ = run(capsys, 'plan', file, '--policy', 'swap-all', '--budget', '9MB', '--save', save)
    assert status == 0
    assert out.split()[-4:] == ['plan', 'written', 'to', save]
    assert '2 feature maps, 6.0 MB' in out
    assert '17.0 s, in-core 9.00 s' in out


def test_compare_has_each_policy_under_each_budget(capsys, file):
    found = run_json(capsys, 'compare', file, '--policies', 'keep,swap-all', '--budgets', '13MB,9MB')
    assert (found['in_core_seconds'], found['in_core_peak_bytes']) == (9.0, 13 * MB)
    rows = [(row['policy'], row['budget_bytes'], row['seconds'], row['overhead'], row['swap'], row['floor_bytes'])
            for row in found['rows']]
    assert rows == [
        ('keep', 13 * MB, 9.0, 0.0, 0, None), ('swap-all', 13 * MB, 9.0, 0.0, 2, None),
        ('keep', 9 * MB, None, None, None, 13 * MB), ('swap-all', 9 * MB, 17.0, 17 / 9 - 1, 2, None)]
    assert found['rows'][2]['floor_set_by'] == 'Layer2, forward of call 2'


def test_compare_takes_all_policies_and_budgets_from_the_in_core_peak_to_the_least_that_works(capsys, file):
    rows = run_json(capsys, 'compare', file)['rows']
    budgets = [13 * MB, 11 * MB, 9800000, 9 * MB]
    assert [(row['budget_bytes'], row['policy']) for row in rows] == [
        (budget, policy) for budget in budgets for policy in POLICIES]
    status, out, _ = run(capsys, 'compare', file)
    assert status == 0
    assert 'needs 13.0 MB' in out
    assert [out.count(f'\n{policy} ') for policy in ('keep', 'auto')] == [4, 4]


def test_compare_has_no_budget_by_default_that_all_refuse(capsys, file):
    rows = run_json(capsys, 'compare', file)['rows']
    assert sum(not row['feasible'] for row in rows) < len(rows) / 4
    assert all(any(row['feasible'] for row in rows if row['budget_bytes'] == budget)
               for budget in {row['budget_bytes'] for row in rows})
    assert {row['budget_bytes'] for row in run_json(capsys, 'compare', file, '--policies', 'keep')['rows']} == {13 * MB}


def test_the_floor_of_unified_is_no_budget_by_default(capsys, monkeypatch, file):
    """It may be far below the others', which would all be refused: `unified` maps take none of the budget."""
    def floors(policy, problem):
        found = prediction.predict(policy, problem)
        is_low = policy == 'unified' and problem.budget_bytes == 1
        low = InfeasibleBudgetError('unified', 1, 2 * MB, '')
        return dataclasses.replace(found, refusal=low) if is_low else found
    monkeypatch.setattr(compare, 'predict', floors)
    for policies, least_bytes in (('unified,swap-all', 9 * MB), ('unified', 2 * MB)):
        rows = run_json(capsys, 'compare', file, '--policies', policies)['rows']
        assert min(row['budget_bytes'] for row in rows) == least_bytes


def explained(capsys, file, *more):
    return run_json(capsys, 'explain', file, '--policy', 'swap-all', '--budget', '10MB', *more)


def test_explain_says_what_each_other_verdict_would_cost(capsys, file):
    found = explained(capsys, file)
    assert (found['seconds'], found['stall_seconds']) == (17.0, 8.0)
    assert [row['map'] for row in found['maps']] == [1, 2, 0]
    assert found['maps'][0] == {
        'map': 1, 'producer': 'Layer0', 'path': None, 'line': None, 'nbytes': 4 * MB, 'verdict': 'swap',
        'swap_out_seconds': 4.0, 'swap_in_seconds': 4.0, 'recompute_seconds': 1.0, 'stall_seconds': 8.0,
        'alternatives': [{'verdict': 'keep', 'seconds': None, 'needed_bytes': 13 * MB},
                         {'verdict': 'recompute', 'seconds': 10.0, 'needed_bytes': 9 * MB}],
        'why': 'if kept, needs 13.0 MB, which exceeds the budget; if recomputed, takes 7.00 s less'}
    assert [row['stall_seconds'] for row in found['maps']] == [8.0, 0.0, 0.0]
    assert found['maps'][1]['why'].startswith('if kept, takes the same time; if recomputed, needs ')
    batch = found['maps'][2]
    assert (batch['verdict'], batch['swap_out_seconds'], batch['recompute_seconds'], batch['alternatives']) == (
        'keep', None, None, [])
    assert batch['why'] == 'the program holds it itself, so that letting go frees nothing'


@pytest.mark.parametrize('policy', ['pooch', 'superneurons', 'swap-opt'])
def test_explain_gives_the_reasons_that_a_report_gives(capsys, file, policy):
    rows = run_json(capsys, 'explain', file, '--policy', policy, '--budget', '10MB')['maps']
    reasons = make_report('', POLICIES[policy], problem_of(TRACE, 10 * MB, 10**6), [10 * MB]).course.reasons
    assert {row['map']: row['why'] for row in rows} == {each.map: each.why for each in reasons}


def test_explain_says_why_a_small_map_stays(capsys, file):
    (found,) = (row for row in explained(capsys, file, '--min-bytes', '3MB')['maps'] if row['map'] == 2)
    assert found['why'] == 'smaller than 3.0 MB, see --min-bytes'


def test_explain_has_a_line_for_each_of_the_largest_maps(capsys, file):
    status, out, _ = run(capsys, 'explain', file, '--policy', 'swap-all', '--budget', '10MB', '--top', '1')
    assert status == 0
    assert out.endswith(
        '\n\nmap 1, swap: if kept, needs 13.0 MB, which exceeds the budget; if recomputed,\ntakes 7.00 s less\n')
    assert 'of which 8.00 s stalled; the largest 1 of 3 maps' in ' '.join(out.split())


@pytest.mark.parametrize('command', ['plan', 'explain'])
def test_without_a_plan_there_is_nothing_to_save_or_explain(capsys, file, command):
    status, out, err = run(capsys, command, file, '--policy', 'keep', '--budget', '9MB')
    assert (status, out) == (1, '')
    assert err.startswith("error: budget too small for policy 'keep' (budget 9.0 MB, "
                          'smallest that works for such iterations 13.0 MB')
    assert err.endswith('; raise --budget, choose another policy or lower the batch size\n')
    assert err.count('\n') == 1


def test_a_refusal_says_how_a_trace_gets_a_workspace(capsys, monkeypatch, file):
    refused = InfeasibleBudgetError('keep', 9 * MB, 13 * MB, 'call 1', workspace_floor_bytes=8 * MB)
    monkeypatch.setattr(plan, 'plan_within', mock.Mock(side_effect=refused))
    _, _, err = run(capsys, 'plan', file, '--policy', 'keep', '--budget', '9MB')
    assert err.endswith('; raise --budget, record again with "profile MODEL --workspace 32MB", choose another policy '
                        'or lower the batch size\n')


@pytest.mark.parametrize('command', COMMANDS)
def test_a_command_about_a_trace_needs_no_chainer(file, tmp_path, command):
    save = ['--save', str(tmp_path / 'plans.json')] if command == 'plan' else []
    done = subprocess.run([sys.executable, '-c', BARE, command, file, *COMMANDS[command], *save, '--json'], cwd=ROOT,
                          text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, '')
    json.loads(done.stdout)


@pytest.mark.parametrize('command', COMMANDS)
@pytest.mark.parametrize(('content', 'message'), [
    (None, 'No such file or directory; write one with "chainer-ooc profile MODEL --save FILE"'),
    (b'hello', 'not a trace: no JSON (Expecting value: line 1 column 1 (char 0)); write one with'),
    (b'[[["format"]', 'not a trace: no JSON (Expecting'),
    (b'{"format": "chainer_ooc plan"}', 'not a trace: the key "format" is not \'chainer_ooc trace\''),
    (b'{"format": "chainer_ooc trace", "version": 2}', f'trace of version 2, this release reads {VERSION}; record it'),
    (b'\xff\xfe\x00', 'it is no text; write one with "chainer-ooc profile MODEL --save FILE"'),
    (WITHOUT_STEPS.to_json().encode(), 'has no calls or no backward pass; record a whole'),
])
def test_what_is_no_trace_is_said_in_one_line(capsys, tmp_path, command, content, message):
    file = tmp_path / 'trace.json'
    if content is not None:
        file.write_bytes(content)
    status, out, err = run(capsys, command, str(file), *COMMANDS[command])
    assert (status, out) == (1, '')
    assert err.startswith('error: ')
    assert str(file) in err and message in err
    assert err.count('\n') == 1


def test_a_device_is_no_trace(capsys):
    status, _, err = run(capsys, 'simulate', '/dev/zero', '--policy', 'keep', '--budget', '1GB')  # it has no end
    assert (status, err) == (1, 'error: cannot read the trace /dev/zero: it is a device; name a file\n')


def test_a_layer_of_too_few_shapes_says_nothing_of_another_machine(capsys, file):
    forms = (ArrayForm('<f4', (8, 5)),)
    calls = tuple(dataclasses.replace(each, label='LinearFunction', arguments=forms, results=forms)
                  for each in TRACE.calls)
    Path(file).write_text(dataclasses.replace(TRACE, calls=calls).to_json())
    status, _, err = run(capsys, 'simulate', file, '--policy', 'keep', '--budget', '1GB', '--machine', 'v100-pcie3')
    assert status == 1
    assert 'the trace has too few shapes for call 0 (LinearFunction), which multiplies its input with weights' in err


@pytest.mark.parametrize(('given', 'message'), [
    (['simulate', 'x', '--policy', 'poch', '--budget', '1GB'], "there is no policy 'poch'; did you mean 'pooch'?"),
    (['simulate', 'x', '--policy', 'keep', '--budget', 'much'], "--budget: 'much' is no amount of bytes; write"),
    (['simulate', 'x', '--policy', 'keep', '--budget', '0'], "argument --budget: '0' is no budget"),
    (['profile', 'x', '--workspace', '0'], "argument --workspace: '0' is no workspace"),
    (['simulate', 'x', '--policy', 'keep', '--budget', '-5'], "argument --budget: '-5' is no amount of bytes; did you"),
    (['simulate', 'x', '--policy', 'keep', '--budget', '-5GB'], "'-5GB' is no amount of bytes; did you mean '5GB'?"),
    (['simulate', 'x', '--policy', 'keep', '--budget', '1e9'], "'1e9' is no amount of bytes; did you mean '1GB'?"),
    (['simulate', 'x', '--policy', 'keep', '--budget', '50%'], "'50%' is a share, and a budget is an amount of bytes"),
    (['simulate', 'x', '--policy', 'keep', '--budget', '9223372036854775808'], 'is more bytes than any memory has'),
    (['simulate', 'x', '--policy', 'Pooch', '--budget', '1'], "no policy 'Pooch'; did you mean 'pooch'? there are: "),
    (['simulate', 'x', '--policy', 'keep', '--budget', '1', '--machine', 'V100-PCIe'], "did you mean 'v100-pcie3'?"),
    (['simulate', 'x', '--policy', 'keep', '--budget', '1', '--batch', '9223372036854775808'], 'is too large; write'),
    (['simulate', 'x', '--policy', 'keep'], 'the following arguments are required: --budget'),
    (['simulate', 'x', '--policy', 'keep', '--budget', '1', '--batch', '0'], "'0' is no whole number of at least 1"),
    (['simulate', 'x', '--policy', 'keep', '--budget', '1', '--min-bytes', 'x'], "'x' is no amount of bytes"),
    (['compare', 'x', '--policies', 'keep,poch'], "argument --policies: there is no policy 'poch'"),
    (['compare', 'x', '--budgets', '1GB,,2GB'], "argument --budgets: '' is no amount of bytes"),
    (['plan'], 'the following arguments are required: TRACE, --policy, --budget'),
    (['compare', 'x', '--budgts', '1GB'],
     "no option '--budgts'; did you mean '--budgets'? there are: --batch, --batchsize, --budgets, "),
    (['compare', 'x', 'y'], "there is no place for 'y'; \"chainer-ooc compare --help\" shows what can be written"),
    (['simulate', 'x', '--polciy', 'keep', '--budget', '1GB'], "no option '--polciy'; did you mean '--policy'? there"),
    (['--verbos'], "there is no option '--verbos'; did you mean '--version'?"),
])
def test_arguments_that_cannot_be_used_are_said_in_one_line(capsys, given, message):
    status, out, err = run(capsys, *given)
    assert (status, out) == (2, '')
    assert err.startswith('error: ')
    assert message in err
    assert err.count('\n') == 1


def test_what_stands_behind_two_dashes_is_no_option(capsys):
    status, _, err = run(capsys, 'simulate', '--policy', 'keep', '--budget', '1GB', '--', '--x')
    assert status == 1
    assert 'cannot read the trace --x' in err


@pytest.mark.parametrize(('save', 'message'), [
    ('nowhere/plans.json', 'cannot write the plan to'), ('trace.json', 'not a file of plans'),
    ('.', ': it is a folder; name a file in it\n')])
def test_a_plan_that_cannot_be_written_is_said_in_one_line(capsys, file, tmp_path, save, message):
    status, out, err = run(capsys, 'plan', file, *COMMANDS['plan'], '--save', str(tmp_path / save))
    assert (status, out) == (1, '')
    assert err.startswith('error: ')
    assert message in err
    assert err.count('\n') == 1
    assert Trace.from_json(Path(file).read_text()) == TRACE


@pytest.mark.parametrize('command', COMMANDS)
def test_help_names_what_can_be_written(capsys, command):
    status, out, err = run(capsys, command, '--help')
    assert (status, err) == (0, '')
    assert 'TRACE' in out and '--min-bytes' in out


def test_small_maps_are_those_of_the_configuration():
    assert chainer.global_config.ooc_min_bytes == arguments.MIN_BYTES


def test_explain_and_profile_say_where_in_the_model_a_map_is_made(capsys, tmp_path):
    calls = tuple(dataclasses.replace(each, path=f'/predictor/conv{each.index}', line=f'model.py:{each.index + 31}')
                  for each in TRACE.calls)
    file = tmp_path / 'trace.json'
    file.write_text(dataclasses.replace(TRACE, calls=calls).to_json())
    row = explained(capsys, str(file))['maps'][0]
    assert (row['producer'], row['path'], row['line']) == ('Layer0', '/predictor/conv0', 'model.py:31')
    arguments = [str(file), '--policy', 'swap-all', '--budget']
    assert 'map 1 at /predictor/conv0 in model.py:31, swap: if kept' in run(capsys, 'explain', *arguments, '10MB')[1]
    assert 'set by Layer2, forward of call 2, at /predictor/conv2 in model.py:33)' in run(
        capsys, 'explain', *arguments, '1MB')[2]


def test_what_has_a_space_is_a_value_though_it_begins_with_dashes(capsys):
    status, _, err = run(capsys, 'simulate', '--my trace.json', '--policy', 'keep', '--budget', '1GB')
    assert status == 1 and 'cannot read the trace' in err


def test_nothing_is_looked_at_behind_a_wish_for_help(capsys):
    status, out, _ = run(capsys, 'simulate', '--help', '--polcy')
    assert status == 0 and '--policy' in out
