import pytest

import chainer_ooc


@pytest.fixture
def record():
    """Runs forward, a function that returns a loss, and its backward, and gives the trace."""
    import chainer

    def record(forward, policy='swap-all', min_bytes=0, keep_loss=False):
        chainer_ooc.reset()
        with chainer.using_config('ooc', policy), chainer.using_config('ooc_min_bytes', min_bytes):
            loss = forward()
            loss.backward()
            if not keep_loss:
                del loss
            return chainer_ooc.trace()

    return record
