"""Interrupts before any step of the interpreter, where Python looks for signals or might."""
import sys


def interrupted_at_step(number, call):
    """Calls ``call`` and interrupts it before its step ``number``, from 1 on; false if it ended before."""
    left = [number]

    def trace(frame, event, argument):
        frame.f_trace_opcodes = True
        if event == 'opcode':
            left[0] -= 1
            if not left[0]:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False
