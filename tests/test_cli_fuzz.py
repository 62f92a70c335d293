"""Whatever a trace or a file of plans has in it, a command answers or says in one line what is wrong with it.

    CHAINER_OOC_MUTATIONS=2000 pytest tests/test_cli_fuzz.py  # as in docs/results/correctness.md; default: DEFAULT

Each mutation is one file, which one command reads, within this process: what a user would see as a traceback is an
exception that leaves `main`. Commands, arguments and files take turns; the seed is fixed.
"""
import dataclasses
import json
import os
import random
import re

import chainer_ooc  # noqa: F401  before chainer

# isort: split
import pytest

from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.cost.costs import measured
from chainer_ooc.plans.making import make_plan
from chainer_ooc.plans.saved import dump_plans, read_plans, save_plan
from chainer_ooc.problem import Problem, Standing
from chainer_ooc.trace import ArrayForm, Call, FeatureMap, Step, Trace
from support.command_line import run
from support.mutations import mutate
from support.planning.drawn_run import run_of

DEFAULT = 240
COUNT = int(os.environ.get('CHAINER_OOC_MUTATIONS', DEFAULT))
#: Each part is a test of its own, so that several processes can share them.
PARTS = 8
BYTES = 2048
BUDGETS = ('1', '9000', '20kB', '1MB', '1048576TiB')


def network():
    """Six calls of a small network, each map with a part: a batch, a branch that joins, a mask, a loss."""
    def form(*shape):
        return ArrayForm('<f4', shape)

    image, weight = form(8, 4, 4, 4), form(4, 4, 3, 3)
    calls = (
        Call(0, 'Convolution2DFunction', (0, -1), (1,), (), 0.02, 4 * BYTES, (image, weight), (image,), True),
        Call(1, 'ReLU', (1,), (2,), (), 0.001, BYTES, (image,), (image,), True),
        Call(2, 'Dropout', (2,), (3,), (4,), 0.001, 2 * BYTES, (image,), (image,), True),
        Call(3, 'Add', (1, 3), (5,), (), 0.001, BYTES, (image, image), (image,), True),
        Call(4, 'MaxPooling2D', (5,), (6,), (7,), 0.002, BYTES, (image,), (form(8, 4, 2, 2),), True, 64),
        Call(5, 'LinearFunction', (6, -1), (8,), (), 0.002, 64, (form(8, 16), form(10, 16)), (form(8, 10),), True, 64))
    reads = ((6,), (7,), (), (4,), (2,), (0,))
    steps = tuple(Step(6 + number, 5 - number, each, 0.01, BYTES, 128) for number, each in enumerate(reads))
    producers, lasts = (None, 0, 1, 2, 2, 3, 4, 4, 5), (0, 3, 2, 3, 2, 4, 5, 4, 5)
    uses = {each: (6 + number,) for number, row in enumerate(reads) for each in row}
    shapes = {0: (8, 4, 4, 4), 6: (8, 16), 7: (8, 4, 2, 2), 8: (8, 10)}
    maps = tuple(FeatureMap(
        each, {6: 512, 7: 512, 8: 320}.get(each, BYTES), producer, each in (4, 7), each in uses, each == 0, last,
        uses.get(each, ()), shapes.get(each, (8, 4, 4, 4)), 'float32') for each, (producer, last) in enumerate(
            zip(producers, lasts, strict=True)))
    return Trace(
        'host', calls, steps, maps, 0.1, 1e6, 2e6, 0.1,
        {'chainer': '7.8.1', 'numpy': '2.0.0', 'python': '3.12.1', 'chainer_ooc': '0.1.0', 'onednn': ''},
        'a machine', None, 640, 64)


TRACE = network()


def plans():
    """A file with plans of that network by several policies, each under a workspace of its own."""
    found = []
    for number, name in enumerate(('pooch', 'swap-all', 'sublinear')):
        trace = dataclasses.replace(TRACE, workspace_bytes=number)
        problem = Problem(trace, measured(trace), Standing(640, 64), 12000 if name == 'swap-all' else 1 << 20, 1)
        found.append(save_plan(trace, make_plan(POLICIES[name], problem), 1))
    return dump_plans(found)


PLANS = json.loads(plans())


def arguments(draw, trace):
    """A command that reads a trace, with some of its arguments; what it writes goes beside the trace."""
    policy, budget = draw.choice(list(POLICIES)), draw.choice(BUDGETS)
    least = ['--min-bytes', draw.choice(('0', '1', '2000'))]
    named = ['--policy', policy, '--budget', budget]
    return draw.choice((
        ['simulate', trace, *named, *least],
        ['simulate', trace, *named, *least, '--batch', draw.choice(('8', '64', '2147483647'))],
        ['simulate', trace, *named, *least, '--machine', 'v100-pcie3', *draw.choice(([], ['--batch', '16']))],
        ['plan', trace, *named, *least],
        ['compare', trace, *least, '--policies', f'keep,{policy}'],
        ['explain', trace, *named, *least],
        ['report', trace, '-o', f'{trace}.html', '--perfetto', f'{trace}.perfetto', '--policy', policy, '--budgets',
         budget, *least],
        ['recommend', trace, '--budget', budget, *least])) + draw.choice(([], ['--json']))


def check(capsys, argv):
    """Runs a command; a failure is one line on stderr, with status 1 or 2, and a success says nothing there."""
    status, out, err = run(capsys, *argv)
    if status == 0:
        assert out and not err
        if '--json' in argv:
            json.loads(out, parse_constant=lambda name: pytest.fail(f'{name} is no JSON'))
    else:
        assert (status, out) == (1, '')
        assert re.fullmatch(r'error: [^\n]{10,700}\n', err), err
    return status, err


@pytest.mark.parametrize('part', range(PARTS))
def test_a_damaged_trace_never_gives_a_traceback(capsys, tmp_path, part):
    file, honest, refused = tmp_path / 'trace.json', json.loads(TRACE.to_json()), 0
    for number in range(part, COUNT, PARTS):
        draw = random.Random(number)
        file.write_text(mutate(draw, honest))
        argv = arguments(draw, str(file))
        try:
            status, err = check(capsys, argv)
        except Exception as error:
            error.add_note(f'mutation {number}: {argv}') if hasattr(error, 'add_note') else None
            raise
        refused += status
        if 'cannot read the trace' in err:
            assert str(file) in err and '; ' in err
    assert refused > 0


@pytest.mark.parametrize('part', range(PARTS))
def test_a_damaged_run_never_gives_a_traceback(capsys, tmp_path, part):
    file, refused = tmp_path / 'run.json', 0
    honest = json.loads(run_of().to_json())
    for number in range(part, COUNT // 2, PARTS):
        file.write_text(mutate(random.Random(2 * COUNT + number), honest))
        status, err = check(capsys, ['report', str(file), '-o', f'{file}.html', '--perfetto', f'{file}.perfetto'])
        refused += status
        if status:
            assert 'budget too small' in err or str(file) in err
    assert refused > 0


@pytest.mark.parametrize('part', range(PARTS))
def test_a_damaged_file_of_plans_never_gives_a_traceback(capsys, tmp_path, part):
    trace, file = tmp_path / 'trace.json', tmp_path / 'plans.json'
    trace.write_text(TRACE.to_json())
    argv = ['plan', str(trace), '--policy', 'swap-all', '--budget', '1MB', '--save', str(file)]
    for number in range(part, COUNT, PARTS):
        text = mutate(random.Random(COUNT + number), PLANS)
        file.write_text(text)
        status, err = check(capsys, argv)
        if status:
            assert str(file) in err
            assert file.read_text() == text
        else:
            assert read_plans(str(file))[-1].trace == TRACE


def test_the_honest_files_are_read(capsys, tmp_path):
    (tmp_path / 'trace.json').write_text(TRACE.to_json())
    (tmp_path / 'plans.json').write_text(json.dumps(PLANS))
    assert len(read_plans(str(tmp_path / 'plans.json'))) == 3
    for number in range(40):
        argv = arguments(random.Random(number), str(tmp_path / 'trace.json'))
        status, err = check(capsys, argv)
        assert status == 0 or 'budget too small' in err
