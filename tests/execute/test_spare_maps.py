"""Maps past their last known use: they are there while nothing else needs the room, and go before all others."""
import gc
import os
import weakref

import chainer
import chainer.functions as F
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.backends.host import HostBackend
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.execute import sessions
from chainer_ooc.execute.storage.states import State
from support.devices import chosen
from support.trainings.ooc_training import ooc

pytestmark = pytest.mark.usefixtures('nothing_quiet')
LAYERS = 6
MAP_BYTES = 128 * 128 * 4


def parameter():
    return chainer.Parameter(np.full((128, 128), 0.1, 'f4'))


def loss_of(weight):
    """A chain of functions, each of which retains its output."""
    h = weight * 2
    for _ in range(LAYERS):
        h = F.sigmoid(h)
    return F.sum(h)


def gradient(loss, weight):
    weight.cleargrad()
    loss.cleargrad()
    loss.backward()
    return weight.grad.tobytes()


def memory():
    return sessions.current().memory


def spare_maps():
    return [each for each in memory().known() if each.state is State.SPARE]


@pytest.fixture
def trained():
    """A loss whose graph has run backward under a plan, its parameter, and the gradient."""
    weight = parameter()
    with ooc('keep', budget=100 * MAP_BYTES):
        for _ in range(3):
            loss = loss_of(weight)
            bits = gradient(loss, weight)
        assert len(spare_maps()) == LAYERS
        yield loss, weight, bits
    chainer_ooc.reset()


def test_backward_runs_again_and_again(trained):
    loss, weight, bits = trained
    assert [gradient(loss, weight) for _ in range(3)] == [bits] * 3


def test_what_is_spare_does_not_count_until_it_is_read(trained):
    loss, _, _ = trained
    before_bytes = memory().near_bytes()
    assert memory().bytes_of('spare') == LAYERS * MAP_BYTES
    assert loss.creator_node.inputs[0].creator_node.get_retained_outputs()[0].array.nbytes == MAP_BYTES
    assert (memory().near_bytes() - before_bytes, memory().bytes_of('spare')) == (MAP_BYTES, (LAYERS - 1) * MAP_BYTES)


def test_what_was_spare_first_yields_first_and_what_yields_is_lost(trained):
    maps = sorted(spare_maps(), key=lambda each: -each.map)  # backward begins with the last
    memory().spare_at_most((LAYERS - 2) * MAP_BYTES)
    assert [each.state for each in maps] == [State.LOST] * 2 + [State.SPARE] * (LAYERS - 2)


def test_a_graph_that_dies_takes_what_is_spare_with_it(trained):
    roots = [weakref.ref(each.root()) for each in spare_maps()]
    loss, _, _ = trained
    loss.unchain_backward()
    assert (memory().bytes_of('spare'), [each() for each in roots]) == (0, [None] * LAYERS)


@pytest.mark.parametrize('later', [False, True])
def test_what_somebody_else_holds_counts_as_before_when_it_has_yielded_or_its_graph_is_dead(later, trained):
    loss, _, _ = trained
    oldest = min(spare_maps(), key=lambda each: -each.map)
    held, before_bytes = oldest.root(), memory().near_bytes()
    del oldest
    if later:
        loss.unchain_backward()
    else:
        memory().spare_at_most(0)
    assert (memory().near_bytes() - before_bytes, memory().bytes_of('spare')) == (MAP_BYTES, 0)
    del held
    assert memory().near_bytes() == before_bytes


def test_what_somebody_holds_after_its_last_use_is_learnt(trained):
    _, weight, _ = trained
    loss = loss_of(weight)
    held = loss.creator_node.inputs[0].data
    gradient(loss, weight)
    graph = sessions.current()._graphs.latest()
    assert [each.held for each in graph.trace.maps].count(True) == 1
    assert held.nbytes == MAP_BYTES


def test_a_computation_takes_the_room_of_what_is_spare_and_no_more(trained):
    other_bytes = 100 * MAP_BYTES - memory().near_bytes() - memory().bytes_of('spare')
    assert memory().make_room(other_bytes)
    assert len(spare_maps()) == LAYERS
    assert memory().make_room(other_bytes + 1)
    assert len(spare_maps()) == LAYERS - 1
    assert memory().make_room(100 * MAP_BYTES - memory().near_bytes())
    assert (len(spare_maps()), memory().tally.evictions) == (0, 0)


def test_an_evaluation_has_the_room_that_training_had(trained):
    _, weight, _ = trained
    with chainer.no_backprop_mode():
        F.sin(weight)
        assert len(spare_maps()) == LAYERS
        memory().tally.peak_bytes = 100 * MAP_BYTES
        F.sin(weight)
    assert not spare_maps()


def test_when_backward_is_over_as_much_is_left_as_it_took():
    """What an optimizer or the program itself allocates then, nobody asks for."""
    weight = parameter()
    with ooc('keep', budget=1):
        loss_of(weight).backward()
        with pytest.raises(InfeasibleBudgetError) as refused:
            loss_of(weight)
    with ooc('keep', budget=refused.value.floor_bytes + LAYERS * MAP_BYTES // 2):
        for _ in range(2):
            loss = loss_of(weight)
            gradient(loss, weight)
        stats = chainer_ooc.stats()
        assert stats.phase == 'run'
        assert 0 < memory().bytes_of('spare') <= stats.budget_bytes - stats.peak_bytes
    chainer_ooc.reset()


def test_a_device_that_refuses_gets_what_is_spare_first(trained, monkeypatch):
    asked = []

    def has_room(backend, nbytes):
        asked.append(nbytes)
        return not spare_maps()
    monkeypatch.setattr(HostBackend, 'has_room', has_room)
    assert memory().has_room(MAP_BYTES)
    assert (asked, spare_maps()) == ([MAP_BYTES] * 2, [])


def test_an_allocation_that_does_not_fit_takes_what_is_spare_and_plans_learn_nothing_from_it(trained):
    with ooc('keep', budget=100 * MAP_BYTES):
        assert memory().on_out_of_memory(2 * MAP_BYTES - 1)
    assert (len(spare_maps()), memory().tally.missing_bytes) == (LAYERS - 2, 0)


def test_the_default_budget_is_not_smaller_by_what_is_spare(trained, monkeypatch):
    held = []

    def budget_bytes(backend, held_bytes, latest_bytes):
        held.append(held_bytes)
        return 100 * MAP_BYTES
    monkeypatch.setattr(HostBackend, 'default_budget_bytes', budget_bytes)
    _, weight, _ = trained
    spare_bytes = memory().bytes_of('spare')
    with ooc('keep'):
        weight * 2
    assert held == [memory().near_bytes() + spare_bytes]


def test_what_is_spare_outlives_its_session(trained):
    loss, weight, bits = trained
    chainer_ooc.reset()
    assert gradient(loss, weight) == bits


@pytest.mark.filterwarnings('ignore:.*fork.*:DeprecationWarning')
def test_a_forked_child_has_what_is_spare(trained):
    loss, weight, bits = trained
    gc.collect()
    child = os.fork()
    if not child:
        os._exit(0 if gradient(loss, weight) == bits else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_iterations_beside_what_is_spare_keep_within_the_budget(tmp_path, monkeypatch):
    """A graph that is kept yields to those that train beside it, whose floors are what they were."""
    weight = parameter()
    with ooc('keep', budget=1), chosen(lambda spill_dir: HostBackend(str(tmp_path))):
        loss_of(weight).backward()
        with pytest.raises(InfeasibleBudgetError) as refused:
            loss_of(weight)
        with ooc('keep', budget=int(1.02 * refused.value.floor_bytes)):
            bits = gradient(loss_of(weight), weight)
            old = loss_of(weight)
            gradient(old, weight)
            for _ in range(3):
                assert gradient(loss_of(weight), weight) == bits
                assert chainer_ooc.stats().peak_bytes <= chainer_ooc.stats().budget_bytes
        chainer_ooc.reset()
