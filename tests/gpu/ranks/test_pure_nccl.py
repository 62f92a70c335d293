"""P2 and P3 with one GPU a rank and NCCL between them: bits of plain ChainerMN, within the budget, under one plan."""
import pytest

from support.ranks.launch import run
from support.ranks.on_gpu_checks import CASES, check


@pytest.fixture(scope='session')
def left(ranks, tmp_path_factory):
    return run(ranks, 'on_gpu.py', 'cuda', folder=tmp_path_factory.mktemp('on-gpu'), seconds=600)


@pytest.mark.parametrize(('policy', 'double'), CASES)
def test_each_rank_trains_as_in_plain_chainermn_within_its_budget_and_under_one_plan(left, policy, double):
    check(left, policy, double)
