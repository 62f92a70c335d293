"""The functions that the seam patch calls, in the order of an iteration; see `sessions` for whose it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from chainer_ooc import config
from chainer_ooc.backends import device_of, expect_arrays
from chainer_ooc.execute.alone import run_alone
from chainer_ooc.execute.functions.prototype import may_write, may_write_inputs
from chainer_ooc.execute.on_file import ParametersOnFile, run_whole
from chainer_ooc.execute.sessions import borrowed, current, is_off, lender, session_for
from chainer_ooc.execute.shortage import advise_on_errors, explain_outside
from chainer_ooc.execute.storage.account import find
from chainer_ooc.execute.storage.computing import RUNNING, computing, is_computing, only_reads, run_as
from chainer_ooc.execute.storage.reentry import LOCK, copies, interrupted, is_locked, refusal
from chainer_ooc.execute.storage.slots import Away, OutputSlot, array_in_slot
from chainer_ooc.ranks.failure import end_all_on_errors


def expect_training() -> None:
    """chainer.config.ooc is set: a model may be made before its first function is applied."""
    expect_arrays()
    advise_on_errors(_explain)


def apply(function: Any, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """FunctionNode.apply while chainer.config.ooc is set."""
    if is_locked() and (not is_computing() or interrupted() is not None):  # the core applies them in computations
        raise refusal('applies a function')
    if RUNNING.is_foreign is not None:
        outputs = run_alone(function, inputs, may_write_inputs(function))
        if config.entry('ooc_parameters') is not None and (on_file := _on_file()) is not None:
            with LOCK:
                on_file.after_call(inputs)
        makes_graph = function.inputs is not None
        if (makes_graph or RUNNING.call is not None) and (session := current()) is not None:
            session.ran_within(inputs, outputs if makes_graph else ())
        return outputs
    device, found = _device_of(inputs), None
    while found is None:
        found = session_for(device).apply(function, inputs)
    return found


def step(run: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """One function's step of a backward pass, which has looked at the settings."""
    thread = threading.current_thread()
    session = current(thread)
    if session is not None:
        session.step(thread, run, arguments)
    elif is_computing():
        run(*arguments)
    else:  # of another thread's graph: what it applies is no training of this one's
        run_as(may_write_inputs(arguments[0]), run, *arguments)


def backward_pass(backprop: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A backward pass as a whole; with chainer.config.ooc not set here, it may be over another thread's graph."""
    if is_locked() and config.entry('ooc') is not None:
        raise refusal('begins a backward pass')
    other = None if is_off() or is_locked() else lender(args[0])
    if other is not None:
        with borrowed(other):
            return other.backward_pass(backprop, args, kwargs)
    is_on = config.entry('ooc') is not None and current() is not None  # else nothing was applied yet
    return session_for(None).backward_pass(backprop, args, kwargs) if is_on else backprop(*args, **kwargs)


def in_data(nodes: Sequence[Any], hooks: Iterable[Any]) -> list[Any]:
    """The data of nodes, for hooks to look at in a backward pass; some may write to it."""
    session = current()
    if session is not None:
        session.show((), False)  # what they were shown before is not beside it
    with computing():
        found = [node.data for node in nodes]
    if session is not None:
        session.show(found, may_write(hooks))
    return found


def retained_outputs(function: Any) -> Sequence[Any] | None:
    """The arrays of its outputs that a function retains, for Chainer, or for the program, which may write to them."""
    retained: Sequence[Any] | None = function._retained_output_data
    if retained is None or (only_reads() and not function._ooc):
        return retained
    if copies() or (is_locked() and interrupted() is not None):
        return _brought(function, len(retained))
    with LOCK:
        brought = _brought(function, len(retained))  # and held, whatever leaves again
        found = [each if here is None else here
                 for each, here in zip(brought, function._retained_output_data, strict=True)]
        for storage in filter(None, map(find, found)):
            if not storage.is_guarded():
                storage.memory.open(storage)
    return found


def _brought(function: Any, count: int) -> list[Any]:
    """The first so many of a function's retained outputs; what is away is fetched."""
    found = [OutputSlot(function, index).get() for index in range(count)]
    return [each.fetch() if isinstance(each, Away) else each for each in found]


def made(array: Any) -> None:
    """A parameter's array, or its gradient's, has its first values, while chainer.config.ooc_parameters is set."""
    if config.entry('ooc') is None or is_locked() or device_of(array) != 'host':
        return
    with LOCK:
        on_file = session_for('host').on_file
        if on_file is not None:
            on_file.take_array(array)  # before others are made, or a model would have to fit


def update(rule: Any, parameter: Any) -> None:
    """Updates a parameter, with the hooks of its rule, while chainer.config.ooc_parameters is set."""
    _run_on_file(rule, parameter, None)


def call_hook(hook: Any, rule: Any, parameter: Any) -> None:
    """Calls an optimizer's hook for a parameter while chainer.config.ooc_parameters is set."""
    _run_on_file(rule, parameter, hook)


def _run_on_file(rule: Any, parameter: Any, hook: Any) -> None:
    on_file = _on_file()
    (run_whole if on_file is None else on_file.run)(rule, parameter, hook)


def _on_file() -> ParametersOnFile | None:
    session = current()
    return None if session is None else session.on_file


def exchange(run: Callable[[Any, bool], None], target: Any, zero_fill: bool) -> None:
    """Exchanges the gradients of a model between ranks, and notes what that takes."""
    session = current()
    finished = None if session is None else session.finished
    end_all_on_errors()  # the program may have set a hook of its own since
    if finished is None:
        run(target, zero_fill)
        return
    with finished.exchanging(sum(int(each.array.nbytes) for each in target.params() if each.array is not None)):
        run(target, zero_fill)


def note_sent(target: Any) -> None:
    """The first update of a model on several ranks has sent its parameters to all of them, and used no gradients."""
    session = current()
    if session is not None:
        session.note_sent(target.params())


def before_exchange(nbytes: int) -> None:
    """Leaves room for what MPI allocates when it exchanges an array of the host of so many bytes."""
    session = current()
    if session is not None and not is_locked():
        session.memory.leave_outside(2 * nbytes)  # a copy of what is sent, and what arrives


def _device_of(inputs: Sequence[Any]) -> str | None:
    """The device of the first array, or None if all of them are away: only a session's own can be."""
    for each in inputs:
        array = array_in_slot(each)
        if array is not None:
            return device_of(array)
    return None


def _explain(error: MemoryError) -> str | None:
    """The last line of a program that an error outside of functions ends; None where this is nobody's training."""
    import chainer

    session = current()
    if session is not None:
        return session.explain(error)
    return None if chainer.config.ooc is None else explain_outside(error)
