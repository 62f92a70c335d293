"""Out-of-core training for Chainer: networks larger than the memory of the device, by one line of configuration.

    import chainer_ooc                        # before chainer: it applies the patch series
    import chainer
    chainer.config.ooc = 'swap-all'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chainer_ooc import fork
from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.version import __version__

if TYPE_CHECKING:
    from chainer_ooc.execute.session import Session
    from chainer_ooc.execute.tally import IterationStats
    from chainer_ooc.plans.plan import Plan
    from chainer_ooc.trace import Trace

__all__ = ['__version__', 'plan', 'policies', 'reset', 'stats', 'trace']

fork.install()


def stats() -> IterationStats | None:
    """Returns what the calling thread's last finished iteration took, in seconds and bytes, or None before the first.

    Waits until the device has finished that iteration. After ``chainer.config.ooc = None`` it is None, since iterations
    from there on are not seen; after a ``with chainer.using_config('ooc', ...)`` it is the block's last one.
    """
    import chainer

    if vars(chainer.config._local).get('ooc', 'not set') is None:
        return None
    session = _session()
    return None if session is None else session.stats


def plan() -> Plan | None:
    """Returns the plan in force in the calling thread, or None while its graph is still being recorded."""
    session = _session()
    return None if session is None else session.plan()


def trace() -> Trace | None:
    """Returns the recording of the graph that the calling thread ran last, or None before one is complete."""
    session = _session()
    return None if session is None else session.trace()


def reset(*, unpin: bool = False) -> None:
    """Closes the sessions of all threads: profiles, plans, I/O threads and the spill file.

    What a graph or a Variable that still lives has in far memory comes back first.

    Args:
        unpin: Also gives back the host memory that was pinned for a GPU. Else it stays the process's, and the next
            training on a GPU begins with it, as pinning takes longer than copying.

    Raises:
        SpillError, MemoryError: a map could not come back; the session that has it stays open.
        RuntimeError: CUDA could not unpin some memory; the rest goes back at the next call.
        ReentryError: called by a signal handler or a finalizer that has interrupted a change of what is in memory.
    """
    from chainer_ooc.execute import manager

    manager.reset(unpin)


def _session() -> Session | None:
    from chainer_ooc.execute import manager

    return manager.current()


def policies() -> dict[str, str]:
    """Returns the names that `chainer.config.ooc` can have, with one line each."""
    return {name: policy.summary for name, policy in POLICIES.items()}
