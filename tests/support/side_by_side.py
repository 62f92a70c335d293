"""Threads that get in each other's way as often as the interpreter lets them."""
import sys
import threading


def side_by_side(*calls):
    """Runs each of these in a thread of its own, and waits for all."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=call) for call in calls]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    finally:
        sys.setswitchinterval(before)
