"""Where in the program's model a call is made: the path of its link, and the line of code, for people to read.

Both are on the stack while a function is applied::

    train.py:88       trainer.run()
    link.py           Link.__call__     of the root                      ''
    net.py:12         self.predictor(x)
    link.py           Link.__call__     of /predictor                    '/predictor'
    net.py:31         self.conv1(h)                         <- the line: the innermost of the program's own
    link.py           Link.__call__     of /predictor/conv1              '/predictor/conv1'  <- the path
    convolution_2d.py F.convolution_2d(x, W)

Only Chainer's frames are asked for a variable, the link: up to Python 3.12 a frame that is asked keeps all of its
variables until it ends, which Chainer's does anyway, while one of the program's may let go of a feature map before. A
link that is used by another method than its call has no frame of Chainer's; a path goes past it by names alone. Looking
takes tens of microseconds a call, so that only what is recorded is looked at.
"""

from __future__ import annotations

import itertools
import os
import sys
import weakref
from collections.abc import Sequence
from types import FrameType
from typing import Any

from chainer_ooc.warning import is_the_programs


class Places:
    """Finds places, in one iteration: names of links within a link are looked up once."""

    def __init__(self) -> None:
        self._names: weakref.WeakKeyDictionary[Any, dict[int, str]] = weakref.WeakKeyDictionary()

    def here(self) -> tuple[str, str]:
        """The path of the innermost link that is being called, and the line of the program's code, each '' if none."""
        import chainer

        links, line, called = [], '', chainer.Link.__call__.__code__
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if code is called:
                links.append(frame.f_locals['self'])
            elif not line and is_the_programs(code.co_filename):
                line = f'{os.path.basename(code.co_filename)}:{frame.f_lineno}'
            frame = frame.f_back
        return self._path(links[::-1]), line

    def _path(self, links: Sequence[Any]) -> str:
        """The path of the last of some links, each of which calls the next."""
        if not links:
            return ''
        path = f'/{links[0].name}' if links[0].name else ''  # of a root that does not call its children itself
        return path + ''.join(itertools.starmap(self._within, itertools.pairwise(links))) or '/'

    def _within(self, outer: Any, inner: Any) -> str:
        if outer not in self._names:
            self._names[outer] = {id(each): name for name, each in outer.namedlinks(skipself=True)}
        name = self._names[outer].get(id(inner), f'/{inner.name or type(inner).__name__}')
        return '' if inner is outer else name
