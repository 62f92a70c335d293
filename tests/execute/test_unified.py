"""Policy unified: what does not fit is read where the system pages it, with the bits of plain Chainer.

With memory enough it maps nothing; `map-all` of `verdict_mixes` maps whatever it can, and `test_user_references` has it
too.
"""
import gc
import os
import time

import chainer.functions as F
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.backends import arrays
from chainer_ooc.errors import SpillError
from chainer_ooc.execute.storage.states import State
from chainer_ooc.execute.storage.storage import Storage
from support.combinations import spread
from support.trainings.faults import Patched, interrupt, interrupted_after, train_with_a_fault
from support.trainings.ooc_networks import NETWORKS
from support.trainings.ooc_training import (
    Training,
    assert_same_bits,
    floor_of,
    live_storages,
    ooc,
    plain,
    spill_bytes,
    train,
)
from support.trainings.ooc_training import train_at_the_floor as at_the_floor
from support.trainings.shown_maps import batch, make, steps
from support.trainings.verdict_mixes import MAPPED

pytestmark = pytest.mark.usefixtures('verdict_mixes')


@pytest.mark.parametrize('network', NETWORKS)
def test_training_without_a_budget_gives_the_bits_of_plain_chainer_and_maps_nothing(network):
    outcome = train(network, 'unified')
    assert_same_bits(outcome, plain(network))
    assert [(each.faults, each.swap) for each in outcome.stats[2:]] == [(0, 0)] * 2


# Each network and policy at one of the two budgets.
@pytest.mark.parametrize(('network', 'policy'), spread(list(NETWORKS), ['unified', *MAPPED], every=4))
def test_training_at_the_floor_gives_the_bits_of_plain_chainer_within_the_budget(network, policy):
    training, floor_bytes = at_the_floor(network, policy)
    assert_same_bits(training.outcome, plain(network))
    assert {each.phase for each in training.outcome.stats[1:]} == {'run'}
    assert max(each.peak_bytes for each in training.outcome.stats[1:]) <= floor_bytes
    assert [each.swapped_in_bytes for each in training.outcome.stats[1:]] == [0] * 3
    assert training.outcome.stats[-1].swap > 0


@pytest.mark.parametrize(('network', 'policy'), spread(list(NETWORKS), ['unified', *MAPPED], every=4, first=1))
def test_training_at_twice_the_floor_gives_the_bits_of_plain_chainer(network, policy):
    assert_same_bits(train(network, policy, budget=2 * floor_of(network, policy)), plain(network))


@pytest.mark.parametrize('network', NETWORKS)
def test_everything_mapped_gives_the_bits_of_plain_chainer_and_reads_all_of_it_in_time(network):
    outcome = train(network, 'map-all', 5)
    assert_same_bits(outcome, plain(network, 5))
    assert [each.faults for each in outcome.stats[2:]] == [0] * 3
    assert [each.swapped_in_bytes for each in outcome.stats[1:]] == [0] * 4
    assert outcome.stats[-1].swapped_out_bytes > 0


def test_what_is_mapped_is_not_counted(prompt_swap_outs):
    mapped, swapped = (train('residual', policy).stats[-1] for policy in ('map-all', 'swap-all'))
    assert mapped.swap == swapped.swap
    assert mapped.peak_bytes < swapped.peak_bytes


def test_the_floor_is_no_higher_than_that_of_swapping_everything():
    for network in ('residual', 'hidden', 'inception'):
        assert floor_of(network, 'map-all') <= floor_of(network, 'swap-all')


@pytest.mark.host
@pytest.mark.parametrize('network', ['residual', 'hidden', 'inception'])
def test_a_map_that_is_read_while_it_leaves_is_exchanged_for_its_mapping(network, monkeypatch):
    """Copies so slow that backward catches up with them; the budget has no room for a map that would stay."""
    write = os.pwritev

    def slowly(*arguments):
        time.sleep(0.01)
        return write(*arguments)

    monkeypatch.setattr(os, 'pwritev', slowly)
    training, floor_bytes = at_the_floor(network, 'map-all')
    assert_same_bits(training.outcome, plain(network))
    assert max(each.peak_bytes for each in training.outcome.stats[1:]) <= floor_bytes
    assert training.outcome.stats[-1].stall_seconds > 0


def storages(*states):
    gc.collect()  # what other tests left
    return [each for each in gc.get_objects() if type(each) is Storage and each.state in states]


def test_maps_go_from_far_memory_to_a_mapping_and_back_with_their_last_use(prompt_swap_outs):
    training = Training('residual')
    with ooc('map-all'):
        training.iterate(2)
        loss = training.forward()
        away = [each for each in storages(State.AWAY) if each.pending_uses]
        assert len(away) > 5 and not any(each.mapped for each in away)
        training.model.cleargrads()
        loss.backward()
        assert {(each.state, each.mapped, each.root()) for each in away} == {(State.AWAY, True, None)}
    del loss, away


def test_a_map_that_the_user_wrote_to_goes_back_to_far_memory_with_what_he_wrote(prompt_swap_outs):
    def written(count):
        model = make()
        steps(model, count)
        loss = model(*batch(count))
        for variable in model.h.values():
            variable.array[...] *= 1.5
        model.cleargrads()
        loss.backward()
        return model

    expected = {name: variable.array.copy() for name, variable in written(2).h.items()}
    with ooc('map-all'):
        model = written(2)
        mapped = [each for each in storages(*State) if each.mapped]
        assert sum(each.state is State.AWAY and each.root() is None for each in mapped) == len(mapped) > 2
        assert {name for name, array in expected.items() if not np.array_equal(model.h[name].array, array)} == set()


@pytest.mark.parametrize('network', ['residual', 'hidden', 'inception'])
def test_maps_are_asked_for_in_time_where_the_budget_is_full(network, prompt_swap_outs):
    training, _ = at_the_floor(network, 'map-all')
    assert [each.faults for each in training.outcome.stats[2:]] == [0, 0]


def refuse(original, *arguments):
    raise SpillError('injected: no mapping')


def out_of_addresses(original, *arguments):
    raise MemoryError('injected: no addresses')


@pytest.mark.parametrize('after', [0, 3])
def test_a_mapping_without_addresses_is_an_error_and_loses_nothing(backend_class, after):
    train_with_a_fault('residual', 'map-all', 2, Patched(backend_class, 'map', out_of_addresses, after=after),
                       MemoryError)


@pytest.mark.parametrize('after', [0, 3])
@pytest.mark.parametrize('network', ['residual', 'hidden', 'views'])
def test_what_the_system_refuses_to_map_is_copied_in(backend_class, network, after):
    training = Training(network)
    with ooc('map-all'), Patched(backend_class, 'map', refuse, after=after):
        training.iterate(4)
    assert_same_bits(training.finish(), plain(network))
    assert training.outcome.stats[-1].swapped_in_bytes > 0


@pytest.mark.parametrize('after', [0, 3])
def test_a_mapping_that_is_refused_once_is_asked_for_again(backend_class, after):
    training = Training('residual')
    with ooc('map-all'):
        training.iterate(2)
        with Patched(backend_class, 'map', out_of_addresses, after=after, times=1) as patched:
            training.iterate(2)
        assert patched is None
    assert_same_bits(training.finish(), plain('residual'))


@pytest.mark.parametrize('failure', [interrupt, interrupted_after])
@pytest.mark.parametrize('after', [0, 3])
def test_keyboard_interrupt_as_a_map_is_mapped(backend_class, failure, after):
    train_with_a_fault('residual', 'map-all', 2, Patched(backend_class, 'map', failure, after=after), KeyboardInterrupt)


@pytest.mark.host
@pytest.mark.parametrize('at', [1, 2])
def test_disk_full_in_a_swap_out_that_is_read_meanwhile(at):
    def no_space(original, *arguments):
        time.sleep(0.002)
        raise OSError(28, 'injected: no space')

    train_with_a_fault('hidden', 'map-all', at, Patched(os, 'pwritev', no_space, after=4), SpillError)


@pytest.mark.host
def test_iterations_leave_no_mapping_no_descriptor_and_no_space(monkeypatch):
    def shared_mappings():
        with open('/proc/self/maps', encoding='ascii') as lines:
            return sum('(deleted)' in line and ' rw-s ' in line for line in lines)

    training, seen = Training('residual'), []
    with ooc('map-all'):
        training.iterate(2)
        for _ in range(6):
            training.iterate()
            gc.collect()
            seen.append((shared_mappings(), len(os.listdir('/proc/self/fd')), spill_bytes(), live_storages()))
        assert len(set(seen[2:])) == 1 and seen[-1][0] == 0, seen
    chainer_ooc.reset()
    gc.collect()
    assert (shared_mappings(), spill_bytes()) == (0, 0)


def test_a_mapped_map_outlives_its_graph_the_backend_and_the_policy(prompt_swap_outs, monkeypatch):
    training, pool, kept, expected = Training('residual'), F.average_pooling_2d, [], []

    def keep(h, size):
        kept.append(h)
        return pool(F.sigmoid(h), size)

    monkeypatch.setattr(F, 'average_pooling_2d', keep)
    with ooc('map-all'):
        for _ in range(3):
            loss = training.forward()
            training.model.cleargrads()
            expected.append(kept[-1].array.copy())
            loss.backward()
        held = [each.array for each in kept]  # of the first iteration some are no mappings
        roots = [arrays.root_of(each).base for each in held[1:]]
        del loss
    with ooc('swap-all'):
        training.forward().backward()
    chainer_ooc.reset()
    for variable, array, content in zip(kept, held, expected, strict=False):
        assert np.array_equal(array, content)
        assert np.shares_memory(variable.array, array)
    assert len({type(each) for each in roots}) == 1 and roots[0] is not None


def test_a_policy_that_swaps_in_takes_over_what_was_mapped(prompt_swap_outs):
    """A graph runs backward twice: at first its maps are mapped, then another policy's iteration has begun."""
    def gradients(*policies):
        training = Training('residual')
        with ooc(policies[0]):
            training.iterate(2)
            first = training.forward()
            training.model.cleargrads()
            first.backward()
            mapped = [each for each in storages(State.AWAY) if each.mapped]
        with ooc(policies[1]):
            second = training.forward()
            first.backward()
            second.backward()
        return [parameter.grad.tobytes() for parameter in training.model.params()], len(mapped)

    ours, mapped = gradients('map-all', 'swap-all')
    assert mapped > 5
    assert ours == gradients(None, None)[0]
