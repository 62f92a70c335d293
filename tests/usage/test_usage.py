"""Programs as people write them give the bits of plain Chainer, also in the least memory that out-of-core asks for."""
import functools

import programs_batches  # noqa: F401
import programs_dtypes  # noqa: F401
import programs_forks  # noqa: F401
import programs_graphs  # noqa: F401
import programs_interrupts  # noqa: F401
import programs_loops  # noqa: F401
import programs_networks  # noqa: F401
import programs_objects  # noqa: F401
import programs_threads  # noqa: F401
import programs_writes  # noqa: F401
import pytest
from usage_programs import PROGRAMS
from usage_runs import assert_same_bits, at_the_floor, perform

import chainer_ooc

pytestmark = [pytest.mark.timeout(60)]

# Each moves maps in another way. A program always runs under these, and under one more, which goes round.
MECHANISMS = ('keep', 'swap-all', 'pooch', 'sublinear', 'tensor-cache', 'unified')


@functools.cache
def plain(name):
    """The run of a program in plain Chainer."""
    return perform(PROGRAMS[name])


def pairs(policies=None):
    """Every program with every policy."""
    return [pytest.param(name, policy, id=f'{name}-{policy}')
            for name in PROGRAMS for policy in policies or chainer_ooc.policies()]


@pytest.mark.parametrize('name', PROGRAMS)
def test_a_program_gives_the_same_bits_twice(name):
    assert_same_bits(perform(PROGRAMS[name]), plain(name))


@pytest.mark.usefixtures('copies_end_at_once')
@pytest.mark.parametrize(('name', 'policy'), pairs())
def test_without_a_budget_the_bits_are_those_of_plain_chainer(name, policy):
    assert_same_bits(perform(PROGRAMS[name], policy), plain(name))


@pytest.mark.parametrize(('name', 'policy'), pairs())
def test_a_named_floor_works_at_once(name, policy):
    outcome = at_the_floor(PROGRAMS[name], policy)
    if outcome.run is not None:
        assert_same_bits(outcome.run, plain(name))
    assert outcome.refused_twice == [], f'refused again: {outcome.floors}'
    assert outcome.run.overruns == [], f'more was in use than the budget of {outcome.budget_bytes}'
