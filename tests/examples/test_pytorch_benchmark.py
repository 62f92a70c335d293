"""The comparison with PyTorch: turns, budgets and searches, with a stand-in for the peer where there is no PyTorch.

The peer's environment is no part of the tests'. PYTORCH_PEER names the Python of one; without it the networks of both
sides are not compared.
"""
import importlib.util
import json
import os
import stat
import sys
import textwrap

import pytest

import largest_batch
import peers
import pytorch
from turns import Worker, WorkerDiedError, order_of, take_turns

PEER = os.environ.get('PYTORCH_PEER') or (sys.executable if importlib.util.find_spec('torch') else None)
TURN = {'seconds': 1.0, 'user_seconds': 0.9, 'system_seconds': 0.1, 'faults': 10, 'peak_bytes': 200, 'planned': False}


@pytest.fixture
def worker(tmp_path):
    """Makes workers of a script, which has `say` and `lines`, and closes them."""
    made = []

    def make(text, name='stand-in', **more):
        path = tmp_path / f'{name}{len(made)}.py'
        path.write_text('import json, sys, time\ndef say(**line): print(json.dumps(line), flush=True)\n'
                        'lines = iter(sys.stdin.readline, "")\n' + textwrap.dedent(text))
        made.append(Worker(name, [sys.executable, str(path)], dict(os.environ), **more))
        return made[-1]
    yield make
    for each in made:
        each.close()


def arguments(*more, peer='peer'):
    return pytorch.parse_arguments(['--peer', str(peer), '--threads', '1', *more])


def executable(path, text):
    path.write_text(f'#!{sys.executable}\n' + textwrap.dedent(text))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


# --- turns -----------------------------------------------------------------------------------------------------------


def test_every_worker_begins_a_round_and_neighbours_change():
    rounds = [order_of('abc', number) for number in range(6)]
    assert rounds == [['a', 'b', 'c'], ['a', 'c', 'b'], ['c', 'a', 'b'], ['c', 'b', 'a'], ['b', 'c', 'a'],
                      ['b', 'a', 'c']]


def test_workers_take_turns_one_at_a_time(worker):
    text = 'say(ready=True)\nfor number, _ in enumerate(lines): say(seconds=number)'
    workers = {name: worker(text, name) for name in ('a', 'b')}
    for each in workers.values():
        each.wait()
    seen = []
    found = take_turns(workers, 3, lambda number, name, turn: seen.append((number, name)))
    assert [turn['seconds'] for turn in found['b']] == [0, 1, 2]
    assert seen == [(1, 'a'), (1, 'b'), (2, 'a'), (2, 'b'), (3, 'a'), (3, 'b')]


def test_worker_that_dies_says_why(worker):
    dying = worker('say(ready=True)\nnext(lines)\nsys.exit("DefaultCPUAllocator: cannot allocate memory")')
    dying.wait()
    with pytest.raises(WorkerDiedError, match=r'DefaultCPUAllocator: .* \(exit status 1\)'):
        dying.go()


def test_worker_that_hangs_is_ended(worker):
    with pytest.raises(WorkerDiedError, match=r'more than 0\.3 s'):
        worker('time.sleep(600)', patience_seconds=0.3).wait()


def test_private_memory_is_seen_while_a_worker_gets_ready(worker):
    big = worker('block = b"x" * 50_000_000\ntime.sleep(0.5)\nsay(ready=True)\nnext(lines)')
    big.wait()
    assert big.anon_peak_bytes > 50_000_000


# --- rows ------------------------------------------------------------------------------------------------------------


class Ready:
    """A worker that has said how it is, without a process."""

    def __init__(self, name='keep', anon_peak_bytes=100, **about):
        self.name, self.anon_peak_bytes = name, anon_peak_bytes
        self.about = {'imported_bytes': 10, 'parameters': 6, 'layers': [], 'versions': {}, 'refusals': 0, **about}
        self.closed = False

    def wait(self):
        pass

    def close(self):
        self.closed = True


def test_ratio_is_the_median_of_those_within_rounds():
    slow_moment = [{**TURN, 'seconds': seconds} for seconds in (1.0, 5.0, 1.0)]
    beside = [{**TURN, 'seconds': seconds, 'peak_bytes': 400} for seconds in (2.0, 10.0, 1.0)]
    row = pytorch.row_of('keep', Ready(), slow_moment, beside)
    assert (row['ratio'], row['seconds'], row['spread']) == (0.5, 1.0, [1.0, 5.0])
    assert (row['peak_ratio'], row['system_share']) == (0.5, pytest.approx(0.1))


def test_multiplications_of_convolutions_and_linear_layers_are_counted():
    layers = [[[8, 3, 5, 5], [1, 8, 10, 10]], [[8], [1, 8, 10, 10]], [[4, 800], [1, 4]]]
    assert pytorch.multiplications(layers) == 75 * 800 + 800 * 4


def test_networks_with_other_layers_are_refused():
    one, other = ({'parameters': 6, 'layers': [[[2, 3], [1, outputs]]]} for outputs in (2, 4))
    peers.check_same(one, one)
    with pytest.raises(RuntimeError, match='different layers'):
        peers.check_same(one, other)
    with pytest.raises(RuntimeError, match='6 and 7 parameters'):
        peers.check_same(one, {**one, 'parameters': 7})


@pytest.mark.parametrize(('floor_bytes', 'budgets', 'refusals'), [(0, [700, 600], 0), (650, [700, 600], 1)])
def test_budget_is_corrected_until_the_process_keeps_within(monkeypatch, floor_bytes, budgets, refusals):
    asked, started = [], []

    def start(name, network, arguments, budget):
        asked.append(budget)
        got = max(budget, floor_bytes)
        started.append(Ready(name, peak_bytes=got + 400, budget_bytes=got, refusals=int(got > budget)))
        return started[-1]

    monkeypatch.setattr(peers, 'start', start)
    found = peers.start_within(1000, 300, 'pooch', 'resnet50', arguments())
    assert asked == budgets
    assert found is started[-1] and found.about['refusals'] == refusals
    assert [each.closed for each in started] == [True, False]


def test_allocator_gives_memory_back_in_rows_that_save_it(tmp_path):
    peer = executable(tmp_path / 'peer', """
        import json, os, sys
        print(json.dumps({'threshold': os.environ.get('MALLOC_MMAP_THRESHOLD_'), 'row': json.loads(sys.argv[2])}))
        """)
    said = {}
    for name, limit_bytes in (('PyTorch', None), ('PyTorch checkpoint', None), ('PyTorch', 10**9)):
        with peers.start(name, 'vgg16', arguments(peer=peer), limit_bytes=limit_bytes) as started:
            started.wait()
            said[name, limit_bytes] = started.about
    assert [about['threshold'] for about in said.values()] == [None, '65536', '65536']
    assert said['PyTorch checkpoint', None]['row']['way'] == 'checkpoint'


@pytest.mark.long
def test_a_comparison_runs_through(tmp_path, monkeypatch, capsys):
    # The stand-in for PyTorch is Chainer: it speaks the same language, and has the same layers.
    peer = executable(tmp_path / 'peer', f"""
        import json, os, sys
        row = json.dumps({{**json.loads(sys.argv[2]), 'entries': {{}}}})
        os.execv({sys.executable!r}, [{sys.executable!r}, {str(peers.HERE / 'chainer_worker.py')!r}, row])
        """)
    figures = tmp_path / 'figures.json'
    monkeypatch.setattr(sys, 'argv', [
        'pytorch.py', '--peer', str(peer), '--networks', 'googlenet', '--crop', '32', '--batchsize', '1',
        '--rounds', '1', '--threads', '1', '--ways', 'pooch', '--json', str(figures)])
    pytorch.main()
    rows = json.loads(figures.read_text())['rows']
    assert [row['way'] for row in rows] == ['PyTorch', 'keep', 'pooch']
    assert {row['image_multiplications'] for row in rows} == {rows[0]['image_multiplications']}
    assert all(row['seconds'] > 0 and row['peak_bytes'] > row['imported_bytes'] for row in rows)
    assert rows[2]['budget_bytes'] and rows[2]['refusals']  # a third of such a small process is too little
    assert '* raised to' in capsys.readouterr().out


# --- the largest batch -----------------------------------------------------------------------------------------------


def test_largest_batch_is_the_last_that_went_through(monkeypatch, capsys):
    def turns_of(name, network, arguments, batchsize, count, settle):
        if batchsize > 20:
            raise WorkerDiedError('bad_alloc')
        return [{**TURN, 'seconds': 5.0}] * count

    monkeypatch.setattr(largest_batch, 'turns_of', turns_of)
    row = largest_batch.measure_largest('pooch', 'resnet50', arguments())
    assert (row['batchsize'], row['image_seconds'], row['peak_bytes']) == (20, 0.25, 200)
    assert row['tried'] == {8: 'fits', 16: 'fits', 32: 'bad_alloc', 24: 'bad_alloc', 20: 'fits'}
    assert 'batch 24: bad_alloc' in capsys.readouterr().out


def test_limit_is_one_on_the_worker():
    with pytest.raises(WorkerDiedError, match='keep, googlenet, batch 1 ended'):
        largest_batch.turns_of('keep', 'googlenet', arguments('--limit', '60MB', '--crop', '32'), 1, 1, settle=False)


# --- with PyTorch ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(PEER is None, reason='no PyTorch here; PYTORCH_PEER can name a Python that has it and torchvision')
@pytest.mark.parametrize('network', pytorch.NETWORKS)
def test_layers_of_both_sides_are_the_same(network):
    asked = arguments('--crop', '224', '--batchsize', '1', peer=PEER)
    ways = ('PyTorch', 'PyTorch checkpoint', 'PyTorch saved to a file', 'plain Chainer')
    about = {}
    for name in ways:
        with peers.start(name, network, asked, settle=False) as started:
            started.wait()
            about[name] = started.about
    for name in ways[:-1]:
        peers.check_same(about[name], about['plain Chainer'])
