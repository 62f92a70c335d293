"""Interrupts, and handlers, where a signal may bring one: before any step of the interpreter, or any line."""
import contextlib
import sys


def interrupted_at(number, call, event='opcode', is_traced=lambda code: True):
    """Calls ``call`` and interrupts it once, in this thread. One in a destructor is lost, as with a signal.

    Args:
        number: before which step or line, from 1 on.
        call: takes nothing.
        event: 'opcode' for steps, 'line' for lines.
        is_traced: which code's count.

    Returns:
        bool: Whether the interrupt came before ``call`` had ended.
    """
    left, report = number, sys.unraisablehook

    def trace(frame, kind, argument):
        nonlocal left
        if not is_traced(frame.f_code):
            return None
        frame.f_trace_opcodes = event == 'opcode'
        if kind == event:
            left -= 1
            if not left:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    def report_others(lost):
        """An exception that pytest keeps for its warning would keep alive what the interrupted call had."""
        if lost.exc_type is not KeyboardInterrupt:
            report(lost)

    before = sys.gettrace()
    sys.unraisablehook = report_others
    sys.settrace(trace)
    try:
        next(_alone(call), None)
    except KeyboardInterrupt:
        assert not left
    finally:
        sys.settrace(before)
        sys.unraisablehook = report
    return left <= 0


def _alone(call):
    """Where an interrupt ends an ``except`` block in its midst, which no signal does, its exception stays the thread's.

    That of a generator is its own, and goes with it.
    """
    yield call()


@contextlib.contextmanager
def handled_before(is_due, handle, event='line', is_traced=lambda code: True):
    """Runs a handler in this thread, as one of a signal, before each step or line for which ``is_due()`` says so."""
    is_handling = False

    def trace(frame, kind, argument):
        nonlocal is_handling
        if is_handling or not is_traced(frame.f_code):
            return None
        frame.f_trace_opcodes = event == 'opcode'
        if kind == event and is_due():
            is_handling = True
            try:
                handle()
            finally:
                is_handling = False
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
