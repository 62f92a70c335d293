"""Out-of-core training for Chainer: networks larger than the memory of the device, by one line of configuration.

    import chainer_ooc                        # before chainer: it applies the patch series
    import chainer
    chainer.config.ooc = 'auto'
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from chainer_ooc import fork
from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.version import __version__

if TYPE_CHECKING:
    from chainer_ooc.execute.tally import IterationStats
    from chainer_ooc.plans.plan import Plan
    from chainer_ooc.plans.run import Run
    from chainer_ooc.trace import Trace

__all__ = ['__version__', 'last_run', 'plan', 'policies', 'profile', 'reset', 'stats', 'trace']

fork.install()

if not TYPE_CHECKING:
    def __getattr__(name: str) -> Any:
        """Imports `extensions` when it is first used, since they import Chainer."""
        if name == 'extensions':
            return importlib.import_module('chainer_ooc.extensions')
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')

    def __dir__() -> list[str]:
        return [*__all__, 'extensions']


def stats() -> IterationStats | None:
    """Returns what the calling thread's last finished iteration took, in seconds and bytes, or None before the first.

    Waits until the device has finished that iteration. After ``chainer.config.ooc = None`` it is None, since iterations
    from there on are not seen; after a ``with chainer.using_config('ooc', ...)`` it is the block's last one, unless
    `ooc` was set to None before the block, and so is again.

    Attributes of what is returned:
        policy, phase: the policy; 'profile' where no plan was followed to the end, as in a recorded one, or 'run'.
        budget_bytes, peak_bytes: the budget, and the most that was in use: parameters, their state, maps and scratch.
        swapped_out_bytes, swapped_in_bytes: what was copied to far memory and back.
        tier_bytes: of what was swapped out, the bytes by tier: on a GPU 'pinned' and 'file'; on the host it is empty.
        recomputed_calls, faults: calls that ran once more; maps that were read while they were away and not awaited.
        stall_seconds, seconds: waiting for copies; from the first function to the end of backward.
        predicted_seconds, predicted_peak_bytes: what the plan promised; None without one.
        keep, swap, recompute: numbers of feature maps with each verdict of the plan; all zero without one.
        is_searching: a better plan was still being looked for when the iteration ended.
        gap: by how much the plan may be slower than the best, proven: 0.02 is two percent; None without SciPy.
    """
    from chainer_ooc.execute import sessions

    return sessions.stats()


def plan() -> Plan | None:
    """Returns the plan in force in the calling thread, or None while its graph is still being recorded."""
    from chainer_ooc.execute import sessions

    session = sessions.current()
    return None if session is None else session.plan()


def trace() -> Trace | None:
    """Returns the recording of the graph that the calling thread ran last, or None before one is complete.

    Raises:
        ReentryError: called by a signal handler or a finalizer that has interrupted a change of what is in memory.
    """
    from chainer_ooc.execute import sessions

    return sessions.trace()


def last_run() -> Run | None:
    """Returns the calling thread's last finished iteration as it ran, beside the plan that it followed.

        pathlib.Path('run.json').write_text(chainer_ooc.last_run().to_json())   # then: chainer-ooc report run.json

    Times are in seconds from its first function on, amounts in bytes; see `chainer_ooc.plans.run.Run`. It is worked out
    when it is asked for, and waits until the device has finished the iteration. None before the first iteration under
    a plan, after one that was recorded or has left its graph, and where `chainer.config.ooc` was set to None.
    """
    from chainer_ooc.execute import sessions

    return sessions.last_run()


def profile(program: Any, /, *batch: Any, **named: Any) -> Trace:
    """Records an iteration of your training, and leaves the training as it was::

        trace = chainer_ooc.profile(updater)          # the next batch of its iterator, and its optimizer
        trace = chainer_ooc.profile(model, x, t)      # model(x, t) gives the loss

    It runs two iterations on the same batch, update included where there is an updater, under `chainer.config.ooc`;
    where that is not set, under 'keep', and under 'swap-all' if that does not fit into memory. `ooc_budget`,
    `ooc_workspace` and the other entries hold, `ooc_plan` aside. The trace is of the graph that your training has, so
    that a plan made from it runs from the first iteration on (``chainer.config.ooc_plan``).

    Afterwards all that is reached from the updater, or from what you profile and its batch, is as before: parameters,
    optimizers, objects of your own, containers, iterators, graphs, random streams of NumPy and Python (see
    `chainer_ooc.profiling.untouched`). Sessions, plans and `stats()` stay too. Arrays are copied for that, in the
    host's memory. Of those that only iterators, functions or graphs hold, as data sets, 16 MiB are copied at most; a
    change of others is an error. Not put back are:

    - what goes on inside of generators, `itertools`, open files, queues and threads: an iterator over these goes on by
      two batches;
    - the random stream of a GPU, since it cannot be read;
    - what no attribute, container or function leads to from there: attributes of classes, globals that methods change,
      files, what is printed;
    - which object a global name stands for, and contents of feature maps that are in far memory.

    Args:
        program: an Updater, a Trainer, or what is called with the batch and gives the loss: a Link, or a method of one.
        *batch: what a model is called with: arrays, lists, dicts, as in your training. An Updater and a Trainer draw
            their own.
        **named: the same, by name.

    Returns:
        The trace. Where an iteration has several graphs, as a GAN's, that with the most bytes of feature maps. What the
        training needs more than that one, since maps and gradients of others stand beside it, is in `others_bytes`, and
        in `doubt` why that may not be all, as with double backprop.

    Raises:
        ProfileError: `program` is none of these, the model gave no loss, or no backward pass reached a function; or the
            contents of an array have changed that was too large to be copied, and is named: these stay changed.
        InfeasibleBudgetError, MemoryError: it does not fit into memory, on a GPU into the budget. On the host a budget
            that is too small is exceeded, since nothing is planned.
    """
    from chainer_ooc.profiling import profile as profiling

    return profiling.profile(program, batch, named)


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
    from chainer_ooc.execute import sessions

    sessions.reset(unpin)


def policies() -> dict[str, str]:
    """Returns the names that `chainer.config.ooc` can have, with one line each; ``module:attribute`` aside."""
    return {name: policy.summary for name, policy in POLICIES.items()}
