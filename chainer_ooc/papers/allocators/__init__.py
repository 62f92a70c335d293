"""Allocators of near memory, on paper: how much of it fragmentation takes away."""

from chainer_ooc.papers.allocators.allocator import AllocatorModel, DeviceFullError, ModelBlock, Operations
from chainer_ooc.papers.allocators.events import Event, events_of
from chainer_ooc.papers.allocators.exact import ExactAllocator
from chainer_ooc.papers.allocators.pool import BestFitPool
from chainer_ooc.papers.allocators.replay import Replay, replay, smallest_capacity
from chainer_ooc.papers.allocators.virtual import MappedBlock, VirtualModel

__all__ = [
           'AllocatorModel',
           'BestFitPool',
           'DeviceFullError',
           'Event',
           'ExactAllocator',
           'MappedBlock',
           'ModelBlock',
           'Operations',
           'Replay',
           'VirtualModel',
           'events_of',
           'replay',
           'smallest_capacity',
]
