"""Every public function and link gives on a GPU the bits of plain Chainer there, whatever happens to the maps.

The longest test of this folder: each function's kernels are compiled when it first runs. `pytest -n 8` shares that out.
"""
import pytest

from chainer_ooc.backends.base import Bandwidth
from chainer_ooc.classify.policies import POLICIES
from support.conformance.conformance_mixes import RECOMPUTE_ALL, SWAP_ALL, row
from support.conformance.conformance_runs import in_core, run
from support.conformance.conformance_tables import FUNCTIONS, LINKS, named

CASES = {**FUNCTIONS, **LINKS}
RUNS = [(SWAP_ALL, 'transposed'), (RECOMPUTE_ALL, 'plain')]


@pytest.fixture(autouse=True)
def swaps_that_happen(monkeypatch):
    """Ends each swap-out before the call returns: a map of a few bytes that is still leaving would simply stay."""
    from chainer_ooc.backends.cuda import CudaBackend
    swap_out = CudaBackend.swap_out

    def prompt(self, source):
        copy, transfer = swap_out(self, source)
        transfer.wait()
        return copy, transfer
    monkeypatch.setattr(CudaBackend, 'swap_out', prompt)
    monkeypatch.setattr(CudaBackend, 'bandwidth', lambda self: Bandwidth(1e10, 1e10, 1e-5))
    monkeypatch.setitem(POLICIES, RECOMPUTE_ALL, row(RECOMPUTE_ALL))


@pytest.mark.parametrize(('mix', 'layout'), RUNS, ids=[mix for mix, _ in RUNS])
@pytest.mark.parametrize('name', [name for name, case in CASES.items() if not case.heavy])
def test_the_bits_are_those_of_plain_chainer_on_the_device(name, mix, layout):
    from support.gpu.gpu_conformance import ATOMIC, NOT_ON_GPU, GpuRun, differing, repeats, unlike
    from support.gpu.gpu_training import settled
    if name in NOT_ON_GPU:
        pytest.skip(NOT_ON_GPU[name])
    case = CASES[name]
    expected = in_core(case, layout, GpuRun)
    found = run(case, mix, layout, GpuRun)
    if named(name) in ATOMIC:
        assert unlike(found.bits, expected) == []
    else:
        wrong = differing(found.bits, expected)
        assert wrong == [] or not repeats(case, layout), f'not the bits of plain Chainer: {wrong}'
        assert wrong == [], f'{name} gives other bits each time in plain Chainer too; it belongs in ATOMIC: {wrong}'
    planned = settled(found.stats)
    if mix == SWAP_ALL:
        assert planned[0].swapped_in_bytes > 0
    else:
        assert planned[0].recomputed_calls > 0


def test_whatever_adds_atomically_has_a_case_and_a_reason():
    from support.gpu.gpu_conformance import ATOMIC, NOT_ON_GPU
    assert set(ATOMIC) <= {named(name) for name in CASES}
    assert set(NOT_ON_GPU) <= set(CASES)
    assert all(ATOMIC.values()) and all(NOT_ON_GPU.values())
