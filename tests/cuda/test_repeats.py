"""Iterations that repeat: after a few of them no chunk is moved, whatever they ask for, and the driver's rules hold."""
import contextlib
import random

import pytest

from chainer_ooc.backends.cuda.allocators.allocator import NoRoomError
from chainer_ooc.backends.cuda.allocators.mapping import MappingCalls
from chainer_ooc.backends.cuda.allocators.repeats import MOST_KINDS, MOST_REQUESTS, MOST_TRIES, Repeats
from chainer_ooc.backends.cuda.allocators.virtual import VirtualAllocator
from support import fake_device_memory as fake

MIB = fake.MIB
CHUNK = 2 * MIB
CHUNKS = 20


def program(seed, requests=40):
    """What an iteration does, as (number of the block, its bytes), where no bytes are its end; nothing lives after it.

    The blocks of each moment need no more than the chunks there are, whichever of them share one: in programs with even
    seeds, which are harder to place, none does.
    """
    draw, live, steps = random.Random(seed), {}, []

    def end(number):
        del live[number]
        steps.append((number, 0))

    for number in range(requests):
        while live and draw.random() < 0.45:
            end(draw.choice(sorted(live)))
        nbytes = draw.choice([draw.randint(1, 5) * CHUNK, draw.randint(MIB, 5 * CHUNK)][:1 + seed % 2])
        chunks = -(-nbytes // CHUNK) + seed % 2
        while sum(live.values()) + chunks > CHUNKS:
            end(min(live))
        live[number] = chunks
        steps.append((number, nbytes))
    while live:
        end(min(live))
    return steps


class Device:
    """An allocator that is full, and its driver."""

    def __init__(self):
        self.calls = fake.FakeCalls(fake.FakeDevice(CHUNKS * CHUNK))
        self.driver = fake.FakeDriver(self.calls.device)
        self.allocator = VirtualAllocator(self.calls, MappingCalls(0, self.driver))
        with contextlib.suppress(NoRoomError):
            self.allocator.malloc(CHUNKS * CHUNK + 1)

    def iterate(self, steps, kind=0):
        """Runs an iteration, with a kernel on each block; gives how many chunks were mapped in it."""
        blocks = {}
        self.driver.calls.clear()
        if kind is not None:
            self.allocator.begin_iteration(kind)
        for number, nbytes in steps:
            if nbytes:
                blocks[number] = self.allocator.malloc(nbytes)
                self.calls.current_stream.launch(self.driver, blocks[number], nbytes)
            else:
                del blocks[number]
        return self.driver.calls.count('cuMemMap')

    def close(self):
        self.allocator.close()
        self.driver.check_empty()


@pytest.fixture
def device():
    device = Device()
    yield device
    device.close()


@pytest.mark.parametrize('seed', range(60))
def test_after_a_few_iterations_no_chunk_moves(device, seed):
    steps = program(seed)
    mapped = [device.iterate(steps) for _ in range(8)]
    assert mapped[0] > 0
    assert mapped[-1] == 0
    assert 'cuEventRecord' not in device.driver.calls  # nothing will have to be waited for


def test_they_would_if_nobody_said_when_iterations_begin(device):
    mapped = [[device.iterate(program(seed), kind=None) for _ in range(8)][-1] for seed in range(0, 40, 2)]
    assert sum(each > 0 for each in mapped) > 5


@pytest.mark.parametrize('seed', range(10))
def test_models_in_turn_have_places_of_their_own(device, seed):
    for _ in range(8):
        mapped = [device.iterate(program(seed + 2 * kind), kind) for kind in range(3)]
    assert mapped == [0, 0, 0]


@pytest.mark.parametrize('seed', range(10))
def test_requests_of_other_sizes_may_come_in_between(device, seed):
    """Two blocks that live side by side come in one order or the other, as copies end earlier or later."""
    def iteration(number):
        steps = program(seed)
        draw = random.Random(number)
        for at in range(len(steps) - 1):
            (one, its), (other, others) = steps[at:at + 2]
            if its and others and its != others and draw.random() < 0.5:
                steps[at:at + 2] = (other, others), (one, its)
        return steps

    mapped = [device.iterate(iteration(number)) for number in range(12)]
    assert mapped[-1] <= 0.05 * mapped[0]


@pytest.mark.parametrize('seed', range(5))
def test_iterations_that_never_repeat_are_served_too(device, seed):
    for number in range(3 * MOST_TRIES):
        device.iterate(program(1000 * seed + 2 * number + seed % 2))


def test_what_lives_on_is_left_where_it_is(device):
    kept = device.allocator.malloc(3 * CHUNK)
    steps = [(number, nbytes) for number, nbytes in program(3) if nbytes <= 2 * CHUNK]
    whole = {number for number, nbytes in steps if nbytes}
    steps = [(number, nbytes) for number, nbytes in steps if number in whole]
    for _ in range(6):
        mapped = device.iterate(steps)
    assert mapped == 0
    del kept


def test_new_addresses_come_to_an_end_and_begin_again(device):
    """A program that changes all the time has used all addresses some day."""
    for number in range(60):
        device.iterate(program(2 * (number % 7), 60), kind=number)
        device.iterate(program(2 * (number % 7), 60), kind=number)
    assert device.driver.calls.count('cuMemAddressReserve') == 0


def test_places_are_matched_by_size_and_order():
    repeats = Repeats()
    repeats.note((0, 1), ('space', 5))  # nobody has said that an iteration begins
    repeats.begin('a')
    assert repeats.last_place((0, 1)) is None
    for place in (3, 8):
        repeats.note((0, 1), ('space', place))
    repeats.note((0, 2), ('space', 4))
    repeats.begin('a')
    assert repeats.last_place((0, 1)) == repeats.last_place((0, 1)) == ('space', 3)
    repeats.note((0, 1), ('space', 3))
    assert repeats.last_place((0, 1)) == ('space', 8)
    repeats.note((0, 1), ('space', 9))
    assert repeats.last_place((0, 1)) is None
    assert repeats.last_place((0, 2)) == ('space', 4)
    assert repeats.last_place((7, 2)) is None
    repeats.begin('b')
    assert repeats.last_place((0, 2)) is None
    repeats.begin('a')
    assert repeats.last_place((0, 1)) == ('space', 3)
    repeats.forget()
    assert repeats.last_place((0, 1)) is None


def test_tries_come_to_an_end():
    repeats = Repeats()
    for _ in range(MOST_TRIES):
        repeats.begin('a')
        assert repeats.may_try()
        assert repeats.may_try()
    repeats.begin('a')
    assert not repeats.may_try()
    repeats.begin('b')
    assert repeats.may_try()


def test_what_is_remembered_is_bounded():
    repeats = Repeats()
    for kind in range(3 * MOST_KINDS):
        repeats.begin(kind)
    assert len(repeats._others) <= MOST_KINDS
    for _ in range(2 * MOST_REQUESTS):
        repeats.note((0, 1), ('space', 0))
    assert sum(map(len, repeats._now.places.values())) == MOST_REQUESTS
