"""What is measured on a GPU, in parts, the most important first.

A part is a title and a generator of rows: it yields a `Row`, is sent what became of it, and may decide by that what
comes next, as a search for the largest batch does. It states for how long it may run; `conduct` leaves it out where
less time is left. The parts that eight minutes are for come first, and what they state adds up to less than eight
minutes; the others (`policies-512` and its like) take what those left over.

Rows are asked of processes of their own (`processes`), so nothing here imports Chainer or CuPy.
"""
from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from searches import largest

#: What became of a row: its asks, its figures, 'outcome' and perhaps 'reason'.
Result = Mapping[str, Any]
Rows = Generator['Row', Result, None]

#: In the order of their interest: the paper's own comparison first.
OTHER_POLICIES = ('superneurons', 'swap-opt', 'swap-all-naive', 'capacity', 'vdnn++', 'lms', 'window', 'sublinear',
                  'tensor-cache', 'vdnn-all', 'vdnn-conv', 'auto')
ALLOCATORS = ('pool', 'virtual', 'async', 'unified')
TORCH_MODES = ('in-core', 'checkpoint', 'save_on_cpu')
VIDEOS = ((224, 224, 128), (448, 224, 256))  # height, width, frames; PoocH's smallest and largest


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement, in a process that may die of it.

    Attributes:
        kind: Which one, a name in `kinds.KINDS`.
        asks: Its arguments.
        most_seconds: After this long it is given up.
        alone: Whether it needs a process that nothing ran in before.
    """

    kind: str
    asks: Mapping[str, Any] = field(default_factory=dict)
    most_seconds: float = 40.0
    alone: bool = False


@dataclass(frozen=True, kw_only=True)
class Part:
    """Rows that answer one question.

    Attributes:
        name: What `--parts` takes.
        title: The heading of its table.
        kind: Which columns the table has, a name in `tables.COLUMNS`.
        most_seconds: After this long, no further row is begun and the running one is given up.
        rows: Makes the generator of rows.
        on_request: Whether it runs only where `--parts` names it.
    """

    name: str
    title: str
    kind: str
    most_seconds: float
    rows: Callable[[], Rows]
    on_request: bool = False


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of one programme; `FULL` is for a GPU, `SMALL` runs in seconds anywhere."""

    network: str
    batches: Sequence[int]
    others: Sequence[tuple[str, str, Sequence[Any]]]
    policies: Sequence[str]
    link_bytes: Sequence[int]
    bits_network: str
    bits_batch: int
    bits_policies: Sequence[str]
    allocator_batch: int
    batch_limits: tuple[int, int, int]
    depth_units: Sequence[int]
    depth_batch: int
    settle: int
    iterations: int
    min_bytes: int
    image_side: int | None = None


FULL = Sizes(
    network='resnet50', batches=(640, 512, 384, 256, 128),
    others=(('alexnet', 'AlexNet', (2304, 2432, 2560, 2688)), ('googlenet_bn', 'GoogLeNet', (384, 896)),
            ('resnext3d', 'ResNeXt101 (3D)', VIDEOS)),
    policies=OTHER_POLICIES, link_bytes=tuple(2**power for power in (20, 22, 24, 26, 28)),
    bits_network='resnet50', bits_batch=64, bits_policies=('pooch', 'swap-all', 'superneurons'),
    allocator_batch=256, batch_limits=(640, 1920, 128), depth_units=(50, 160, 320, 640), depth_batch=32,
    settle=8, iterations=5, min_bytes=2**20)
SMALL = Sizes(
    network='resnet-16-narrow', batches=(4, 2), others=(('alexnet', 'AlexNet', (2,)),), policies=('superneurons',),
    link_bytes=(2**20,), bits_network='resnet-16-narrow', bits_batch=2, bits_policies=('swap-all',), allocator_batch=2,
    batch_limits=(2, 4, 2), depth_units=(17, 18), depth_batch=1, settle=2, iterations=2, min_bytes=1000, image_side=64)


class Programme:
    """The parts for one device, budget and choice of sizes.

    Args:
        device: 'cuda' or 'host'.
        budget_bytes: What out-of-core rows may hold of near memory.
        sizes: `FULL` or `SMALL`.
        tf32: Whether factors of products may be rounded to what tensor cores take, in Chainer and in PyTorch alike.
    """

    def __init__(self, device: str, budget_bytes: int, sizes: Sizes, tf32: bool = False) -> None:
        self.device, self.budget_bytes, self.sizes, self.tf32 = device, budget_bytes, sizes, tf32

    def parts(self) -> list[Part]:
        """All parts, in the order in which they run."""
        sizes = self.sizes
        first, *rest = sizes.batches
        return [
            Part(name='link', title='Kernels compiled and link', kind='link', most_seconds=45, rows=self._link),
            self._batch_part(first, 110),
            Part(name='bits', title='The bits of in-core training', kind='bits', most_seconds=25, rows=self._bits),
            *(self._batch_part(batch, 20) for batch in rest),
            *(Part(name=name, title=title, kind='training', most_seconds=22,
                   rows=lambda name=name, batches=batches: self._network(name, batches))
              for name, title, batches in sizes.others),
            Part(name='policies', title=f'Other policies, {sizes.network}, batch {first}', kind='training',
                 most_seconds=55, rows=lambda: self._policies(first)),
            Part(name='torch', title='PyTorch on the same card and budget', kind='torch', most_seconds=35,
                 rows=lambda: self._torch(first)),
            Part(name='allocators', title='Allocators', kind='allocators', most_seconds=25, rows=self._allocators),
            Part(name='largest-batch', title=f'Largest batch of {sizes.network}', kind='training', most_seconds=20,
                 rows=self._largest_batch),
            Part(name='deepest', title=f'Deepest residual network, batch {sizes.depth_batch}', kind='training',
                 most_seconds=18, rows=self._deepest),
            *(Part(name=f'policies-{batch}', title=f'Other policies, {sizes.network}, batch {batch}', kind='training',
                   most_seconds=45, rows=lambda batch=batch: self._policies(batch)) for batch in rest),
            Part(name='self-test', title='Rows that fail by intent', kind='self-test', most_seconds=30,
                 rows=_self_test, on_request=True),
        ]

    def training(self, network: str, batch: Any, policy: str, **more: Any) -> Row:
        """A row that trains; in-core policies have no budget and a process of their own."""
        in_core = policy in ('plain', 'keep')
        row = {name: more.pop(name) for name in ('most_seconds', 'alone') if name in more}
        asks = {'device': self.device, 'network': network, 'batch': batch, 'policy': policy,
                'budget_bytes': None if in_core else self.budget_bytes, 'settle': self.sizes.settle,
                'iterations': self.sizes.iterations, 'min_bytes': self.sizes.min_bytes,
                'image_side': self.sizes.image_side, 'tf32': self.tf32, **more}
        return Row(kind='training', asks=asks, **{'alone': in_core, **row})

    def _batch_part(self, batch: int, most_seconds: float) -> Part:
        network = self.sizes.network
        return Part(name=f'batch-{batch}', title=f'{network}, batch {batch}', kind='training',
                    most_seconds=most_seconds, rows=lambda: self._in_core_and_out(network, batch))

    def _in_core_and_out(self, network: str, batch: Any) -> Rows:
        for policy in ('keep', 'pooch', 'swap-all', 'plain'):
            yield self.training(network, batch, policy, most_seconds=60)  # some pin 50 GB first

    def _network(self, network: str, batches: Sequence[Any]) -> Rows:
        for batch in batches:
            for policy in ('keep', 'pooch'):
                yield self.training(network, batch, policy)

    def _policies(self, batch: int) -> Rows:
        for policy in self.sizes.policies:
            yield self.training(self.sizes.network, batch, policy, most_seconds=20)

    def _link(self) -> Rows:
        asks = {'device': self.device, 'network': self.sizes.network, 'image_side': self.sizes.image_side}
        yield Row(kind='warm-up', asks={**asks, 'batch': 2}, most_seconds=40)
        yield Row(kind='backend-link', asks={'device': self.device})
        for nbytes in self.sizes.link_bytes:
            yield Row(kind='link', asks={'device': self.device, 'nbytes': nbytes}, most_seconds=10)

    def _bits(self) -> Rows:
        for policy in self.sizes.bits_policies:
            yield Row(kind='bits', asks={
                'device': self.device, 'network': self.sizes.bits_network, 'batch': self.sizes.bits_batch,
                'policy': policy, 'min_bytes': self.sizes.min_bytes, 'image_side': self.sizes.image_side})

    def _allocators(self) -> Rows:
        for allocator in ALLOCATORS:
            yield self.training(self.sizes.network, self.sizes.allocator_batch, 'pooch', allocator=allocator,
                                alone=True, most_seconds=20)

    def _largest_batch(self) -> Rows:
        low, high, step = self.sizes.batch_limits
        yield from largest(lambda batch: self.training(
            self.sizes.network, batch, 'pooch', settle=1, iterations=1), low, high, step)

    def _deepest(self) -> Rows:
        for units in self.sizes.depth_units:
            narrow = '-narrow' if self.sizes is SMALL else ''
            found = yield self.training(f'resnet-{units}{narrow}', self.sizes.depth_batch, 'pooch', settle=1,
                                        iterations=1)
            if found['outcome'] != 'done':
                return

    def _torch(self, batch: int) -> Rows:
        for mode in TORCH_MODES:
            yield Row(kind='torch', alone=True, asks={
                'device': self.device, 'mode': mode, 'batch': batch, 'iterations': self.sizes.iterations,
                'budget_bytes': None if mode == 'in-core' else self.budget_bytes,
                'image_side': self.sizes.image_side or 224, 'tf32': self.tf32})


def _self_test() -> Rows:
    for kind in ('fails', 'crashes', 'hangs', 'works'):
        yield Row(kind=kind, most_seconds=3.0 if kind == 'hangs' else 20.0)
