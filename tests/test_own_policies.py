"""A policy of the user's own, as docs/own-policies.md has it: in commands, in training, and when it is wrong."""
import collections
import dataclasses
import re
import sys
import types
from pathlib import Path

import chainer_ooc  # before chainer

# isort: split
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from chainer_ooc.classify.policies import POLICIES, Policy, policy_of
from chainer_ooc.errors import ConfigError, InfeasibleBudgetError, PolicyError
from chainer_ooc.plans.making import floor_of, make_plan, plan_within
from chainer_ooc.plans.run import Run
from chainer_ooc.problem import Decision, Starts, Verdict, can_leave, can_recompute, everything, problem_of
from chainer_ooc.simulate.timeline import Timeline
from support.command_line import run, run_json
from support.planning.drawn_trace import MB, TRACE
from support.planning.small_problems import draw_problem
from support.trainings.ooc_training import ooc

PAGE = (Path(__file__).resolve().parent.parent / 'docs' / 'own-policies.md').read_text(encoding='utf-8')
MAPS = len(TRACE.maps)
MINE = '\n'.join(re.findall('```python\n(.*?)```', PAGE, re.DOTALL))


def swap_all(problem):
    return Decision(everything(problem.trace, problem.min_bytes))


@pytest.fixture
def mine(monkeypatch):
    """A module of the user's with the page's example."""
    module = types.ModuleType('mine')
    exec(MINE, vars(module))
    monkeypatch.setitem(sys.modules, 'mine', module)
    return module


@pytest.fixture
def file(tmp_path):
    (tmp_path / 'trace.json').write_text(TRACE.to_json())
    return str(tmp_path / 'trace.json')


def problem(budget_bytes=9 * MB):
    return problem_of(TRACE, budget_bytes, 1)


def test_the_pages_example_plans_within_budgets_and_names_one_that_works(mine):
    with pytest.raises(InfeasibleBudgetError, match="policy 'mine:largest_first'") as refused:
        make_plan(policy_of('mine:largest_first'), problem(1))
    for budget_bytes in (refused.value.floor_bytes, 12 * MB, 20 * MB):
        plan = make_plan(policy_of('mine:largest_first'), problem(budget_bytes))
        assert (plan.policy, plan.peak_bytes <= budget_bytes) == ('mine:largest_first', True)


def test_a_part_of_the_model_stays_whatever_another_policy_says(mine):
    calls = tuple(dataclasses.replace(each, path='/head' if each.index == 0 else '/body') for each in TRACE.calls)
    trace = dataclasses.replace(TRACE, calls=calls)
    head = [each.id for each in trace.maps if each.producer == 0]
    before, after = (policy_of(each).decide(problem_of(trace, 9 * MB, 1)).verdicts
                     for each in ('pooch', 'mine:pooch_but_the_head'))
    assert {before[each] for each in head} != {Verdict.KEEP}
    assert {after[each] for each in head} == {Verdict.KEEP}
    assert [after[each] for each in range(MAPS) if each not in head] == [
        before[each] for each in range(MAPS) if each not in head]


def test_its_first_line_says_what_it_does_and_a_policy_keeps_its_own_traits(mine):
    assert policy_of('mine:largest_first').summary == 'The largest feature maps leave, until the rest fits.'
    mine.ready = Policy('another name', 'a line', swap_all, may_need_more=True, takes_long=True)
    found = policy_of('mine:ready')
    assert (found.name, found.summary, found.may_need_more, found.takes_long) == ('mine:ready', 'a line', True, True)


def test_what_is_defined_anew_is_what_decides(mine):
    before = make_plan(policy_of('mine:largest_first'), problem(30 * MB))
    mine.largest_first = swap_all
    after = make_plan(policy_of('mine:largest_first'), problem(30 * MB))
    assert {*before.verdicts} == {Verdict.KEEP}
    assert Verdict.SWAP in after.verdicts


@pytest.mark.parametrize(('change', 'fault'), [
    ({'verdicts': ()}, f'it has 0 verdicts, and the iteration {MAPS} feature maps'),
    ({'verdicts': (Verdict.KEEP,) * (MAPS - 1) + ('swap',)}, f"'swap', for map {MAPS - 1}, is no Verdict"),
    ({'verdicts': (Verdict.RECOMPUTE,) * MAPS}, 'map 0 cannot be recomputed'),
    ({'verdicts': (Verdict.SWAP,) * MAPS}, 'map 0 cannot leave'),
    ({'leaves': {99: 1}}, f'99 is no feature map: an int from 0 to {MAPS - 1}'),
    ({'leaves': {1: 99}}, f'99 is no position: an int from 0 to {TRACE.positions - 1}'),
    ({'leaves': {1: -1}}, '-1 is no position'),
    ({'leaves': {1: np.int64(2)}}, f'{np.int64(2)!r} is no position'),
    ({'starts': Starts(positions={-1: 5})}, '-1 is no feature map'),
    ({'starts': Starts(positions={1: 99})}, '99 is no position'),
    ({'starts': Starts(gates=(3, 99))}, '99 is no position'),
    ({'starts': Starts(ahead=1, gates=(5, 4))}, 'its gates are not in ascending order'),
    ({'starts': Starts(ahead=0, gates=(4, 5))}, 'it has gates, and starts no swap-in ahead of one'),
    ({'starts': Starts(ahead=-1)}, '-1 is no number of gates'),
    ({'shares_chains': frozenset({7})}, '7 is no feature map'),
    ({'verdicts': iter([Verdict.KEEP])}, 'verdicts is of type list_iterator, not tuple or list'),
    ({'verdicts': np.array([Verdict.KEEP], object)}, 'verdicts is of type ndarray, not tuple or list'),
    ({'leaves': None}, 'leaves is of type NoneType, not Mapping'),
    ({'starts': None}, 'starts is of type NoneType, not Starts'),
    ({'starts': Starts(positions=[1])}, 'starts.positions is of type list, not None or Mapping'),
    ({'starts': Starts(gates=5)}, 'starts.gates is of type int, not None or tuple'),
    ({'shares_chains': 7}, 'shares_chains is of type int, not None or bool or frozenset'),
    ({'shares_chains': {1}}, 'shares_chains is of type set, not None or bool or frozenset'),
    ({'synchronous': 'yes'}, 'synchronous is of type str, not bool'),
])
def test_a_decision_that_cannot_be_followed_is_refused_before_it_is(mine, change, fault):
    mine.bad = lambda problem: dataclasses.replace(Decision((Verdict.KEEP,) * len(problem.trace.maps)), **change)
    with pytest.raises(PolicyError) as refused:
        make_plan(policy_of('mine:bad'), problem())
    assert str(refused.value).startswith(f"the decision of the policy 'mine:bad' cannot be followed: {fault}")


def test_an_error_of_its_own_is_the_cause_of_what_is_raised(mine):
    mine.bad = lambda problem: {}['x']
    with pytest.raises(PolicyError, match="the policy 'mine:bad' has failed with KeyError: 'x'") as failed:
        make_plan(policy_of('mine:bad'), problem())
    assert isinstance(failed.value.__cause__, KeyError)


def test_an_error_of_its_containers_is_the_cause_of_what_is_raised(mine):
    """They may be the user's own classes, whose code runs when they are read."""
    class Lazy(collections.UserDict):
        def keys(self):
            raise KeyError('lazy')
    mine.bad = lambda problem: dataclasses.replace(swap_all(problem), leaves=Lazy())
    with pytest.raises(PolicyError, match="the policy 'mine:bad' has failed with KeyError: 'lazy'"):
        make_plan(policy_of('mine:bad'), problem())


def test_its_decision_is_the_one_that_it_has_returned(mine):
    leaves = {}
    mine.own = lambda problem: dataclasses.replace(swap_all(problem), leaves=leaves)
    decision = policy_of('mine:own').decide(problem())
    leaves[0] = 1
    assert not decision.leaves


def test_one_that_maps_and_may_need_more_plans_within_the_floor_that_it_is_refused_with(mine):
    """What no other decision needs less than was taken for too much."""
    mine.maps = dataclasses.replace(policy_of('unified'), may_need_more=True)
    drawn = draw_problem(5)
    floor_bytes = floor_of(policy_of('mine:maps'), drawn).floor_bytes
    plan = plan_within(policy_of('mine:maps'), dataclasses.replace(drawn, budget_bytes=floor_bytes))
    assert plan.peak_bytes <= floor_bytes
    assert floor_bytes < floor_of(policy_of('swap-all'), drawn).floor_bytes  # or it shows nothing


def test_verdicts_may_be_a_list(mine):
    mine.listed = lambda problem: Decision([*everything(problem.trace, problem.min_bytes)])
    plan = make_plan(policy_of('mine:listed'), problem(12 * MB))
    assert type(plan.decision().verdicts) is tuple


@pytest.mark.parametrize('act', [
    chainer_ooc.trace, chainer_ooc.reset, lambda: F.sum(chainer.Variable(np.ones((2, 3), np.float32)))])
def test_one_that_asks_for_training_in_the_midst_of_one_is_told_so(mine, act):
    mine.bad = lambda problem: act() and swap_all(problem)
    with ooc('mine:bad', min_bytes=100):
        iterate(layer := L.Linear(64, 64))
        with pytest.raises(PolicyError, match="'mine:bad' applies a function, or calls "):
            iterate(layer)
    with ooc('swap-all', min_bytes=100):
        iterate(layer)


def iterate(layer):
    F.sum(F.tanh(layer(F.relu(layer(np.ones((64, 64), np.float32)))))).backward()


def test_what_is_no_decision_is_said_to_be_none(mine):
    mine.bad = lambda problem: ['keep']
    with pytest.raises(PolicyError, match='has returned a value of type list; have it return a '):
        make_plan(policy_of('mine:bad'), problem())


@pytest.mark.parametrize(('name', 'said'), [
    ('nowhere_at_all:decide', 'cannot be imported (ModuleNotFoundError: No module named'),
    ('mine:absent', "cannot be imported (AttributeError: module 'mine' has no attribute 'absent'"),
    ('mine:', "the policy 'mine:' is of type module; name a function"),
    (':decide', "cannot be imported (ValueError: invalid format: ':decide')"),
    ('mine:number', "the policy 'mine:number' is of type int; name a function that takes a chainer_ooc.problem."),
])
def test_what_cannot_be_found_is_refused_where_it_is_set(mine, name, said):
    mine.number = 5
    with pytest.raises(ConfigError) as refused:
        chainer.config.ooc = name
    assert str(refused.value).startswith(f'chainer.config.ooc = {name!r} cannot be used; ')
    assert said in str(refused.value)
    assert chainer.config.ooc is None


def test_an_error_of_its_module_is_the_cause_of_what_is_raised(tmp_path, monkeypatch):
    (tmp_path / 'broken_policy.py').write_text('1 / 0\n')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match='ZeroDivisionError: division by zero') as refused:
        chainer.config.ooc = 'broken_policy:decide'
    assert isinstance(refused.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(('command', 'option'), [
    ('simulate', '--policy'), ('plan', '--policy'), ('explain', '--policy'), ('compare', '--policies')])
def test_commands_take_it(mine, capsys, file, command, option):
    budget = ('--budget', '12MB') if command != 'compare' else ('--budgets', '12MB')
    found = run_json(capsys, command, file, option, 'mine:largest_first', *budget)
    assert 'mine:largest_first' in str(found)


def test_commands_find_it_in_the_current_folder(tmp_path, monkeypatch, capsys, file):
    (tmp_path / 'policy_here.py').write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'path', [each for each in sys.path if each])
    try:
        found = run_json(capsys, 'simulate', file, '--policy', 'policy_here:largest_first', '--budget', '12MB')
    finally:
        sys.modules.pop('policy_here', None)
    assert found['policy'] == 'policy_here:largest_first'


def test_commands_say_in_a_line_what_is_wrong_with_it(mine, capsys, file):
    mine.bad = lambda problem: Decision(())
    status, out, err = run(capsys, 'simulate', file, '--policy', 'mine:bad', '--budget', '12MB')
    assert (status, out) == (1, '')
    assert "the decision of the policy 'mine:bad' cannot be followed: it has 0 verdicts" in err
    assert 'Traceback' not in err
    status, out, err = run(capsys, 'simulate', file, '--policy', 'mine:worse', '--budget', '12MB')
    assert (status, out) == (2, '')
    assert "module 'mine' has no attribute 'worse'" in err


def test_commands_show_where_its_own_code_failed(capsys, file, tmp_path, monkeypatch):
    (tmp_path / 'failing_policy.py').write_text('def decide(problem):\n    return {}["x"]\n')
    monkeypatch.syspath_prepend(tmp_path)
    status, out, err = run(capsys, 'simulate', file, '--policy', 'failing_policy:decide', '--budget', '12MB')
    assert (status, out) == (1, '')
    assert err.startswith('Traceback') and 'making.py' not in err
    assert 'failing_policy.py", line 2, in decide' in err
    assert err.splitlines()[-1].startswith("error: the policy 'failing_policy:decide' has failed with KeyError: 'x'; ")


def test_a_file_does_not_decide_what_is_imported(mine, capsys, tmp_path):
    """Anybody can write one."""
    plan = make_plan(policy_of('mine:largest_first'), problem(20 * MB))
    timeline = Timeline(1.0, 1, (), (), ())
    (tmp_path / 'run.json').write_text(Run(TRACE, plan, 1, timeline).to_json())
    arguments = 'report', str(tmp_path / 'run.json'), '--out', str(tmp_path / 'page.html')
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, '')
    assert "no file decides what is imported; say --policy mine:largest_first" in err
    assert run(capsys, *arguments, '--policy', 'mine:largest_first')[0] == 0


# --- in training ---------------------------------------------------------------------------------------------------

class Chain(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.layers = chainer.ChainList(*(L.Linear(64, 64) for _ in range(6)))

    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x))
        return F.sum(x * x)


def trained(policy=None, budget=None, iterations=4):
    """Losses and parameters, and the last iteration's stats."""
    np.random.seed(0)
    model = Chain()
    optimizer = chainer.optimizers.MomentumSGD(1e-4).setup(model)
    x = np.random.uniform(-1, 1, (512, 64)).astype('f4')
    bits = []
    with ooc(policy, budget=budget):
        for _ in range(iterations):
            loss = model(x)
            model.cleargrads()
            loss.backward()
            optimizer.update()
            bits.append(loss.array.tobytes())
            del loss
        stats = chainer_ooc.stats() if policy else None
    return bits + [each.array.tobytes() for each in model.params()], stats


def test_training_follows_it_to_the_same_bits_and_within_the_budget(mine):
    expected, _ = trained()
    with pytest.raises(InfeasibleBudgetError) as refused:
        trained(policy='mine:largest_first', budget=1000)
    floor_bytes = refused.value.floor_bytes
    del refused  # it has the frames, and with them a model and a graph
    for margin in (1.02, 1.3):
        budget_bytes = int(floor_bytes * margin)
        found, stats = trained(policy='mine:largest_first', budget=budget_bytes)
        assert found == expected
        assert (stats.policy, stats.phase) == ('mine:largest_first', 'run')
        assert stats.swapped_out_bytes > 0
        assert stats.peak_bytes <= budget_bytes


def test_what_it_has_leave_within_backward_leaves_there(mine):
    """What is recomputed stayed, whatever the plan said."""
    def between_two_steps(problem):
        trace = problem.trace
        relu = next(each for each in trace.calls if each.label == 'ReLU')
        first = next(each.position for each in trace.steps if relu.outputs[0] in each.maps)
        verdicts = [Verdict.KEEP] * len(trace.maps)
        verdicts[relu.outputs[0]] = Verdict.RECOMPUTE
        return Decision(tuple(verdicts), leaves={relu.outputs[0]: first})

    expected, _ = trained()
    mine.between_two_steps = between_two_steps
    found, stats = trained(policy='mine:between_two_steps')
    assert found == expected
    assert stats.recomputed_calls == 2  # with the layer below


def test_training_goes_on_after_a_policy_that_has_failed(mine):
    expected, _ = trained()
    seen = []

    def failing(problem):
        seen.append(problem)
        raise ValueError('not today')

    mine.failing = failing
    with pytest.raises(PolicyError, match="the policy 'mine:failing' has failed with ValueError: not today"):
        trained(policy='mine:failing', budget='2MB')
    assert seen
    found, stats = trained(policy='mine:largest_first', budget='2MB')
    assert found == expected
    assert stats.phase == 'run'


def test_our_own_names_have_no_colon():
    assert not [name for name in POLICIES if ':' in name]


class Parting(chainer.Chain):
    """Two graphs that part behind a map that the program holds until its forward pass ends."""

    def __init__(self):
        super().__init__()
        np.random.seed(0)
        with self.init_scope():
            self.first, self.second = L.Convolution2D(3, 8, 3, pad=1), L.Convolution2D(8, 8, 1)
            self.normal = L.BatchNormalization(8)

    def forward(self, x, is_short):
        h = F.relu(self.first(x))
        held = self.normal(self.second(h))
        h = F.relu(held) + h
        return F.sum(F.tanh(h) if is_short else F.tanh(F.sigmoid(h)))

    def iterate(self, number):
        loss = self(np.random.RandomState(number).randn(4, 3, 12, 12).astype('f'), number % 2)
        self.cleargrads()
        loss.backward()
        return [loss.array.tobytes(), *(each.grad.tobytes() for _, each in sorted(self.namedparams()))]


def recomputes_the_short(problem):
    """Recomputes all it can in the shorter graph, and swaps all in the other."""
    verdict = Verdict.RECOMPUTE if len(problem.trace.calls) < 9 else Verdict.SWAP
    can = can_recompute(problem.trace, problem.min_bytes)
    return Decision(tuple(verdict if each is Verdict.SWAP and (verdict is Verdict.SWAP or can[number]) else each
                          for number, each in enumerate(everything(problem.trace, problem.min_bytes))))


def test_what_one_graphs_plan_has_discarded_comes_back_under_the_plan_of_another(monkeypatch):
    monkeypatch.setitem(sys.modules, 'mine', types.SimpleNamespace(recomputes_the_short=recomputes_the_short))
    with chainer.using_config('ooc', None):
        model = Parting()
        plain = [model.iterate(number) for number in range(12)]
    model = Parting()
    with ooc('mine:recomputes_the_short', min_bytes=1000):
        assert [model.iterate(number) for number in range(12)] == plain


class PartingFromABatch(chainer.Chain):
    """Two graphs that part behind a map of a large batch; one plan discards it and what was made from it."""

    def __init__(self):
        super().__init__()
        np.random.seed(0)
        with self.init_scope():
            self.wide, self.narrow = L.Linear(400, 8), L.Linear(3, 8)

    def iterate(self, number):
        h = self.wide(np.random.RandomState(number).rand(4000, 400).astype('f'))
        total = F.sum(F.tanh(h))
        y = first = self.narrow(np.ones((1, 3), 'f'))
        for _ in range(12):
            y = F.sin(y)
        y = F.sum(y)
        if number % 4 != 3:
            end = F.sum(F.sin(h)) + F.cos(y)
        else:
            wide = F.broadcast_to(first, (125_000, 8))  # its gradient waits for a step of low rank
            end = F.sum(h * F.broadcast_to(y, h.shape)) + F.sum(wide * F.broadcast_to(F.sin(F.sin(y)), wide.shape))
            del wide
        loss = total + end
        del h, total, end, y, first
        self.cleargrads()
        loss.backward()
        return [loss.array.tobytes(), self.wide.W.grad.tobytes()]


def recomputes_before_a_cosine(problem):
    """Swaps batches; recomputes what two functions make where there is a cosine, and swaps the first's otherwise."""
    trace, verdicts = problem.trace, []
    has_cosine = any(each.label == 'Cos' for each in trace.calls)
    for each, again in zip(trace.maps, can_recompute(trace, problem.min_bytes), strict=True):
        label = None if each.producer is None else trace.calls[each.producer].label
        is_one = each.nbytes == 128_000 and label in ('LinearFunction', 'Tanh')
        swapped = (each.nbytes > 3e6 and label is None) or (is_one and label == 'LinearFunction')
        verdicts.append(
            Verdict.RECOMPUTE if is_one and has_cosine and again
            else Verdict.SWAP if swapped and can_leave(each, problem.min_bytes) else Verdict.KEEP)
    return Decision(tuple(verdicts))


def test_a_map_that_a_plan_swaps_is_not_discarded_for_what_another_has_discarded(monkeypatch):
    """It kept its recipe, and was made again beside the batch that it is made from: more than the budget each time."""
    monkeypatch.setitem(
        sys.modules, 'mine', types.SimpleNamespace(recomputes_before_a_cosine=recomputes_before_a_cosine))
    with chainer.using_config('ooc', None):
        model = PartingFromABatch()
        plain = [model.iterate(number) for number in range(16)]
    model, passed = PartingFromABatch(), []
    with ooc('mine:recomputes_before_a_cosine', budget=8_800_000, min_bytes=100_000):
        for number in range(16):
            assert model.iterate(number) == plain[number]
            stats = chainer_ooc.stats()
            if stats.phase == 'run' and stats.peak_bytes > stats.budget_bytes:
                passed.append((number, stats.peak_bytes))
    assert stats.phase == 'run' and stats.recomputed_calls > 0
    assert not passed
