"""The sizes of one programme: `FULL` is for a GPU, `SMALL` runs in seconds anywhere."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

#: In the order of their interest; pooch, auto and swap-all have been by then.
OTHER_POLICIES = ('superneurons', 'swap-opt', 'capacity', 'vdnn++', 'lms', 'window', 'unified', 'sublinear',
                  'tensor-cache', 'swap-all-naive', 'vdnn-all', 'vdnn-conv')
VIDEOS = ((224, 224, 128), (448, 224, 256))  # height, width, frames; PoocH's smallest and largest


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """See the module.

    Attributes:
        budget: Near memory of out-of-core rows, where none is asked for.
        batches: The first is that of most rows.
        in_core_batch: Trains in-core on any card.
        rounds: In which plain Chainer and `keep` take turns.
        chunk_bytes: Sizes of chunks of memory that are mapped, and timed.
        pinned_bytes: What is pinned at once, and timed.
        host_bytes_an_image: Far memory of a policy that swaps all.
        convolutions: How many of ResNet50's are timed one by one, the largest first.
        batch_limits: Of the search for the largest: from, to, how close.
        settle: Iterations before those that count.
        settle_first: The same, where a plan is made from a recorded iteration: the next two plans are made after two
            more iterations and four more (`execute/graphs/times.py`).
        iterations: That count.
        workspace: chainer.config.ooc_workspace, without which im2col on a CPU dwarfs all that the budget is about.
    """

    budget: str
    network: str
    batches: Sequence[int]
    in_core_batch: int
    rounds: int
    others: Sequence[tuple[str, str, Sequence[Any]]]
    policies: Sequence[str]
    link_bytes: Sequence[int]
    chunk_bytes: Sequence[int]
    pinned_bytes: Sequence[int]
    host_bytes_an_image: float
    convolutions: int
    bits_network: str
    bits_batch: int
    bits_policies: Sequence[str]
    batch_limits: tuple[int, int, int]
    depth_units: Sequence[int]
    depth_suffix: str
    depth_batch: int
    settle: int
    settle_first: int
    iterations: int
    min_bytes: int
    image_side: int | None = None
    workspace: str | None = None


FULL = Sizes(
    budget='16GB', network='resnet50', batches=(640, 512, 384, 256, 128), in_core_batch=128,
    rounds=5,
    others=(('alexnet', 'AlexNet', (2304, 2432, 2560, 2688)), ('googlenet_bn', 'GoogLeNet', (384, 896)),
            ('resnext3d', 'ResNeXt101 (3D)', VIDEOS)),
    policies=OTHER_POLICIES, link_bytes=tuple(2**power for power in (20, 22, 24, 26, 28)),
    chunk_bytes=tuple(2**power for power in (21, 23, 25)), pinned_bytes=(10**9, 8 * 10**9, 32 * 10**9),
    host_bytes_an_image=80.1e6, convolutions=5,
    bits_network='resnet50', bits_batch=64, bits_policies=('pooch', 'swap-all', 'superneurons', 'unified'),
    batch_limits=(640, 1920, 128), depth_units=(50, 160, 320, 640), depth_suffix='', depth_batch=32,
    settle=5, settle_first=9, iterations=5, min_bytes=2**20)
SMALL = Sizes(
    budget='8MB', network='resnet-16-narrow', batches=(16, 4), in_core_batch=4, rounds=2,
    others=(('alexnet', 'AlexNet', (2,)),), policies=('swap-opt',), link_bytes=(2**20,),
    chunk_bytes=(2**21,), pinned_bytes=(10**6,),
    host_bytes_an_image=1e7, convolutions=1, bits_network='resnet-16-narrow', bits_batch=2,
    bits_policies=('swap-all', 'unified'), batch_limits=(2, 4, 2), depth_units=(17, 18), depth_suffix='-narrow',
    depth_batch=1, settle=5, settle_first=9, iterations=3, min_bytes=1000, image_side=64, workspace='1MB')
