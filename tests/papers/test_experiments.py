"""Experiments on paper: from a recording at small sizes to a time, or a refusal."""
import dataclasses
import json

import pytest

from chainer_ooc.papers.experiments import Experiments, units_of
from chainer_ooc.papers.published import POOCH, PUBLISHED, SWAP_ALL, SWAP_ALL_NAIVE, SWAP_OPT
from chainer_ooc.trace import ArrayForm, Call, FeatureMap, Step, Trace

LAYERS = 8
IMAGE_BYTES = 4 * 256 * 1024  # of each map: 256 channels of 32x32


def recorded(network, batch):
    """Layers in a row: convolutions that keep the size of an image, with a ReLU behind each."""
    shape, weights = (batch, 256, 32, 32), (256, 256, 3, 3)
    x, w = (ArrayForm('<f4', each) for each in (shape, weights))
    calls, count = [], 2 * LAYERS
    for index in range(count):
        label, parameters = ('ReLU', ()) if index % 2 else ('Convolution2DFunction', (-1,))
        arguments = (x,) if index % 2 else (x, w)
        calls.append(Call(index, label, (index, *parameters), (index + 1,), (), 0.1, 10**6, arguments, (x,), True))
    maps = []
    for each in range(count + 1):
        # a convolution's input is kept: the batch, or what a ReLU made, which its own step reads too
        readers = (each, each - 1) if not each % 2 else ()
        uses = tuple(sorted(2 * count - 1 - call for call in readers if 0 <= call < count))
        maps.append(FeatureMap(each, IMAGE_BYTES * batch, each - 1 if each else None, False, bool(uses), each == 0,
                               min(each, count - 1), uses, shape, 'float32'))
    steps = tuple(Step(count + number, count - 1 - number,
                       tuple(each.id for each in maps if count + number in each.backward_uses), 0.2, 10**6, 0)
                  for number in range(count))
    parameter_bytes = LAYERS * 4 * 256 * 256 * 9
    return Trace('host', tuple(calls), steps, tuple(maps), 1.0, 1e9, 1e9,
                 standing_forward_bytes=2 * parameter_bytes, standing_backward_bytes=parameter_bytes)


@pytest.fixture
def machine(tmp_path):
    """The path of a machine with 100 MB, of which the test may want more or less."""
    def describe(near_bytes=100 * 10**6, link=1e9, name='toy'):
        figures = {'memory_bytes_per_second': 1e11, 'write_bytes_per_second': link, 'read_bytes_per_second': link,
                   'latency_seconds': 0, 'near_bytes': near_bytes, 'reserve_bytes': 0}
        path = tmp_path / f'{name}.json'
        path.write_text(json.dumps({'name': name, 'title': name, 'figures': {
            'operations_per_second': {'float32': {'value': 1e12, 'source': 'made up'}},
            **{key: {'value': value, 'source': 'made up'} for key, value in figures.items()}}}))
        return str(path)
    return describe


@pytest.fixture
def experiments():
    asked = []

    def record(network, size):
        asked.append((network, size))
        return recorded(network, size)
    found = Experiments(record)
    found.asked = asked
    return found


def test_a_network_is_recorded_at_two_small_batches_once(experiments):
    large, larger = experiments.trace('toy', 64), experiments.trace('toy', 640)
    assert experiments.asked == [('toy', 2), ('toy', 3)]
    assert [each.maps[0].nbytes for each in (large, larger)] == [64 * IMAGE_BYTES, 640 * IMAGE_BYTES]


def test_a_trace_is_a_gpus(experiments):
    trace = experiments.trace('toy', 10)
    assert (trace.device, trace.maps[0].foreign) == ('cuda', False)
    # a convolution: its output and a workspace of 8 MiB
    assert trace.calls[0].peak_bytes == 10 * IMAGE_BYTES + (8 << 20)
    assert trace.calls[1].peak_bytes == 10 * IMAGE_BYTES


def test_in_core_tells_whether_the_machine_holds_it(experiments, machine):
    # nine maps are kept, and backward has a gradient and the next: some ten maps, and parameters three times
    fits = experiments.in_core('toy', 2, machine(100 * 10**6))
    not_so = experiments.in_core('toy', 64, machine(100 * 10**6, name='other'))
    assert (fits.feasible, not_so.feasible) == (True, False)
    assert fits.device_bytes <= 100 * 10**6 < not_so.device_bytes
    assert not_so.seconds == not_so.in_core_seconds


def test_a_stated_throughput_is_met_in_core(experiments, machine):
    found = experiments.in_core('toy', 64, machine(), images_per_second=123.0)
    assert found.in_core_images_per_second == pytest.approx(123.0)


def test_without_one_times_are_drawn_out_as_the_references_are(experiments, machine):
    # the reference network is this one too: 128 images at 316 a second on a V100
    found = experiments.in_core('toy', 128, 'v100-pcie3')
    assert found.in_core_images_per_second == pytest.approx(316.0)


def test_policies_run_where_in_core_does_not(experiments, machine):
    path = machine(600 * 10**6)
    in_core = experiments.in_core('toy', 64, path)
    found = {policy: experiments.run('toy', 64, path, policy)
             for policy in ('swap-all-naive', 'swap-all', 'swap-opt', 'pooch')}
    assert not in_core.feasible
    assert all(each.feasible and each.peak_bytes <= 600 * 10**6 for each in found.values())
    times = [each.seconds for each in found.values()]
    assert times == sorted(times, reverse=True)
    assert times[-1] < times[0]
    assert found['swap-all'].swap == 9
    assert found['pooch'].below == pytest.approx(1 - in_core.seconds / times[-1])


def test_a_machine_that_is_too_small_runs_out_of_memory(experiments, machine):
    found = experiments.run('toy', 64, machine(100 * 10**6), 'pooch')
    assert (found.feasible, found.seconds, found.images_per_second, found.below) == (False, None, None, None)
    assert found.in_core_seconds > 0


def test_a_pool_needs_a_budget_below_the_device(experiments, machine):
    path = machine(600 * 10**6)
    exact, pool = (experiments.run('toy', 64, path, 'swap-all', allocator=each) for each in ('exact', 'pool'))
    assert exact.budget_bytes == 600 * 10**6
    assert pool.budget_bytes <= exact.budget_bytes
    assert pool.peak_bytes <= pool.budget_bytes <= 600 * 10**6
    assert pool.peak_bytes <= pool.device_bytes <= 600 * 10**6


def test_a_plan_for_another_machine_keeps_its_verdicts(experiments, machine):
    slow, fast = machine(500 * 10**6, link=1e8, name='slow'), machine(500 * 10**6, link=1e11, name='fast')
    at_home = experiments.run('toy', 64, fast, 'pooch')
    moved = experiments.run('toy', 64, slow, 'pooch', planned_for=fast)
    own = experiments.run('toy', 64, slow, 'pooch')
    assert (moved.keep, moved.swap, moved.recompute) == (at_home.keep, at_home.swap, at_home.recompute)
    assert own.recompute > at_home.recompute
    assert moved.seconds is None or moved.seconds > own.seconds


def test_maps_leave_to_the_end_as_in_the_papers(experiments, machine):
    found = experiments.run('toy', 64, machine(10**12), 'swap-all-naive')
    copied_seconds = 9 * 64 * IMAGE_BYTES / 1e9
    assert found.seconds > 2 * copied_seconds


def test_what_is_published_has_poochs_memory(experiments, machine):
    path = machine(700 * 10**6)
    found = {policy: experiments.run('toy', 64, path, policy) for policy in PUBLISHED}
    pool_bytes = int(0.95 * 16160 / 16384 * 700 * 10**6)
    assert {(each.budget_bytes, each.keep + each.swap + each.recompute) for each in found.values()} == {
        (pool_bytes, 8)}  # nine maps, of which the input stays
    assert all(each.feasible and each.peak_bytes <= pool_bytes for each in found.values())
    times = [found[policy].seconds for policy in (SWAP_ALL_NAIVE, SWAP_ALL, SWAP_OPT, POOCH)]
    assert times == sorted(times, reverse=True)
    assert times[-1] < times[0]


def test_a_published_plan_moves_with_its_verdicts_and_runs_slower(experiments, machine):
    slow, fast = machine(700 * 10**6, link=1e8, name='slow'), machine(700 * 10**6, link=1e11, name='fast')
    at_home, own = experiments.run('toy', 64, fast, POOCH), experiments.run('toy', 64, slow, POOCH)
    moved = experiments.run('toy', 64, slow, POOCH, planned_for=fast)
    assert (moved.keep, moved.swap, moved.recompute) == (at_home.keep, at_home.swap, at_home.recompute)
    assert own.recompute > at_home.recompute
    assert moved.feasible and moved.seconds > own.seconds


def test_units_of_volumes():
    assert (units_of(64), units_of((2, 3, 4))) == (64, 24)


def test_an_outcome_is_frozen(experiments, machine):
    with pytest.raises(dataclasses.FrozenInstanceError):
        experiments.in_core('toy', 2, machine()).seconds = 1.0
