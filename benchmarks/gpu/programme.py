"""What is measured on a GPU, in parts, the most important first.

A part is a title and a generator of rows: it yields a `Row`, is sent what became of it, and may decide by that what
comes next, as a search for the largest batch does. Parts belong to stages, each of which fits a command of nine minutes
on a rented machine; what a part must not be robbed of by those before it, it reserves.

Rows are asked of processes of their own (`processes`), so nothing here imports Chainer or CuPy. The seconds that rows
state are guesses from which a schedule begins; `costs` puts measured ones in their place.
"""
from __future__ import annotations

import pathlib
from collections.abc import Callable, Generator, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from searches import largest
from sizes import Sizes

#: What became of a row: its asks, its figures, 'outcome' and perhaps 'reason'.
Result = Mapping[str, Any]
Rows = Generator['Row', Result, None]

ALLOCATORS = ('pool', 'virtual', 'async', 'unified')
TORCH_MODES = ('save_on_cpu', 'checkpoint', 'in-core')
STAGES = ('first', 'second', 'rest')
IN_CORE = ('plain', 'keep')
WAYS = ('forward', 'gradient of the input', 'gradient of the filter')


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement, in a process that may die of it.

    Attributes:
        kind: Which one, a name in `kinds.KINDS`.
        asks: Its arguments.
        expected_seconds: What it is expected to take before any like it was measured, in a process that runs.
        start_seconds: What comes on top in a process of its own: the start, kernels, plans.
        alone: Whether it needs a process that nothing ran in before.
        like: Rows of the same have the same cost.
        family: Rows of the same cost as much more or less than expected.
        host_bytes: Memory of the host that it needs.
    """

    kind: str
    asks: Mapping[str, Any] = field(default_factory=dict)
    expected_seconds: float = 10.0
    start_seconds: float = 10.0
    alone: bool = False
    like: Hashable = None
    family: str = ''
    host_bytes: float = 0


@dataclass(frozen=True, kw_only=True)
class Part:
    """Rows that answer one question.

    Attributes:
        name: What `--parts` takes.
        title: The heading of its table.
        kind: Which columns the table has, a name in `tables.COLUMNS`.
        stage: One of `STAGES`; '' for a part that runs only where `--parts` names it.
        rows: Makes the generator of rows.
        reserved_seconds: Of the stage's time, what parts before it leave for it.
    """

    name: str
    title: str
    kind: str
    stage: str
    rows: Callable[[], Rows]
    reserved_seconds: float = 0.0


class Programme:
    """The parts for one device, budget and choice of sizes.

    Args:
        device: 'cuda' or 'host'.
        budget_bytes: What out-of-core rows may hold of near memory.
        sizes: `FULL` or `SMALL`.
        tf32: Whether factors of products may be rounded to what tensor cores take, in Chainer and in PyTorch alike.
        host_limit_bytes: What rows may pin; None leaves it to the manager.
        traces: The folder for traces of rows that train; None for none.
    """

    def __init__(self, device: str, budget_bytes: int, sizes: Sizes, tf32: bool = False,
                 host_limit_bytes: int | None = None, traces: pathlib.Path | None = None) -> None:
        self.device, self.budget_bytes, self.sizes, self.tf32 = device, budget_bytes, sizes, tf32
        self.host_limit_bytes = host_limit_bytes
        self._traces, self._trace_count = traces, 0

    def parts(self) -> list[Part]:
        """All parts, in the order in which they run."""
        sizes, network = self.sizes, self.sizes.network
        first, *rest = sizes.batches
        return [
            Part(name='doctor', title='What the doctor says', kind='doctor', stage='first', rows=self._doctor),
            Part(name='link', title='Kernels compiled, link and pinned memory', kind='link', stage='first',
                 rows=self._link, reserved_seconds=50),
            Part(name='chunks', title='Memory mapped in chunks', kind='chunks', stage='first', rows=self._chunks),
            Part(name='in-core', title=f'In-core, {network}, batch {sizes.in_core_batch}', kind='training',
                 stage='first', rows=self._in_core, reserved_seconds=35),
            Part(name=f'batch-{first}', title=f'{network}, batch {first}, within the budget', kind='training',
                 stage='first', rows=lambda: self._within_budget(first), reserved_seconds=160),
            Part(name=f'in-core-{first}', title=f'In-core, {network}, batch {first}', kind='training', stage='first',
                 rows=lambda: self._unlimited(first), reserved_seconds=20),
            Part(name='operations', title=f'Single operations, batch {sizes.in_core_batch}', kind='operations',
                 stage='first', rows=self._operations, reserved_seconds=30),
            Part(name='bits', title='The bits of in-core training', kind='bits', stage='first', rows=self._bits,
                 reserved_seconds=45),
            Part(name='torch-in-core', title=f'PyTorch in-core, batch {sizes.in_core_batch}', kind='torch',
                 stage='first', rows=self._torch_in_core, reserved_seconds=30),
            Part(name='turns', title=f'keep and plain Chainer in turns, {network}, batch {sizes.in_core_batch}',
                 kind='turns', stage='second', rows=self._turns),
            Part(name='autotune', title=f'In-core with autotune, {network}, batch {sizes.in_core_batch}',
                 kind='training', stage='second', rows=self._autotune, reserved_seconds=60),
            Part(name='allocators', title=f'Allocators, {network}, batch {first}', kind='allocators', stage='second',
                 rows=lambda: self._allocators(first)),
            Part(name='policies', title=f'Other policies, {network}, batch {first}', kind='training', stage='second',
                 rows=lambda: self._policies(first)),
            Part(name='torch', title='PyTorch on the same card and budget', kind='torch', stage='second',
                 rows=lambda: self._torch(first), reserved_seconds=75),
            *(Part(name=f'batch-{batch}', title=f'{network}, batch {batch}', kind='training', stage='rest',
                   rows=lambda batch=batch: self._both(network, (batch,))) for batch in rest),
            *(Part(name=name, title=title, kind='training', stage='rest',
                   rows=lambda name=name, batches=batches: self._both(name, batches))
              for name, title, batches in sizes.others),
            Part(name='largest-batch', title=f'Largest batch of {network}', kind='training', stage='rest',
                 rows=self._largest_batch),
            Part(name='deepest', title=f'Deepest residual network, batch {sizes.depth_batch}', kind='training',
                 stage='rest', rows=self._deepest),
            *(Part(name=f'policies-{batch}', title=f'Other policies, {network}, batch {batch}', kind='training',
                   stage='rest', rows=lambda batch=batch: self._policies(batch)) for batch in rest),
            Part(name='self-test', title='Rows that fail by intent', kind='self-test', stage='', rows=_self_test),
        ]

    def training(self, network: str, batch: Any, policy: str, *, limited: bool | None = None, **more: Any) -> Row:
        """A row that trains; in-core policies have no budget but where `limited` says so."""
        limited = policy not in IN_CORE if limited is None else limited
        expected = {name: more.pop(name) for name in ('expected_seconds', 'start_seconds', 'alone') if name in more}
        images = batch if isinstance(batch, int) else 1
        asks = {'device': self.device, 'network': network, 'batch': batch, 'policy': policy,
                'budget_bytes': self.budget_bytes if limited else None, 'settle': self.sizes.settle,
                'iterations': self.sizes.iterations, 'min_bytes': self.sizes.min_bytes,
                'image_side': self.sizes.image_side, 'tf32': self.tf32, 'autotune': False,
                **({'workspace': self.sizes.workspace} if self.sizes.workspace else {}),
                **({'host_limit_bytes': self.host_limit_bytes} if limited and self.host_limit_bytes else {}),
                **self._trace(policy), **more}
        return Row(kind='training', asks=asks, like=(network, str(batch), limited, asks['tf32'], asks['autotune']),
                   host_bytes=self.sizes.host_bytes_an_image * images if limited and policy not in IN_CORE else 0,
                   family='limited' if limited else 'in-core',
                   **{'expected_seconds': 5 + 0.04 * images * (1 + limited), 'start_seconds': 12, **expected})

    def _doctor(self) -> Rows:
        yield Row(kind='doctor', asks={'device': self.device}, expected_seconds=10, start_seconds=5)

    def _link(self) -> Rows:
        asks = {'device': self.device, 'network': self.sizes.network, 'image_side': self.sizes.image_side}
        yield Row(kind='warm-up', asks={**asks, 'batch': 2}, expected_seconds=15)
        yield Row(kind='backend-link', asks={'device': self.device}, expected_seconds=3)
        for nbytes in self.sizes.link_bytes:
            yield Row(kind='link', asks={'device': self.device, 'nbytes': nbytes}, expected_seconds=1, like='link')
        for nbytes in self.sizes.pinned_bytes:
            asks = {'device': self.device, 'nbytes': nbytes, 'ask_first': self.host_limit_bytes is None}
            yield Row(kind='host-alloc', asks=asks, host_bytes=nbytes / 0.75,
                      expected_seconds=1 + nbytes / 1.5e9)

    def _chunks(self) -> Rows:
        for nbytes in self.sizes.chunk_bytes:
            yield Row(kind='chunks', asks={'device': self.device, 'nbytes': nbytes}, expected_seconds=1, like='chunks')

    def _in_core(self) -> Rows:
        for policy, tf32 in (('keep', False), ('plain', False), ('keep', True), ('plain', True)):
            yield self.training(self.sizes.network, self.sizes.in_core_batch, policy, tf32=tf32 or self.tf32)

    def _turns(self) -> Rows:
        for tf32 in (False, True):
            yield Row(kind='turns', like='turns', expected_seconds=15, start_seconds=12, asks={
                'device': self.device, 'network': self.sizes.network, 'batch': self.sizes.in_core_batch,
                'min_bytes': self.sizes.min_bytes, 'image_side': self.sizes.image_side, 'tf32': tf32 or self.tf32,
                'rounds': self.sizes.rounds, **({'workspace': self.sizes.workspace} if self.sizes.workspace else {})})

    def _autotune(self) -> Rows:
        for tf32 in (False, True):
            yield self.training(self.sizes.network, self.sizes.in_core_batch, 'keep', tf32=tf32 or self.tf32,
                                autotune=True, start_seconds=60)

    def _operations(self) -> Rows:
        yield Row(kind='queueing', asks={'device': self.device}, expected_seconds=2)
        yield Row(kind='maps', asks={'device': self.device, 'batch': self.sizes.in_core_batch}, expected_seconds=3)
        for number in range(self.sizes.convolutions):
            for way in WAYS:
                yield Row(kind='convolution', expected_seconds=4, like='convolution', asks={
                    'device': self.device, 'network': 'resnet50', 'side': self.sizes.image_side or 224,
                    'batch': self.sizes.in_core_batch, 'number': number, 'way': way})

    def _within_budget(self, batch: Any) -> Rows:
        for policy in ('keep', 'pooch', 'auto', 'swap-all'):
            # The first that trains has the graph's times measured, and is planned anew by them; the others find them.
            more = {'settle': self.sizes.settle_first} if policy == 'pooch' else {}
            yield self.training(self.sizes.network, batch, policy, limited=True, **more)

    def _unlimited(self, batch: Any) -> Rows:
        yield self.training(self.sizes.network, batch, 'keep')

    def _both(self, network: str, batches: Any) -> Rows:
        for batch in batches:
            for policy in ('keep', 'pooch'):
                yield self.training(network, batch, policy)

    def _policies(self, batch: int) -> Rows:
        for policy in self.sizes.policies:
            yield self.training(self.sizes.network, batch, policy)

    def _bits(self) -> Rows:
        for policy in self.sizes.bits_policies:
            yield Row(kind='bits', expected_seconds=10, like='bits', asks={
                'device': self.device, 'network': self.sizes.bits_network, 'batch': self.sizes.bits_batch,
                'policy': policy, 'min_bytes': self.sizes.min_bytes, 'image_side': self.sizes.image_side})

    def _allocators(self, batch: int) -> Rows:
        for allocator in ALLOCATORS:
            yield self.training(self.sizes.network, batch, 'pooch', allocator=allocator, alone=True)

    def _largest_batch(self) -> Rows:
        low, high, step = self.sizes.batch_limits
        yield from largest(lambda batch: self.training(
            self.sizes.network, batch, 'pooch', settle=1, iterations=1), low, high, step)

    def _deepest(self) -> Rows:
        for units in self.sizes.depth_units:
            found = yield self.training(f'resnet-{units}{self.sizes.depth_suffix}', self.sizes.depth_batch, 'pooch',
                                        settle=1, iterations=1, expected_seconds=10 + 0.1 * units)
            if found['outcome'] != 'done':
                return

    def _torch(self, batch: int) -> Rows:
        for mode in TORCH_MODES:
            yield self._torch_row(batch, mode, self.tf32)

    def _torch_in_core(self) -> Rows:
        for tf32 in (False, True):
            yield self._torch_row(self.sizes.in_core_batch, 'in-core', tf32)

    def _torch_row(self, batch: int, mode: str, tf32: bool) -> Row:
        return Row(kind='torch', alone=True, like=('torch', mode), start_seconds=10, asks={
            'device': self.device, 'mode': mode, 'batch': batch, 'iterations': self.sizes.iterations,
            'budget_bytes': None if mode == 'in-core' else self.budget_bytes,
            'image_side': self.sizes.image_side or 224, 'tf32': tf32, **self._trace('torch')},
            expected_seconds=5 + 0.02 * batch,
            host_bytes=self.sizes.host_bytes_an_image * batch if mode == 'save_on_cpu' else 0)

    def _trace(self, name: str) -> dict[str, str]:
        if self._traces is None:
            return {}
        self._trace_count += 1
        return {'trace': str(self._traces / f'trace-{self._trace_count}-{name}.json.gz')}


def _self_test() -> Rows:
    for kind in ('fails', 'crashes', 'hangs', 'works'):
        yield Row(kind=kind, expected_seconds=0.1, start_seconds=0.1)
