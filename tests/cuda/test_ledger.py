"""The sum that finalizers lower: never wrong, never waiting for itself, in the true order."""
import gc
import sys
import threading

from chainer_ooc.backends.cuda.allocators.ledger import Ledger
from support.told_ledger import ToldLedger


def test_the_sum_is_what_was_added_and_not_subtracted():
    ledger = Ledger()
    assert ledger.add(5)
    assert ledger.add(3)
    ledger.lower(5)
    assert ledger.total() == 3


def test_a_limit_refuses_and_changes_nothing():
    ledger = Ledger()
    assert ledger.add(6, limit_bytes=8)
    assert not ledger.add(3, limit_bytes=8)
    assert ledger.total() == 6
    ledger.lower(1)
    assert ledger.add(3, limit_bytes=8)


def test_frees_are_told_before_the_malloc_that_follows_them():
    events = []
    ledger = ToldLedger(lambda kind, nbytes: events.append((kind, nbytes)))
    ledger.add(4)
    ledger.lower(4)
    assert events == [('malloc', 4)]
    ledger.add(2)
    assert events == [('malloc', 4), ('free', 4), ('malloc', 2)]


def test_the_peak_is_of_the_stretch_since_the_mark():
    #   8   . .#. .
    #   6   . .#.#.
    #   4   .#.#.#.
    #       mark   mark
    ledger = Ledger()
    ledger.add(4)
    assert ledger.mark() == 4
    ledger.add(4)
    ledger.lower(2)
    assert ledger.peak_bytes == 8
    assert ledger.mark() == 6
    assert ledger.peak_bytes == 6


def test_a_free_before_a_malloc_is_no_part_of_its_peak():
    ledger = Ledger()
    ledger.add(4)
    ledger.mark()
    ledger.lower(4)
    ledger.add(3)
    assert ledger.peak_bytes == 4


def test_a_finalizer_may_run_while_the_ledger_is_asked():
    class Dying:
        def __init__(self, ledger):
            self.ledger, self.cycle = ledger, self

        def __del__(self):
            self.ledger.lower(1)
            self.ledger.total()

    ledger = ToldLedger(lambda kind, nbytes: gc.collect())
    for _ in range(3):
        Dying(ledger)
        ledger.add(1)
    gc.collect()
    assert ledger.total() == 0


def test_threads_lose_nothing():
    ledger = Ledger()

    def work():
        for _ in range(500):
            ledger.add(2)
            ledger.lower(1)
            ledger.total()
            ledger.lower(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.total() == 0


def test_a_handler_that_comes_as_a_free_is_booked_changes_the_sum_once():
    """As a signal may: right after a call of C."""
    ledger, asked = Ledger(), []

    def handle(frame, event, function):
        if event == 'c_return' and function.__name__ == 'popleft' and not asked:
            asked.append(ledger.add(50))
            ledger.lower(1)
            asked.append(ledger.total())

    ledger.add(8)
    ledger.lower(2)
    ledger.lower(4)
    sys.setprofile(handle)
    try:
        ledger.total()
    finally:
        sys.setprofile(None)
    assert asked
    assert ledger.total() == 8 - 2 - 4 + 50 - 1
