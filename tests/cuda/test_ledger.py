"""What lives, and its sum: never wrong, never waiting for itself, in the true order."""
import gc
import threading

import pytest

from chainer_ooc.backends.cuda.allocators.ledger import Count, End, Ledger, Owner
from support.told_ledger import Told


@pytest.fixture
def ledger():
    return Ledger()


def give(ledger, nbytes):
    """A new block, booked as an allocator does."""
    block = Owner(0, nbytes, 0, nbytes)
    with ledger.lock:
        ledger.begin(block)
    return block


def test_the_sum_is_what_lives(ledger):
    first, second = give(ledger, 5), give(ledger, 3)
    del first
    assert ledger.total() == 3
    assert ledger.living() == [second]


def counting(ledger):
    count = Count()
    ledger.count_in(count)
    return count


def test_frees_are_told_before_the_malloc_that_follows_them(ledger):
    events = []
    ledger.count_in(Told(lambda kind, nbytes: events.append((kind, nbytes))))
    give(ledger, 4)
    assert events == [('malloc', 4)]
    give(ledger, 2)
    assert events == [('malloc', 4), ('free', 4), ('malloc', 2)]


def test_the_peak_is_of_the_stretch_since_the_mark(ledger):
    #   8   . .#. .
    #   6   . .#.#.
    #   4   .#.#.#.
    #       mark   mark
    count, blocks = counting(ledger), [give(ledger, 4)]
    assert ledger.mark(count) == 4
    blocks += [give(ledger, 2), give(ledger, 2)]
    blocks.pop()
    assert count.peak_bytes == 8
    assert ledger.mark(count) == 6
    assert count.peak_bytes == 6


def test_a_mark_of_one_count_leaves_the_peaks_of_others(ledger):
    count, other, block = counting(ledger), counting(ledger), give(ledger, 4)
    ledger.mark(count)
    del block
    assert ledger.mark(other) == 0
    kept = give(ledger, 3)
    assert (count.peak_bytes, other.peak_bytes) == (4, 3)
    del kept


def test_a_free_before_a_malloc_is_no_part_of_its_peak(ledger):
    count, block = counting(ledger), give(ledger, 4)
    ledger.mark(count)
    del block
    kept = give(ledger, 3)
    assert count.peak_bytes == 4
    del kept


def test_a_count_has_what_was_given_while_it_counted(ledger):
    count, blocks = Count(), [give(ledger, 1)]
    ledger.count_in(count)
    blocks += [give(ledger, 2), give(ledger, 4)]
    assert ledger.total_of(count) == 6
    del blocks[1]
    assert (ledger.total(), ledger.total_of(count)) == (5, 4)
    blocks.append(give(ledger, 8))
    ledger.stop_counting(count)
    blocks.append(give(ledger, 16))
    assert (ledger.total(), ledger.total_of(count)) == (29, 12)


def test_a_finalizer_may_run_while_the_ledger_is_asked(ledger):
    class Dying:
        def __init__(self):
            self.block, self.cycle = give(ledger, 1), self

        def __del__(self):
            ledger.total()

    ledger.count_in(Told(lambda kind, nbytes: gc.collect()))
    for _ in range(3):
        Dying()
        give(ledger, 1)
    gc.collect()
    assert ledger.total() == 0


def test_threads_lose_nothing(ledger):
    def work():
        for _ in range(500):
            block = give(ledger, 2)
            ledger.total()
            del block

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.total() == 0
    give(ledger, 1)
    assert ledger.sum_bytes == 1


def test_all_is_counted_anew_from_what_lives(ledger):
    """As after an interrupt between what lives and its sum; what has ended is booked once."""
    count = Count()
    ledger.count_in(count)
    blocks = [give(ledger, 2), give(ledger, 4)]
    ledger.sum_bytes = count.sum_bytes = 77
    blocks.pop()
    ledger.recount()
    assert (ledger.total(), ledger.total_of(count)) == (2, 2)
    blocks.append(give(ledger, 8))
    assert (ledger.sum_bytes, count.sum_bytes) == (10, 10)


def test_a_block_whose_end_nobody_has_booked_is_none(ledger):
    """An interrupt came before it was added."""
    block = Owner(0, 4, 0, 4)
    end = End(block, ledger.note_end)
    del block
    assert end() is None
    assert ledger.total() == 0
    kept = give(ledger, 1)
    assert ledger.total() == 1
    del kept
