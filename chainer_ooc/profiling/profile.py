"""Records one iteration of a training: an updater's, or a model's with a batch.

Two iterations run, on the same batch, and the second is the recording: parameters, the optimizer's state and memory
that is used for the first time are there by then. They run in a session of their own, so that graphs, plans and figures
of the training that goes on around them stay.

Source: PoocH 4.1 (profiling). Left out: several devices.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from chainer_ooc.classify import policies as known
from chainer_ooc.errors import InfeasibleBudgetError, ProfileError
from chainer_ooc.execute import sessions
from chainer_ooc.plans.making import floor_of
from chainer_ooc.problem import problem_of
from chainer_ooc.profiling.reach import links_of
from chainer_ooc.profiling.untouched import untouched
from chainer_ooc.quantities import parse_bytes
from chainer_ooc.trace import Trace

#: Iterations that are recorded; the last recording counts.
RECORDINGS = 2
#: The policy that needs the least memory.
LEAST = 'swap-all'
#: What a training is recorded under where `chainer.config.ooc` is not set.
POLICIES = ('keep', LEAST)


@dataclass(frozen=True)
class Training:
    """What runs iterations.

    Attributes:
        iterate: runs one.
        roots: what it changes, by what messages call it: the updater, or the program and its batch.
        is_kept: it goes on afterwards; else no copy is made of its arrays.
    """

    iterate: Callable[[], None]
    roots: dict[str, Any]
    is_kept: bool = True


def profile(program: Any, batch: tuple[Any, ...], named: dict[str, Any]) -> Trace:
    """See `chainer_ooc.profile`."""
    import chainer

    training = training_of(program, batch, named)
    policies = POLICIES if chainer.config.ooc is None else (chainer.config.ooc,)
    for policy in policies[:-1]:
        with contextlib.suppress(MemoryError, InfeasibleBudgetError):
            return record(training, policy)
        gc.collect()  # what the graph had
    return record(training, policies[-1])


def record(training: Training, policy: str) -> Trace:
    """Runs two iterations under a policy, and puts back what they have changed.

    Raises:
        ProfileError: nothing was recorded, or something that was changed could not be put back.
    """
    entries = configured(ooc_plan=None, ooc_profile_iterations=RECORDINGS, ooc=policy)
    with untouched(training.roots, training.is_kept) as rewound, _deaf(), entries, sessions.apart():
        traces, refusals = [], []
        for _ in range(RECORDINGS):
            with rewound():
                training.iterate()
            session = sessions.current()
            if session is not None:
                refusals.append(session.refusal(LEAST))
                traces = [each for each in session.traces() if each.steps]
    if not traces:
        raise ProfileError('nothing was recorded: no backward pass has reached a function; profile an iteration that '
                           'calls backward() on a loss, with chainer.config.enable_backprop as it is by default')
    return _among_others(max(traces, key=lambda each: each.maps_bytes), refusals)


def _among_others(trace: Trace, refusals: list[InfeasibleBudgetError]) -> Trace:
    """The trace with what the floor of the whole training has beyond its own, and why that may not be all.

    A training plans after its first iteration, and may be refused less after a later one: the largest floor counts.
    """
    import chainer

    own = floor_of(known.POLICIES[LEAST], problem_of(trace, 1, parse_bytes(chainer.config.ooc_min_bytes)))
    if own is None:
        return trace  # it needs nothing, as no call has a map
    more_bytes = max(each.floor_bytes - each.lost_bytes for each in refusals) - own.floor_bytes
    return replace(trace, others_bytes=max(0, more_bytes), doubt=refusals[-1].doubt)


def training_of(program: Any, batch: tuple[Any, ...], named: dict[str, Any], optimizer: Any = None) -> Training:
    """Finds out what runs an iteration: an Updater, a Trainer, or what is called with a batch, by place and by name.

    `optimizer` is what updates a model, set up for it; None if nothing does.

    Raises:
        ProfileError: that is no training.
    """
    import chainer

    if isinstance(program, chainer.training.Trainer):
        program = program.updater
    if isinstance(program, chainer.training.Updater):
        if batch or named:
            raise ProfileError(f'a {type(program).__name__} draws its batch itself; profile it alone, or a model '
                               'together with a batch')
        return Training(program.update, {'updater': program, 'optimizers': program.get_all_optimizers()})
    if not callable(program):
        raise ProfileError(f'a value of type {type(program).__name__} cannot be profiled; give an Updater, a Trainer, '
                           'or a model and its batch')
    if not (batch or named):
        raise ProfileError(f'a {type(program).__name__} is called with a batch; give that too: '
                           'chainer_ooc.profile(model, x, t)')
    loss = functools.partial(loss_of, program)
    roots = {'program': program, 'batch': batch, 'named': named}
    if optimizer is not None:
        return Training(lambda: optimizer.update(loss, *batch, **named), {**roots, 'optimizer': optimizer})
    links = links_of(program)
    return Training(lambda: _iterate(loss, links, batch, named), roots)


def _iterate(loss_of: Callable[..., Any], links: list[Any], batch: tuple[Any, ...], named: dict[str, Any]) -> None:
    """One forward and backward pass, in the order in which `Optimizer.update` has them."""
    loss = loss_of(*batch, **named)
    for each in links:
        each.cleargrads()
    loss.backward()


def loss_of(model: Any, *batch: Any, **named: Any) -> Any:
    """What a model gives for a batch.

    Raises:
        ProfileError: that is no loss.
    """
    import chainer

    loss = model(*batch, **named)
    if isinstance(loss, chainer.Variable) and loss.size == 1 and loss.dtype.kind == 'f':
        return loss
    shape = f' of {loss.dtype} and shape {loss.shape}' if isinstance(loss, chainer.Variable) else ''
    raise ProfileError(f'the model gave a {type(loss).__name__}{shape}, not a loss, which is one floating point number '
                       'in a Variable; profile what your training calls, such as L.Classifier(model)')


@contextlib.contextmanager
def configured(**entries: Any) -> Iterator[None]:
    """Sets entries of `chainer.config` meanwhile."""
    import chainer

    with contextlib.ExitStack() as stack:
        for name, value in entries.items():
            stack.enter_context(chainer.using_config(name, value))
        yield


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Has `chainer.report` reach nobody meanwhile."""
    import chainer

    class Deaf(chainer.Reporter):  # type: ignore[misc]
        """Takes reports of whatever observer, and forgets them."""

        def report(self, values: object, observer: object = None) -> None:
            pass

    with Deaf():
        yield
