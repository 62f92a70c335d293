"""Tells a program, once, that its threads leave nothing that a plan could be made of.

Such iterations have the right bits and move whatever they can, but follow no plan, for ever, and no budget is refused.
"""

from __future__ import annotations

from chainer_ooc.warning import warn

#: So many iterations in a row are no accident.
IN_A_ROW = 3

_GOES_ON = ('a thread applied a function, or began a backward pass, before the one that another thread runs over its '
            'graph had ended, {} times in a row: such iterations follow no plan, and no budget is checked; wait for '
            'the pass first (docs/guide.md, Threads and forks)')
_SPANS = ('{} backward passes in a row have read feature maps of a forward pass in another thread: that part of the '
          'graph follows no plan, and no budget is checked there; run each forward pass in one thread (docs/guide.md, '
          'Threads and forks)')


class Unplanned:
    """Counts the iterations of a session in a row that follow no plan, wholly or in part."""

    def __init__(self) -> None:
        self._counts = {_GOES_ON: 0, _SPANS: 0}

    def went_on(self) -> None:
        """The session's own thread has gone on in the midst of another one's backward pass."""
        self._count(_GOES_ON, True)

    def passed(self, spans_threads: bool) -> None:
        """A backward pass has ended; whether maps that it has read are of another session."""
        self._count(_GOES_ON, False)
        self._count(_SPANS, spans_threads)

    def _count(self, why: str, once_more: bool) -> None:
        count = self._counts[why]
        if count < IN_A_ROW:
            self._counts[why] = count + 1 if once_more else 0
            if self._counts[why] == IN_A_ROW:
                warn(why.format(IN_A_ROW), RuntimeWarning)
