"""What a recorded graph is compared by: with what runs, and with other graphs (P8)."""

from __future__ import annotations

import itertools
import operator

from chainer_ooc.trace import ArrayForm, Call, Trace

#: What a call is given.
Forms = tuple[ArrayForm, ...]


class Likeness:
    """A recorded graph, as far as it is like what runs, or like another.

    Attributes:
        trace: its last recording.
        number: it was the so-many-th to be recorded, from 1 on.
        is_estimate: the whole trace is that of another size.
    """

    trace: Trace
    number: int
    is_estimate: bool
    _common: dict[int, int]  # how many calls it has in common with others, by their numbers

    def expects(self, call: Call) -> bool:
        """Whether the graph has this call at its position; an estimate knows no shapes."""
        if call.index >= len(self.trace.calls):
            return False
        own = self.trace.calls[call.index]
        if own is call:
            return True
        if self.is_estimate:
            return ((own.label, own.inputs, own.outputs, own.hidden)
                    == (call.label, call.inputs, call.outputs, call.hidden))
        return own.signature == call.signature

    def begins_with(self, label: str, arguments: Forms) -> bool:
        """Whether its first call is of this function, with inputs of these forms."""
        first = self.trace.calls[0]
        return (first.label, first.arguments) == (label, arguments)

    def may_go_on(self, position: int, label: str, arguments: Forms) -> bool:
        """Whether its call at a position is of this function, with inputs of these forms, which an estimate lacks."""
        if position >= len(self.trace.calls):
            return False
        call = self.trace.calls[position]
        return call.label == label and (self.is_estimate or call.arguments == arguments)

    def has_step(self, number: int, call: int, label: str) -> bool:
        """Whether its step of this number is that of a call, or of a function of a class where the call is -1."""
        steps = self.trace.steps
        return number < len(steps) and steps[number].call == call and (call >= 0 or steps[number].label in ('', label))

    def steps_like(self, other: Likeness, steps: int) -> bool:
        """Whether so many of its steps, the first of them, are those of another graph."""
        return all(mine.signature == each.signature
                   for mine, each in zip(self.trace.steps[:steps], other.trace.steps[:steps], strict=True))

    def may_have_been(self, call: Call) -> bool:
        """Whether its call at that position is given what this one of another graph is."""
        own = self.trace.calls[call.index:call.index + 1]
        return [(each.label, each.inputs, each.arguments) for each in own] == [
            (call.label, call.inputs, call.arguments)]

    def resembles(self, other: Likeness) -> bool:
        """Whether another graph differs from it in extents alone."""
        mine, others = self.trace, other.trace
        return (len(mine.calls) == len(others.calls) and len(mine.steps) == len(others.steps)
                and all(map(operator.eq, map(_extents_aside, mine.calls), map(_extents_aside, others.calls)))
                and all(each.call == like.call for each, like in zip(mine.steps, others.steps, strict=True)))

    def common_calls(self, other: Likeness) -> int:
        """With how many equal calls this recorded graph and another begin."""
        if self.number < other.number:  # kept by the newer, which has met no more than `GRAPHS`
            return other.common_calls(self)
        if other.number not in self._common:
            pairs = zip(self.trace.calls, other.trace.calls, strict=False)
            self._common[other.number] = sum(1 for _ in itertools.takewhile(
                lambda pair: pair[0].signature == pair[1].signature, pairs))
        return self._common[other.number]


def _extents_aside(call: Call) -> tuple[object, ...]:
    return (call.label, call.inputs, call.outputs, call.hidden,
            [(each.dtype, len(each.shape)) for each in (*call.arguments, *call.results)])
