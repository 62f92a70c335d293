"""The program of tests/gpu/ranks on the host, so that it is no surprise on a machine with GPUs."""
import pytest

from support.ranks.launch import run
from support.ranks.on_gpu_checks import CASES, check


@pytest.fixture(scope='session')
def left(ranks, tmp_path_factory):
    if ranks > 2:
        pytest.skip('two ranks try all of it')
    return run(ranks, 'on_gpu.py', 'host', folder=tmp_path_factory.mktemp('on-gpu'))


@pytest.mark.parametrize(('policy', 'double'), CASES)
def test_each_rank_trains_as_in_plain_chainermn_within_its_budget_and_under_one_plan(left, policy, double):
    check(left, policy, double)
