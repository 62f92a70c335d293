"""Room for what allocates past NumPy, such as MPI: kept pages go back for it."""
import pytest

from chainer_ooc.backends.host import HostBackend

MB = 1 << 20


@pytest.mark.parametrize(('gives_bytes', 'kept_bytes', 'wanted_bytes', 'left_bytes', 'gets_it'), [
    (50 * MB, 40 * MB, 30 * MB, 40 * MB, True),   # the system has it
    (10 * MB, 40 * MB, 30 * MB, 10 * MB, True),   # as much goes back as is wanted
    (10 * MB, 5 * MB, 30 * MB, 0, False),         # nothing more is kept
])
def test_kept_pages_go_back_as_far_as_is_wanted(
        monkeypatch, tmp_path, gives_bytes, kept_bytes, wanted_bytes, left_bytes, gets_it):
    class Kept:
        bytes = kept_bytes

        def nbytes(self):
            return self.bytes

        def keep_at_most(self, nbytes):
            self.bytes = min(self.bytes, nbytes)

        def close(self):
            pass

    with pytest.MonkeyPatch.context() as context:
        context.setattr('warnings.warn', lambda *_, **__: None)
        backend = HostBackend(str(tmp_path))
    before, kept = backend._blocks, Kept()
    monkeypatch.setattr(backend, '_blocks', kept)
    monkeypatch.setattr(backend, '_gives', lambda nbytes: nbytes <= gives_bytes + kept_bytes - kept.bytes)
    assert backend.leaves_outside(wanted_bytes) is gets_it
    assert kept.bytes == left_bytes
    before.close()
    backend.close()
