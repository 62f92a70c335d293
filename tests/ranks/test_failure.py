"""One rank fails: all end soon, with one error that says why, and the training goes on from its checkpoint."""
import os
import time
from pathlib import Path

import pytest

from support.ranks.launch import ROOT, run, start

#: What is to be read of each fault.
FAULTS = {
    'killed': 'Killed (signal 9)',
    'disk': 'which ends all ranks: SpillError: ',
    'budget': 'which ends all ranks: InfeasibleBudgetError: budget too small for policy',
    'error': 'which ends all ranks: LookupError: the program itself has failed',
}


@pytest.fixture(scope='session')
def uninterrupted(ranks, tmp_path_factory):
    """What each rank has of plain ChainerMN, which nothing has interrupted."""
    folder = tmp_path_factory.mktemp('uninterrupted')
    return run(ranks, 'failing.py', 'none', 'plain', folder / 'checkpoints', folder=folder)


@pytest.mark.parametrize('fault', FAULTS)
def test_all_ranks_end_and_the_training_goes_on_with_the_bits_that_it_would_have(
        ranks, fault, uninterrupted, tmp_path):
    spill, other = tmp_path / 'spill', tmp_path / 'other'
    spill.mkdir()
    other.mkdir()
    checkpoints = tmp_path / 'checkpoints'
    ended = start(ranks, 'failing.py', fault, 'swap-all', checkpoints, folder=tmp_path,
                  environment={'TMPDIR': str(spill)})
    assert ended.status != 0
    while _processes_of(tmp_path) and time.time() - ended.left[1] < 30:  # mpiexec does not wait for those it kills
        time.sleep(0.1)
    assert time.time() - ended.left[1] < 30
    assert ended.out.count(FAULTS[fault]) == 1, ended.out
    assert fault == 'killed' or f'rank 1 of {ranks} on ' in ended.out
    assert list(spill.iterdir()) == list(other.iterdir()) == []
    if ranks == 2 or fault == 'killed':
        again = run(ranks, 'failing.py', 'none', 'swap-all', checkpoints, folder=tmp_path)
        assert {each['began'] for each in again} == {4}
        for mine, expected in zip(again, uninterrupted, strict=True):
            assert [name for name, bits in expected['bits'].items() if mine['bits'][name] != bits] == []


def _processes_of(folder):
    """The command lines of processes that have the folder in theirs."""
    found = []
    for number in filter(str.isdecimal, os.listdir('/proc')):
        try:
            line = Path('/proc', number, 'cmdline').read_bytes().decode(errors='replace')
        except OSError:
            continue
        if str(folder) in line and 'failing.py' in line:
            found.append(line.replace('\0', ' '))
    return found


def test_the_example_says_in_a_line_what_is_refused(ranks, tmp_path):
    options = ('--arch', 'alexnet', '--batchsize', '2', '--budget', '100MB', '--wall', '4GB')
    ended = start(ranks, str(ROOT / 'examples' / 'ranks.py'), *options, folder=tmp_path)
    assert ended.status == 2
    assert "budget too small for policy 'auto' (budget 100.0 MB" in ended.out
    assert 'Traceback' not in ended.out
