"""Time: what an iteration asks of a GPU beside its computations, and where it waits for it, without one.

    python benchmarks/device_calls.py
    python benchmarks/device_calls.py --policies pooch swap-all --share 0.5 --json calls.json

ResNet50 with a sixteenth of its channels trains over a stand-in for the device that computes with NumPy and counts its
calls; its copies are over as soon as they are asked for. So a *wait* of the program for the device that is left is none
for a copy: there should be none between the first call and the last step. What is asked about the iteration before the
last one is no wait, as the device has finished that. *Polls* ask whether a copy is over, *pinned* are blocks of host
memory, *checksums* read an array on the host, for which a program waits for all queued work. *Proofs* are such waits at
the end of a backward pass: whether what was recomputed was made from what it was made from at first.

The budget is a share of what the network takes in-core, or the floor if that is more. The last of six iterations
counts. Of pinning, the first one counts too, the second, which is the first under a plan, and the first two after
`chainer_ooc.reset()`: by the program, which stands still meanwhile, and beside it by the thread for that, in calls and
in bytes.
"""
from __future__ import annotations

import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest import mock

from surroundings import ROOT, configured, make_parser, publish

# isort: split
import chainer
import numpy as np

import chainer_ooc
from chainer_ooc.backends import arrays
from chainer_ooc.backends.cuda import CudaBackend
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.execute.functions import recipe
from chainer_ooc.report.table import Column, Table, plain
from models.resnet import ResNet

sys.path.append(str(ROOT / 'tests'))
from support.devices import chosen
from support.fake_driver import FakeDriver

ITERATIONS = 6
MARGIN = 1.02  # above a floor that a refusal names
RESNET50, WIDTH, BATCHSIZE, IMAGE_SIDE, WORKSPACE = (3, 4, 6, 3), 4, 16, 64, '500kB'
#: Inputs of recomputed calls are copied up to that size; weights have a 256th of ResNet50's.
THIN_COPIED_BYTES = recipe.COPIED_BYTES // 256
COUNTED = ('waits', 'checksums', 'proofs', 'polls', 'events', 'copies', 'pinned', 'beside')
UNITS = ('', '_bytes')
COLUMNS = (
    Column('policy', 'policy'),
    *(Column(f'{what}_{when}{unit}', f'{what}, {when}{unit.replace("_", ", ")}', form, right=True)
      for when in ('first', 'second', 'after reset') for what in ('pinned', 'beside')
      for unit, form in (('', plain), ('_bytes', lambda nbytes: f'{nbytes / 1e6:.1f} MB'))),
    *(Column(name, name, plain, right=True) for name in COUNTED),
)


class CountingDriver(FakeDriver):  # type: ignore[misc]  # tests are not typed
    """A device whose copies are over at once, and that counts what it is asked."""

    def __init__(self) -> None:
        super().__init__(enforces=False)
        self.counts: Counter[str] = Counter()
        self.iteration = 0
        self._recorded_in: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def passed(self, event: Any) -> bool:
        self.counts['polls'] += 1
        return bool(super().passed(event))

    def synchronize(self, event: Any) -> None:
        self.counts['waits'] += self._recorded_in[event] > self.iteration - 2
        super().synchronize(event)

    def finish(self, stream: Any) -> None:
        self.counts['waits'] += 1
        super().finish(stream)

    def record(self, stream: Any, timed: bool = False) -> Any:
        self.counts['events'] += 1
        event = super().record(stream, timed)
        self._recorded_in[event] = self.iteration
        return event

    def pin(self, nbytes: int) -> int:
        who = 'pinned' if threading.current_thread() is threading.main_thread() else 'beside'
        self.counts[who] += 1
        self.counts[f'{who}_bytes'] += nbytes
        return int(super().pin(nbytes))

    def copy_out(self, *arguments: Any) -> None:
        super().copy_out(*arguments)
        self._end_copy(arguments[-1])

    def copy_in(self, *arguments: Any) -> None:
        super().copy_in(*arguments)
        self._end_copy(arguments[-1])

    def _end_copy(self, stream: Any) -> None:
        self.counts['copies'] += 1
        with self.lock:
            self._run_until(stream.queue[-1])


class Training:
    """A thin residual network whose iterations are counted.

    Args:
        units: of its four stages.
        counts: of the devices, as they have them now; it is told the number of the iteration.
    """

    def __init__(self, units: tuple[int, ...], counts: Callable[[int], Counter[str]]) -> None:
        np.random.seed(0)
        self._counts = counts
        self._model = ResNet(units, width=WIDTH)
        self._optimizer = chainer.optimizers.MomentumSGD().setup(self._model)
        images = np.random.rand(BATCHSIZE, 3, IMAGE_SIDE, IMAGE_SIDE).astype(np.float32)
        self._batch = images, np.zeros(BATCHSIZE, np.int32)

    def iterate(self, number: int) -> Counter[str]:
        """One iteration; what was counted between its first call and its last step.

        The first call also learns from earlier iterations. Nobody asks for statistics, which waits for the device.
        """
        before = self._counts(number)
        loss = self._model(*self._batch)
        self._model.cleargrads()
        loss.backward()
        found = self._counts(number) - before
        assert np.isfinite(loss.array), 'the stand-in has given what nobody may rely on'
        self._optimizer.update()
        return found


class LateMark:
    """A mark of an array that stays on the device, or what comes of comparing two.

    Args:
        value: what the device has.
        counts: where a wait for it is counted.
    """

    def __init__(self, value: Any, counts: Counter[str]) -> None:
        self._value, self._counts = value, counts

    def __ne__(self, other: object) -> Any:
        return LateMark(not isinstance(other, LateMark) or self._value != other._value, self._counts)

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        self._counts['proofs'] += 1
        return bool(self._value)


@contextmanager
def on_the_stand_in() -> Iterator[Callable[[int], Counter[str]]]:
    """Trains on the stand-in meanwhile; gives what reads the counts."""
    on_host: Counter[str] = Counter()
    checksum = arrays.checksum

    def counted(array: Any) -> int:
        on_host['checksums'] += 1
        return checksum(array)

    def late(array: Any) -> LateMark:
        return LateMark(checksum(array), on_host)

    chainer_ooc.reset(unpin=True)
    driver = CountingDriver()
    with ExitStack() as stack:
        stack.enter_context(mock.patch.multiple(arrays, checksum=counted, mark=late))
        stack.enter_context(mock.patch.object(recipe, 'COPIED_BYTES', THIN_COPIED_BYTES))
        stack.enter_context(chosen(lambda spill_dir: CudaBackend(
            spill_dir, host_limit_bytes=1 << 40, driver=driver)))
        stack.callback(chainer_ooc.reset, unpin=True)

        def counts(iteration: int) -> Counter[str]:
            driver.iteration = iteration
            return driver.counts + on_host
        yield counts


def out_of_core(policy: str, budget_bytes: int) -> AbstractContextManager[None]:
    """Sets the entries of chainer.config meanwhile."""
    return configured(
        {'ooc': policy, 'ooc_budget': budget_bytes, 'ooc_min_bytes': 0, 'ooc_workspace': WORKSPACE})


def measured(policy: str, budget_bytes: int, units: tuple[int, ...] = RESNET50) -> dict[str, Any]:
    """The counts of a policy's first and last iteration at a budget, or at the floor that it names."""
    while True:
        with on_the_stand_in() as counts, out_of_core(policy, budget_bytes):
            training = Training(units, counts)
            try:
                first, second, *_, last = map(training.iterate, range(ITERATIONS))
            except InfeasibleBudgetError as error:
                budget_bytes = int(error.floor_bytes * MARGIN)
                continue
            stats = chainer_ooc.stats()
            assert stats is not None
            chainer_ooc.reset()
            again = Training(units, counts)
            after_reset = again.iterate(ITERATIONS) + again.iterate(ITERATIONS + 1)
            pinned = {f'{name}_{when}{unit}': found[name + unit] for name in ('pinned', 'beside') for unit in UNITS
                      for when, found in (('first', first), ('second', second), ('after reset', after_reset))}
            return {'policy': policy, 'phase': stats.phase, 'budget_bytes': budget_bytes, **pinned,
                    **{name: last[name] for name in COUNTED}}


def peak_bytes(units: tuple[int, ...] = RESNET50) -> int:
    """What a network takes in-core."""
    with on_the_stand_in() as counts, out_of_core('keep', 1 << 40):
        Training(units, counts).iterate(0)
        stats = chainer_ooc.stats()
        assert stats is not None
        return stats.peak_bytes


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument('--policies', nargs='+', default=list(chainer_ooc.policies()), metavar='NAME', help='(all)')
    parser.add_argument('--share', type=float, default=0.6, metavar='X', help='budget over in-core peak (%(default)s)')
    arguments = parser.parse_args()
    budget_bytes = int(peak_bytes() * arguments.share)
    rows = [measured(policy, budget_bytes) for policy in arguments.policies]
    publish(Table(COLUMNS, rows, 'What an iteration of ResNet50 asks of a GPU beside its computations'), arguments)


if __name__ == '__main__':
    main()
