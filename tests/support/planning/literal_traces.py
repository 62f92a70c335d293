"""Iterations written down call by call."""
import dataclasses

from chainer_ooc.trace import Call, FeatureMap, Step, Trace


def make_trace(calls, steps, maps, others=None, forward_others=None):
    """A literal iteration.

    Args:
        calls: what each call allocates at its highest.
        steps: the same of each backward step; steps undo the calls in reverse.
        maps: (nbytes, producer, last forward use, backward uses) and, if not as usual, a dict of attributes.
        others: other bytes at each step, or none at all.
        forward_others: the same at each call.
    """
    others, forward_others = others or [0] * len(steps), forward_others or [0] * len(calls)
    return Trace(
        device='host',
        calls=tuple(Call(index, f'Layer{index}', (), made_by(index, maps), (), 1.0, peak, other_bytes=other)
                    for index, (peak, other) in enumerate(zip(calls, forward_others, strict=True))),
        steps=tuple(Step(len(calls) + number, len(calls) - 1 - number, read_at(len(calls) + number, maps), 2.0, peak,
                         other)
                    for number, (peak, other) in enumerate(zip(steps, others, strict=True))),
        maps=tuple(_map(map_id, *row) for map_id, row in enumerate(maps)), seconds=1.0,
        write_bytes_per_second=1e9, read_bytes_per_second=1e9)


def made_by(call, maps):
    """Of rows as `make_trace` takes them, the ids of those that a call makes."""
    return tuple(map_id for map_id, row in enumerate(maps) if row[1] == call)


def read_at(position, maps):
    """The ids of those that the step at a position reads."""
    return tuple(map_id for map_id, row in enumerate(maps) if position in row[3])


def _map(map_id, nbytes, producer, last_forward_use, uses, attributes=None):
    usual = FeatureMap(
        id=map_id, nbytes=nbytes, producer=producer, hidden=False, retained=bool(uses), foreign=False,
        last_forward_use=last_forward_use, backward_uses=tuple(uses), shape=(nbytes,), dtype='uint8')
    return dataclasses.replace(usual, **(attributes or {}))
