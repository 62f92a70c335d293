"""P3: the budget holds, and one that no plan can meet is refused with the floor and the function that sets it."""
import io
import pickle

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.backends.host import arena
from chainer_ooc.errors import ConfigError, InfeasibleBudgetError, OocError
from chainer_ooc.execute import sessions
from chainer_ooc.execute.memory.residency import Residency
from support.trainings.ooc_training import (
    POLICIES,
    SWAPPING,
    Training,
    assert_same_bits,
    floor_of,
    in_core_peak,
    ooc,
    plain,
    train,
)

#: The meter counts Python's objects too, those of all threads: recordings differ by some of them.
NOISE_BYTES = 32_768


@pytest.mark.parametrize('policy', POLICIES)
@pytest.mark.parametrize('network', ['residual', 'hidden', 'old'])
def test_budget_below_the_floor_is_refused_when_planning(network, policy):
    training = Training(network)
    with ooc(policy):
        training.iterate()
    with ooc(policy, budget=1), pytest.raises(InfeasibleBudgetError) as refused:
        training.iterate()
    error = refused.value
    assert isinstance(error, ValueError) and isinstance(error, OocError)
    assert error.budget_bytes == 1
    assert any(name in error.where for name in ('forward of call', 'backward of call'))
    for part in (repr(policy), error.where, 'budget', 'chainer.config.ooc_budget', 'batch size'):
        assert part in str(error)
    with ooc(policy, budget=error.floor_bytes * 3 // 4), pytest.raises(InfeasibleBudgetError) as nearly:
        training.iterate()
    assert nearly.value.floor_bytes <= error.floor_bytes
    assert nearly.value.where == error.where
    with ooc(policy, budget=error.floor_bytes):
        training.iterate()
    assert chainer_ooc.stats().peak_bytes <= error.floor_bytes


@pytest.mark.parametrize('policy', ['keep', 'pooch'])
@pytest.mark.parametrize('network', ['residual', 'views', 'hidden'])
def test_what_is_spare_is_within_the_budget(network, policy, prompt_swap_outs, monkeypatch):
    budget_bytes = floor_of(network, policy) + NOISE_BYTES
    make_room, spare_bytes, over_bytes = Residency.make_room, [], []

    def measured(residency, nbytes, thorough=False):
        fits = make_room(residency, nbytes, thorough)
        spare_bytes.append(residency.bytes_of('spare'))
        if fits and residency.context.budget_bytes is not None:
            over_bytes.append(residency.near_bytes() + nbytes + spare_bytes[-1] - residency.context.budget_bytes)
        return fits

    monkeypatch.setattr(Residency, 'make_room', measured)
    training = Training(network)
    with ooc(policy, budget=budget_bytes):
        training.iterate(8)
    assert max(spare_bytes) > 0 >= max(over_bytes)
    assert_same_bits(training.finish(), plain(network, 8))


@pytest.mark.host
@pytest.mark.skipif(arena.available() is not None, reason=str(arena.available()))
@pytest.mark.parametrize('policy', [*SWAPPING, 'keep', 'pooch'])
def test_pages_that_are_kept_are_within_the_budget_and_come_back_to_each_iteration(policy, monkeypatch):
    limit_kept, over_bytes, pools = Residency.limit_kept, [], set()

    def limited(residency, nbytes):
        limit_kept(residency, nbytes)
        if residency.context.budget_bytes is not None:
            used_bytes = residency.near_bytes() + residency.bytes_of('spare') + residency.backend._blocks.nbytes()
            over_bytes.append(used_bytes - residency.context.budget_bytes)
            pools.add(residency.backend._blocks)

    monkeypatch.setattr(Residency, 'limit_kept', limited)
    images = np.random.default_rng(0).normal(size=(8, 4, 64, 64)).astype('f4')  # 512 KiB, and so are all maps

    def train(iterations):
        np.random.seed(0)
        link = L.Convolution2D(4, 4, 3, pad=1)
        for _ in range(iterations):
            h = images
            for _ in range(8):
                h = F.relu(link(h))
            link.cleargrads()
            F.sum(h).backward()
        return link.W.grad.tobytes()

    expected = train(2)
    with ooc(policy, budget=1):
        train(1)
        with pytest.raises(InfeasibleBudgetError) as refused:
            train(1)
    with ooc(policy):
        train(3)  # in-core: more than the budget that follows
    over_bytes.clear()
    with ooc(policy, budget=refused.value.floor_bytes + NOISE_BYTES):
        assert train(4) == expected
    pool, = pools
    assert max(over_bytes) <= 256 << 10  # what is not worth a call of the system
    assert pool.nbytes() > 512 << 10
    chainer_ooc.reset()
    assert pool.nbytes() == 0


def test_refusal_survives_a_pickle():
    error = InfeasibleBudgetError('keep', 1 << 31, 3 << 30, 'ReLU, backward of call 3')
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.floor_bytes) == (InfeasibleBudgetError, str(error), 3 << 30)
    assert '2.15 GB' in str(error) and '3.23 GB' in str(error)


@pytest.mark.parametrize('policy', POLICIES)
def test_refusal_costs_no_random_draw_and_changes_no_parameter(policy):
    training = Training('hidden')
    with ooc(policy, budget=1):
        training.iterate()
        for _ in range(3):
            with pytest.raises(InfeasibleBudgetError):
                training.iterate()
    with ooc(policy):
        training.iterate(3)
    assert_same_bits(training.finish(), plain('hidden'))


@pytest.mark.parametrize('share', [0.0, 0.3, 0.9])
@pytest.mark.parametrize('policy', SWAPPING)
@pytest.mark.parametrize('network', ['hidden', 'views', 'inception'])
def test_peak_never_passes_a_budget_between_floor_and_in_core(network, policy, share):
    low = floor_of(network, policy) + NOISE_BYTES
    budget = int(low + share * max(0, in_core_peak(network) - low))
    training = Training(network)
    with ooc(policy, budget=1):
        training.iterate()
    with ooc(policy, budget=budget):
        training.iterate(4)
    stats = training.outcome.stats[1:]
    assert_same_bits(training.finish(), plain(network, 5))
    assert [(each.phase, each.budget_bytes) for each in stats] == [('run', budget)] * 4
    assert [each.peak_bytes for each in stats if each.peak_bytes > budget] == []


@pytest.mark.parametrize('network', ['residual', 'inception'])
def test_swapping_needs_less_than_keep_and_keep_less_than_the_sum(network):
    assert floor_of(network, 'swap-all') < floor_of(network, 'keep')
    assert floor_of(network, 'swap-all') <= floor_of(network, 'swap-all-naive') + NOISE_BYTES


def test_budget_changed_between_iterations_holds_from_the_next_on():
    in_core_bytes = in_core_peak('residual')
    training = Training('residual')
    with ooc('swap-all', budget=1):
        training.iterate()
        with pytest.raises(InfeasibleBudgetError) as refused:
            training.iterate()
    low = refused.value.floor_bytes + NOISE_BYTES
    high = max(low, in_core_bytes) + NOISE_BYTES
    for budget in (high, high, low, high, (low + high) // 2, low):
        with ooc('swap-all', budget=budget):
            training.iterate()
        last = chainer_ooc.stats()
        assert last.budget_bytes == budget
        assert last.phase == 'run' and last.peak_bytes <= budget
    assert_same_bits(training.finish(), plain('residual', 7))


@pytest.mark.parametrize(('text', 'nbytes'), [
    ('2MB', 2_000_000), ('1.5 MiB', 1_572_864), ('900000', 900_000), ('2gb', 2_000_000_000), ('3000 kB', 3_000_000),
    ('1GiB', 1 << 30), (2_500_000, 2_500_000), (2.5e6, 2_500_000)])
def test_budget_may_be_written_in_each_form(text, nbytes):
    outcome = train('residual', 'swap-all', iterations=2, budget=text)
    assert {each.budget_bytes for each in outcome.stats} == {nbytes}


@pytest.mark.parametrize('value', [
    '12 bananas', '', 'MB', '-1', '1e9 GB', 0, -1, -2.5, 0.3, True, False, float('nan'), float('inf'), [1], {}, b'1GB',
    '0', '0MB', '1.2.3 GB', '5 Mb/s'])
def test_wrong_budget_raises_at_once(value):
    with pytest.raises(ConfigError) as refused:
        chainer.config.ooc_budget = value
    assert isinstance(refused.value, ValueError)
    assert 'chainer.config.ooc_budget' in str(refused.value)
    assert repr(value) in str(refused.value)
    assert chainer.config.ooc_budget is None
    with pytest.raises(ConfigError):
        chainer.global_config.ooc_budget = value
    with pytest.raises(ConfigError), chainer.using_config('ooc_budget', value):
        pytest.fail('entered')
    assert chainer.config.ooc_budget is None


def test_message_for_bananas_says_which_forms_are_good():
    with pytest.raises(ConfigError, match=r"'12 bananas'.*'1\.5GB'"):
        chainer.config.ooc_budget = '12 bananas'


@pytest.mark.parametrize('value', ['swap_all', 'poch', '', 1, True, object])
def test_wrong_policy_raises_at_once_and_lists_the_good_ones(value):
    with pytest.raises(ConfigError) as refused:
        chainer.config.ooc = value
    for name in chainer_ooc.policies():
        assert name in str(refused.value)
    assert chainer.config.ooc is None


@pytest.mark.parametrize('config', [chainer.config, chainer.global_config])
def test_unknown_entry_raises_at_once_and_lists_the_entries(config):
    with pytest.raises(ConfigError, match=r'ooc_xyz.*ooc_budget'):
        config.ooc_xyz = 1
    assert not hasattr(chainer.config, 'ooc_xyz')


@pytest.mark.parametrize(('name', 'values'), [
    ('ooc_min_bytes', ['many', -1, None, True, float('nan')]), ('ooc_profile_iterations', [0, -1, 1.5, '2', None]),
    ('ooc_workspace', ['12 bananas', 0, -5, True]), ('ooc_host_limit', ['x', 0]), ('ooc_allocator', ['heap', None, '']),
    ('ooc_log', ['LOUD', -3, True, 1.5]), ('ooc_spill_dir', ['/no/such/folder', __file__, 3.5, ''])])
def test_wrong_value_of_another_entry_raises_at_once(name, values):
    before = getattr(chainer.config, name)
    for value in values:
        with pytest.raises(ConfigError, match=name):
            setattr(chainer.config, name, value)
        assert getattr(chainer.config, name) == before


def test_entries_show_in_the_configuration():
    text = io.StringIO()
    with ooc('swap-all', budget='1GB'):
        chainer.config.show(text)
    shown = text.getvalue()
    assert 'swap-all' in shown and '1GB' in shown
    for name in ('ooc', 'ooc_budget', 'ooc_spill_dir', 'ooc_host_limit', 'ooc_workspace', 'ooc_min_bytes',
                 'ooc_profile_iterations', 'ooc_plan', 'ooc_allocator', 'ooc_log'):
        assert name in shown


def test_default_threshold_is_a_megabyte():
    assert chainer.config.ooc_min_bytes in (1_000_000, 1 << 20)


@pytest.mark.parametrize('policy', POLICIES)
def test_memory_that_the_user_holds_changes_no_bit_and_the_budget_holds_or_is_refused(policy):
    """The plan knows nothing of arrays that are held from now on: others have to leave for them, or it is refused."""
    low, high = floor_of('residual', policy) + NOISE_BYTES, in_core_peak('residual')
    budget = (low + max(high, low)) // 2 + 70_000
    training, held = Training('residual'), []
    with ooc(policy, budget=1):
        training.iterate()
    with ooc(policy, budget=budget):
        training.iterate()
        for _ in range(3):
            loss = training.forward()
            held.append(loss.creator_node.inputs[0].data)
            held.append(next(each for each in _arrays_behind(loss) if each.nbytes > 5000))
            training.model.cleargrads()
            loss.backward()
            training.note_gradients()
            training.optimizer.update()
            training.note(f'loss {training.number}', loss.array)
            training.number += 1
            del loss
            assert chainer_ooc.stats().peak_bytes <= budget
    assert_same_bits(training.finish(), plain('residual', 5))


def _arrays_behind(variable):
    todo = [variable.creator_node]
    while todo:
        function = todo.pop(0)
        for node in () if function is None else function.inputs:
            if node.data is not None and node.creator_node is not None:
                yield node.data
            todo.append(node.creator_node)


@pytest.mark.parametrize('policy', SWAPPING)
def test_held_memory_that_leaves_no_room_is_refused_with_a_budget_that_works(policy):
    budget = floor_of('inception', policy) + NOISE_BYTES
    training, held = Training('inception'), []
    with ooc(policy, budget=1):
        training.iterate()
    with ooc(policy, budget=budget):
        training.iterate()
        state = np.random.get_state()
        loss = training.forward()
        held = [each for each in _arrays_behind(loss) if each.nbytes > 3000]
        refused = None
        try:
            loss.backward()
        except InfeasibleBudgetError as error:
            refused = error.floor_bytes
        assert chainer_ooc.stats().peak_bytes <= budget if refused is None else refused > budget
        del loss, held
        np.random.set_state(state)
        training.iterate(2)
    assert_same_bits(training.finish(), plain('inception'))


@pytest.mark.parametrize('policy', SWAPPING)
def test_optimizer_state_and_parameters_count(policy):
    """A model of parameters alone: its floor covers the weights, the gradients and the momentum."""
    floor_bytes = floor_of('old', policy)
    training = Training('old')
    with chainer.using_config('ooc', None):
        training.iterate()
    nbytes = sum(each.array.nbytes + each.grad.nbytes + each.update_rule.state['v'].nbytes
                 for each in training.model.params())
    assert floor_bytes >= nbytes


class Copies(chainer.FunctionNode):
    """Copies of its input, one below the other; notes by how much near memory passes the budget when they are there."""

    def __init__(self, count, excess):
        self.count, self.excess = count, excess

    def forward(self, inputs):
        copies = np.concatenate(self.count * inputs)
        memory = sessions.current().memory
        self.excess.append(memory.near_bytes() + copies.nbytes - memory.budget_bytes)
        return copies,

    def backward(self, indexes, gradients):
        return sum(F.split_axis(gradients[0], self.count, 0)),


@pytest.mark.parametrize('fewer', [0, 2], ids=['another function', 'the same one makes less'])
@pytest.mark.parametrize('policy', ['keep', 'swap-all', 'tensor-cache', 'capacity', 'sublinear'])
def test_the_budget_holds_where_an_iteration_leaves_the_graph_that_it_began_like(policy, fewer):
    """Room was made for the call of that graph: 18 of 29 kB were missing when a larger one came instead."""
    def train(count):
        h = chainer.Variable(np.ones((30, 40), np.float32))
        for _ in range(10):
            h = F.tanh(h)
        F.sum(Copies(count, excess).apply((h,))[0] if count else F.exp(h)).backward()
        return chainer_ooc.stats()

    counts, nbytes = (fewer, 5), 1
    while True:
        chainer_ooc.reset()
        excess, phases = [], []
        try:
            with ooc(policy, budget=nbytes):
                for _ in range(2):  # each graph is left by the other when that is new, then both are recorded
                    phases += [train(count).phase for count in counts]
                excess.clear()
                for _ in range(3):
                    found = [train(count) for count in counts]
                    phases += [each.phase for each in found]
                    assert all(each.peak_bytes <= each.budget_bytes for each in found)
            break
        except InfeasibleBudgetError as error:
            nbytes = int(1.02 * error.floor_bytes)
    assert phases[-6:] == ['run'] * 6
    assert excess and max(excess) <= 0


@pytest.mark.parametrize('policy', ['keep', 'pooch', 'swap-all', 'tensor-cache'])
def test_the_budget_holds_where_later_iterations_add_to_gradients(policy):
    """Each sum stands beside the gradient that it replaces: 200 of 5,500 kB were missing."""
    def iterate(model, optimizer, clears, x):
        for link in model:
            x = F.relu(link(x))
        if clears:
            model.cleargrads()
        F.mean(x ** 2).backward()
        optimizer.update()
        return chainer_ooc.stats()

    def train(nbytes):
        np.random.seed(7)
        first, other = (chainer.Sequential(*[L.Linear(256, 256) for _ in range(count)]) for count in (4, 3))
        sgd, adam = chainer.optimizers.SGD().setup(first), chainer.optimizers.Adam().setup(other)
        x, found = np.random.randn(8, 256).astype(np.float32), []
        with ooc(policy, budget=1 << 30):
            for number in range(12):
                if number == 9:
                    chainer.config.ooc_budget = nbytes
                found.append(iterate(first, sgd, number < 3, x))
                if number == 4:
                    iterate(other, adam, True, x)
        return found[9:]

    nbytes, found = 1, None
    while found is None:
        chainer_ooc.reset()
        try:
            found = train(nbytes)
        except InfeasibleBudgetError as error:
            nbytes = int(1.02 * error.floor_bytes)
    assert [each.phase for each in found] == ['run'] * 3
    assert all(each.peak_bytes <= each.budget_bytes for each in found)


def test_what_could_not_leave_is_tried_again_before_a_map_that_is_made_again_passes_the_budget():
    """The program had held it: a few such maps are tried again at each shortage, and more were needed here."""
    def forward():
        h = x
        for _ in range(12):
            h = F.tanh(h)
        return F.sum(h)

    x = np.ones((64, 64), np.float32)
    with ooc('keep', min_bytes=0):
        for _ in range(3):
            forward().backward()
        chainer.config.ooc_budget = chainer_ooc.stats().peak_bytes + x.nbytes
        forward().backward()
        loss = forward()
        memory = sessions.current().memory
        while memory.candidates.pop(memory.context.next_use) is not None:
            pass  # as if something held each of them
        memory.garbage.note(False)  # the collector has found nothing
        need_bytes = memory.budget_bytes - memory.near_bytes() + 8 * x.nbytes
        memory.need(need_bytes)
        assert memory.fits(need_bytes)
        loss.backward()
        assert chainer_ooc.stats().phase == 'run'
