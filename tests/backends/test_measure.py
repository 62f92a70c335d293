"""What copies cost computations, as the host measures it, on a device whose times are given."""
import numpy as np
import pytest

from chainer_ooc.backends.host import measure
from chainer_ooc.backends.host.guard import data_bytes


class Computation:
    """Takes 1 second, and other times later on."""

    def __init__(self, *later_seconds):
        self.later_seconds = list(later_seconds)
        self.is_alone = True

    def seconds(self, between):
        for _ in range(3):
            between()
        self.is_alone, was_alone = not self.is_alone, self.is_alone
        return 1.0 if was_alone else self.later_seconds.pop(0)


class Copies:
    """A backend and its transfers: each copy has ended when somebody asks."""

    def leaves_outside(self, nbytes):
        return True

    def __init__(self, seconds):
        self.seconds, self.done, self.begun, self.released = seconds, True, 0, 0

    def swap_out(self, source):
        self.begun += 1
        return object(), self

    def wait(self):
        pass

    def release(self, copy):
        self.released += 1


@pytest.mark.parametrize(('with_copies', 'copy_seconds', 'slowdown'), [
    (3.0, 0.75, 2.0),  # copies all the time: 4 of them end meanwhile
    (2.0, 0.25, 2.0),  # copies for half of the time
    (1.0, 0.25, 0.0),
    (3.0, 0.0, 20.0),  # copies in next to no time: no division by zero
])
def test_drag_is_what_a_computation_loses_while_copies_run(with_copies, copy_seconds, slowdown):
    copies = Copies(copy_seconds)
    assert measure._slowdown_once(Computation(with_copies), copies, np.zeros(1, np.uint8)) == pytest.approx(slowdown)
    assert copies.begun == copies.released == 6


def test_limits_count_what_is_copied():
    before_bytes = data_bytes()
    sample = measure._unmetered(8 << 20)
    assert data_bytes() >= before_bytes + sample.nbytes


def test_a_copy_that_fails_leaves_nothing():
    class Failing(Copies):
        def wait(self):
            if self.begun > 3:
                raise OSError('full')

    copies = Failing(1.0)
    with pytest.raises(OSError, match='full'):
        measure._slowdown_once(Computation(1.0), copies, np.zeros(1, np.uint8))
    assert copies.begun == copies.released


def test_a_computation_that_is_faster_beside_copies_has_no_drag(monkeypatch):
    monkeypatch.setattr(measure, '_Computation', lambda has_products: Computation(0.9, 0.8, 0.9, 0.9))
    assert measure._slowdown(Copies(0.25), np.zeros(1, np.uint8)) == 0.0
