"""Memory: how often each GPU allocator asks the driver under a plan, on paper.

    python benchmarks/driver_calls.py
    python benchmarks/driver_calls.py --batchsize 640 --budget 16GB --policies pooch swap-all --json calls.json
    python benchmarks/driver_calls.py --late 0.02 --limit 17GB

Giving memory back to the driver waits for all work that is queued on a GPU, and mapping takes the host's time: in a
training that goes on, an iteration should do neither. ResNet50 is recorded on this machine and grown, and a policy
plans it, as in `devices.py`. What the plan allocates and frees goes through the allocators that a GPU has, limited to
the budget, over a stand-in for the driver that counts. Where the allocator refuses what the plan had counted on, the
program would evict; here the limit is passed, and the refusal counted.

*Back* are calls that give memory back (cudaFree, a trim of the driver's pool, cuMemUnmap), *new* those that take some
(cudaMalloc, the growth of that pool, cuMemCreate), *mapped* are chunks mapped: in the first iteration, and in a later
one (the median). With `--late` a share of the frees comes up to five events later, others in each iteration, as those
of copies do; the plan knows nothing of that, hence `--limit`. *Host* is what the allocator computes for one block, from
the request to its end, in the fastest of the later iterations: with the stand-in's time, and without the driver's.
"""
from __future__ import annotations

import random
import statistics
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from devices import problem_of, recorded
from surroundings import ROOT, make_parser, positive, publish

# isort: split
from chainer_ooc.backends.cuda.allocators.allocator import Allocator, NoRoomError
from chainer_ooc.backends.cuda.allocators.async_pool import AsyncAllocator
from chainer_ooc.backends.cuda.allocators.mapping import MappingCalls
from chainer_ooc.backends.cuda.allocators.pool import PoolAllocator
from chainer_ooc.backends.cuda.allocators.virtual import VirtualAllocator
from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.papers.allocators.events import Event, events_of
from chainer_ooc.report.table import Column, Table, megabytes, plain
from chainer_ooc.schedule.schedule import lay_out
from chainer_ooc.simulate.simulator import simulate
from options import amount

sys.path.append(str(ROOT / 'tests'))
from support import fake_device_memory as fake

#: How many iterations there are, and how many of the last ones count.
ITERATIONS, COUNTED = 14, 8
#: So many events later a free may come.
LATE_EVENTS = 5
COLUMNS = (
    Column('policy', 'policy'), Column('allocator', 'allocator'),
    *(Column(f'{what}_{when}', f'{what}, {when}', plain, right=True)
      for what in ('new', 'back', 'mapped', 'refused') for when in ('first', 'later')),
    Column('held_bytes', 'held', megabytes, right=True),
    Column('host_us', 'host', lambda value: f'{value:.1f} us', right=True),
)


class Counted:
    """A device that counts what its driver is asked; it has all the memory that anybody wants."""

    def __init__(self) -> None:
        self.calls = fake.FakeCalls(fake.FakeDevice(1 << 50))
        self.driver = fake.FakeDriver(self.calls.device)
        self._counts: Counter[str] = Counter()
        self._take, self._pool = self.calls.device_memory, self.calls.ordered
        self._take_into_pool, self._trim_pool = self._pool.take, self._pool.trim
        self.calls.device_memory = self._malloc
        self._pool.take, self._pool.trim = self._grow, self._trim

    def read(self) -> Counter[str]:
        """What was counted since this was asked last: 'new', 'back' and 'mapped'."""
        mapping = self.driver.calls
        found = self._counts + Counter(
            new=mapping.count('cuMemCreate'), back=mapping.count('cuMemUnmap'), mapped=mapping.count('cuMemMap'))
        self._counts = Counter()
        mapping.clear()
        return found

    def _malloc(self, nbytes: int) -> Any:
        self._counts['new'] += 1
        memory = self._take(nbytes)
        weakref.finalize(memory, self._free).atexit = False
        return memory

    def _free(self) -> None:
        self._counts['back'] += 1

    def _grow(self, nbytes: int) -> None:
        before_bytes = self._pool.held_bytes()
        self._take_into_pool(nbytes)
        self._counts['new'] += self._pool.held_bytes() > before_bytes

    def _trim(self, keep_bytes: int) -> None:
        self._counts['back'] += 1  # it waits for the device also where there is nothing to give
        self._trim_pool(keep_bytes)


def allocators() -> dict[str, Callable[[Counted], Allocator]]:
    """By their names in `chainer.config.ooc_allocator`."""
    return {'pool': lambda device: PoolAllocator(device.calls), 'async': lambda device: AsyncAllocator(device.calls),
            'virtual': lambda device: VirtualAllocator(device.calls, MappingCalls(0, device.driver))}


def run(events: Sequence[Event], make: Callable[[Counted], Allocator], limit_bytes: int, late: float) -> dict[str, Any]:
    """Some iterations of these events; the counts of the first and of later ones, and what is held in the end."""
    device = Counted()
    allocator = make(device)
    allocator.open()
    allocator.limit_bytes = limit_bytes
    blocks: dict[int, Any] = {}
    mallocs = sum(event.kind == 'malloc' for event in events)
    seconds, counts = [], []
    device.read()
    for number in range(ITERATIONS):
        order = in_time(events, late, random.Random(number))
        refused, began = 0, time.perf_counter()
        for event in order:
            if event.kind == 'free':
                del blocks[event.block]
            elif event.block not in blocks:  # what stays from iteration to iteration is there already
                blocks[event.block], was_refused = _malloc(allocator, event.nbytes)
                refused += was_refused
        seconds.append(time.perf_counter() - began)
        counts.append({**device.read(), 'refused': refused})
    row: dict[str, Any] = {'held_bytes': allocator.held_bytes(), 'host_us': 1e6 * min(seconds[2:]) / mallocs}
    for what in ('new', 'back', 'mapped', 'refused'):
        row[f'{what}_first'] = counts[0].get(what, 0)
        row[f'{what}_later'] = statistics.median_high(each.get(what, 0) for each in counts[-COUNTED:])
    blocks.clear()
    allocator.close()
    return row


def in_time(events: Sequence[Event], late: float, draw: random.Random) -> list[Event]:
    """The events, of whose frees such a share comes later."""
    order = [*events]
    for at, event in enumerate(events):
        if event.kind == 'free' and draw.random() < late:
            order.remove(event)
            order.insert(min(at + draw.randint(1, LATE_EVENTS), len(order)), event)
    return order


def _malloc(allocator: Allocator, nbytes: int) -> tuple[Any, bool]:
    """The memory, and whether the limit had to be passed for it."""
    try:
        return allocator.malloc(nbytes), False
    except NoRoomError:
        pass
    limit_bytes, allocator.limit_bytes = allocator.limit_bytes, None
    try:
        return allocator.malloc(nbytes), True
    finally:
        allocator.limit_bytes = limit_bytes


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument('--batchsize', type=positive, default=640, metavar='N', help='(%(default)s)')
    parser.add_argument('--budget', type=amount, default=amount('16GB'), metavar='BYTES', help='(16GB)')
    parser.add_argument('--policies', nargs='+', default=['pooch', 'swap-all', 'superneurons'], metavar='NAME',
                        help='(%(default)s)')
    parser.add_argument('--limit', type=amount, metavar='BYTES', help='of the allocators (the budget)')
    parser.add_argument('--late', type=float, default=0.0, metavar='SHARE', help='frees that come late (%(default)s)')
    arguments = parser.parse_args()
    problem = problem_of(recorded(), arguments.batchsize, arguments.budget)
    rows = []
    for policy in arguments.policies:
        schedule = lay_out(problem, POLICIES[policy].decide(problem))
        timeline = simulate(problem, schedule)
        events = events_of(problem, schedule, timeline)
        for name, make in allocators().items():
            rows.append({'policy': policy, 'allocator': name, 'peak_bytes': timeline.peak_bytes,
                         **run(events, make, arguments.limit or arguments.budget, arguments.late)})
            print(rows[-1], flush=True)
    publish(Table(COLUMNS, rows, f"What is asked of the driver: ResNet50, batch {arguments.batchsize}"), arguments)


if __name__ == '__main__':
    main()
