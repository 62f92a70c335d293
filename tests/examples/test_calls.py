"""The benchmark of many small calls: what it draws, computes and says of rows that do not end; times are not tested."""

import numpy as np
import pytest

import calls
import small_calls
from small_calls import WORKS, Size

ROW = {'work': 'chain', 'size': vars(Size(calls=12)), 'policy': 'swap-all', 'share': 0.5, 'min_bytes': 0, 'pairs': 2,
       'limit_seconds': 30.0}


def pair(phase, plain_seconds, ooc_seconds, warm_up=False):
    return {'phase': phase, 'plain_seconds': plain_seconds, 'ooc_seconds': ooc_seconds, 'warm_up': warm_up}


def test_power_of_points_is_found():
    assert calls.exponent([(n, 3e-5 * n ** 2) for n in (50, 100, 400)]) == pytest.approx(2)
    assert calls.exponent([(n, 0.1) for n in (50, 100, 400)]) == pytest.approx(0)
    assert calls.exponent([(50, 1.0)]) is None


def test_ratios_are_medians_without_the_pair_that_warms_up():
    lines = [{'calls': 10}, pair('recorded', 1.0, 9.0, warm_up=True), pair('recorded', 1.0, 4.0),
             pair('recorded', 2.0, 4.0), pair('recorded', 1.0, 3.0), pair('run', 1.0, 2.0, warm_up=True)]
    row = calls.summarize(ROW, lines, None)
    assert row['recorded_ratio'] == 3.0
    assert row['recorded_call_seconds'] == 0.4
    assert row['run_ratio'] == 2.0  # the only pair there was time for


def test_row_that_was_ended_says_in_which_phase():
    row = calls.summarize(ROW, [{'calls': 10}, pair('recorded', 1.0, 4.0)], 'planned')
    assert row['recorded_ratio'] == 4.0
    assert row['run_ratio'] == 'over 30 s (planned)'


def test_row_that_failed_says_why():
    row = calls.summarize(ROW, [{'calls': 10}, {'error': 'RuntimeError: refused'}], None)
    assert row['recorded_ratio'] == 'RuntimeError: refused'


def worker(tmp_path, monkeypatch, text):
    path = tmp_path / 'worker.py'
    path.write_text('import json, sys, time\ndef say(**line): print(json.dumps(line), flush=True)\n' + text)
    monkeypatch.setattr(calls, 'WORKER', path)


def test_worker_that_does_not_end_is_ended_and_larger_sizes_are_not_tried(tmp_path, monkeypatch):
    worker(tmp_path, monkeypatch, 'say(calls=5); say(begin="recorded"); time.sleep(600)')
    shown = []
    rows = calls.Runner(0.5, shown.append).run_series([ROW, ROW])
    assert [row['over'] for row in rows] == ['recorded']
    assert 'over 30 s (recorded)' in shown[0]


def test_worker_that_dies_is_a_row_with_an_error(tmp_path, monkeypatch):
    worker(tmp_path, monkeypatch, 'say(calls=5); say(begin="run"); sys.exit(3)')
    row = calls.Runner(30.0, lambda text: None).run(ROW)
    assert row['over'] is None
    assert row['error'] == 'exit status 3 in phase run'


@pytest.mark.parametrize('work', ['chain', 'arrays'])
def test_row_is_measured_with_the_bits_of_plain_chainer(work):
    row = calls.Runner(60.0, lambda text: None).run({**ROW, 'work': work})
    assert (row['error'], row['over'], row['bits'], row['calls']) == (None, None, 'equal', 12)
    assert row['recorded_ratio'] > 0 and row['run_ratio'] > 0 and row['trace_seconds'] > 0
    assert row['budget_bytes'] > 0


def test_series_are_of_one_work_policy_and_budget_with_the_smallest_first():
    series = list(calls.series_of(calls.argparse.Namespace(
        works=['chain', 'thin-stack'], policies=['keep', 'pooch'], calls=[100, 50], array_bytes=4096, share=0.3,
        pairs=1, limit=1.0)))
    assert [(rows[0]['work'], rows[0]['share'], rows[0]['policy'], len(rows)) for rows in series] == [
        ('chain', None, 'keep', 2), ('chain', None, 'pooch', 2), ('chain', 0.3, 'keep', 2), ('chain', 0.3, 'pooch', 2),
        ('thin-stack', 0.3, 'pooch', 3)]
    assert [row['size']['calls'] for row in series[0]] == [50, 100]


def test_lines_of_rows_are_drawn(tmp_path, matplotlib):
    rows = [{'work': 'chain', 'share': share, 'policy': 'pooch', 'calls': n, 'plain_fastest_seconds': 1e-5 * n,
             'recorded_fastest_seconds': 1e-4 * n, 'planned_fastest_seconds': None, 'run_fastest_seconds': 3e-5 * n}
            for share in (None, 0.3) for n in (50, 100)]
    assert [row['recorded_exponent'] for row in calls.exponents_of(rows)] == pytest.approx([1, 1])
    calls.draw(rows, tmp_path / 'calls.png')
    assert (tmp_path / 'calls.png').read_bytes().startswith(b'\x89PNG')
    with pytest.raises(ValueError, match='measure at least one'):
        calls.draw([{**rows[0], 'work': 'thin-stack'}], tmp_path / 'none.png')


# --- the networks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('work', sorted(WORKS))
def test_work_gives_the_same_bits_each_time_and_counts_its_calls(work):
    import chainer

    class Count(chainer.FunctionHook):
        calls = 0

        def forward_postprocess(self, function, in_data):
            self.calls += chainer.config.enable_backprop  # functions that backward applies do not count

    made = WORKS[work](Size(calls=20, leaves=6, batchsize=3))
    digest = made.iterate({})[1]
    assert digest == made.iterate({})[1]
    with Count() as count:
        made.iterate({})
    assert count.calls == made.calls


def test_each_node_of_a_tree_is_read_once_after_it_was_written():
    size = Size(leaves=9, batchsize=7)
    written, left = [set() for _ in range(7)], [set() for _ in range(7)]
    for step in small_calls.draw_steps(size, 50, 5):
        for tree, target in enumerate(step.target):
            for child in () if step.left is None else (step.left[tree], step.right[tree]):
                left[tree].remove(child)
            assert target not in written[tree] and target < 2 * size.leaves
            written[tree].add(target)
            left[tree].add(target)
    assert [len(each) for each in left] == [1] * 7  # the root
    assert all(len(each) % 2 for each in written)


def test_stack_has_the_gradients_of_trees_without_one():
    """The same vectors and the same tree, by concatenation instead of writing in place."""
    import chainer
    import chainer.functions as F

    vectors = [chainer.Variable(np.full((1, 4), 0.1 * n + 0.1, np.float32)) for n in range(3)]
    others = [chainer.Variable(each.array.copy()) for each in vectors]
    stack, overwritten = np.zeros((1, 4, 4), np.float32), chainer.Variable(np.ones((1, 4), np.float32))
    for place, each in [(2, overwritten), *enumerate(vectors)]:
        stack = small_calls.StackSet()(stack, np.array([place], np.int32), each)
    first, stack = small_calls.StackGet()(stack, np.array([0], np.int32))
    second, stack = small_calls.StackGet()(stack, np.array([2], np.int32))
    F.sum(F.sin(first) * second).backward()
    F.sum(F.sin(others[0]) * others[2]).backward()
    assert np.array_equal(vectors[0].grad, others[0].grad)
    assert np.array_equal(vectors[2].grad, others[2].grad)
    assert not vectors[1].grad.any()
    assert not overwritten.grad.any()
