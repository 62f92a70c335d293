"""Memory as PoocH's Chainer has it, on a short row of layers."""
import dataclasses

import pytest

from chainer_ooc.cost.costs import Costs
from chainer_ooc.cost.machine import read_machine
from chainer_ooc.papers.pooch_chainer import as_pooch_has_it, blocks_of, freed_with_blocks, pool_bytes, without_scales
from chainer_ooc.problem import Problem, Standing
from chainer_ooc.trace import Call, FeatureMap, Step, Trace


def layers():
    """Two convolutions, with a normalisation and a ReLU between them.

        map        0 -conv0-> 1 -norm-> 2 -relu-> 3 -conv1-> 4
        retained   yes        yes       no        yes        no
        steps      8          7         6 (3)     5
        position   7: conv0   6: norm   5: relu   4: conv1
    """
    def feature_map(number, producer, retained, last_forward_use, uses):
        return FeatureMap(number, 4, producer, False, retained, False, last_forward_use, uses, (4,), 'uint8')
    maps = (feature_map(0, None, True, 0, (7,)), feature_map(1, 0, True, 1, (6,)), feature_map(2, 1, False, 2, ()),
            feature_map(3, 2, True, 3, (4, 5)), feature_map(4, 3, False, 3, ()))
    labels = ('Convolution2DFunction', 'BatchNormalization', 'ReLU', 'Convolution2DFunction')
    calls = tuple(Call(each, label, (each,), (each + 1,), (), 0.0, 4, repeatable=True)
                  for each, label in enumerate(labels))
    reads = {4: (3,), 5: (3,), 6: (1,), 7: (0,)}
    steps = tuple(Step(position, 7 - position, reads[position], 0.0, 0, 0) for position in range(4, 8))
    return Trace('cuda', calls, steps, maps, 0.0, 0.0, 0.0)


def test_a_block_goes_from_a_retained_map_to_the_next():
    # conv1 makes nothing that is retained, but backward begins there; relu makes 3, norm 2, conv0 makes 1
    assert blocks_of(layers()) == ((4, 4), (5, 6), (7, 7))


def test_a_map_stays_to_the_end_of_its_own_block():
    trace = freed_with_blocks(layers())
    assert [each.backward_uses for each in trace.maps] == [(7,), (6, 7), (), (4, 5, 6), ()]
    assert [each.maps for each in trace.steps] == [(3,), (3,), (1, 3), (0, 1)]


def test_the_input_stays():
    assert [each.foreign for each in freed_with_blocks(layers()).maps] == [True, False, False, False, False]


def test_nothing_else_is_changed():
    trace, before = freed_with_blocks(layers()), layers()
    assert (trace.calls, trace.positions) == (before.calls, before.positions)
    assert [dataclasses.replace(each, backward_uses=(), foreign=False) for each in trace.maps] == [
        dataclasses.replace(each, backward_uses=()) for each in before.maps]


def test_local_response_normalisation_keeps_no_scales():
    trace = layers()
    hidden = FeatureMap(5, 4, 1, True, True, False, 1, (6,), (4,), 'uint8')
    calls = list(trace.calls)
    calls[1] = dataclasses.replace(calls[1], label='LocalResponseNormalization', hidden=(5,))
    found = without_scales(dataclasses.replace(trace, calls=tuple(calls), maps=(*trace.maps, hidden)))
    assert (found.maps[5].nbytes, found.maps[5].retained, found.maps[5].backward_uses) == (0, False, ())
    assert found.maps[:5] == trace.maps


def test_the_pool_is_95_percent_of_what_the_driver_shows():
    machine = read_machine('v100-pcie3')
    assert pool_bytes(machine) == pytest.approx(0.95 * 16160 * 2**20, abs=1)
    costs = Costs((1.0,) * 8, 1.0, 1.0)
    found = as_pooch_has_it(Problem(layers(), costs, Standing(0, 0), 10**12, 1), machine)
    assert (found.budget_bytes, found.trace) == (pool_bytes(machine), freed_with_blocks(layers()))
