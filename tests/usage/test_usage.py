"""Programs as people write them give the bits of plain Chainer, also in the least memory that out-of-core asks for."""
import contextlib
import functools
import gc
import zlib

import pytest

import chainer_ooc
from chainer_ooc.errors import LostMapError, SpillError
from support.usage import (
    programs_batches,  # noqa: F401
    programs_dtypes,  # noqa: F401
    programs_forks,  # noqa: F401
    programs_graphs,  # noqa: F401
    programs_interrupts,  # noqa: F401
    programs_loops,  # noqa: F401
    programs_networks,  # noqa: F401
    programs_objects,  # noqa: F401
    programs_threads,  # noqa: F401
    programs_writes,  # noqa: F401
)
from support.usage.usage_limits import AWAY_WHEN_FORKED, UNFORESEEN, USED_UP
from support.usage.usage_programs import PROGRAMS
from support.usage.usage_runs import assert_same_bits, at_the_floor, perform

EVERY_POLICY = '--usage-every-policy'
# Each of these moves maps, or makes them again, in a way of its own; the others are mixtures.
MECHANISMS = ('swap-all', 'sublinear', 'keep', 'tensor-cache', 'unified', 'pooch', 'superneurons')
ALWAYS_MOVE = ('swap-all', 'keep', 'vdnn-all', 'swap-all-naive')
# Interrupts that come whenever they like: another test in each run.
OTHERWISE_EACH_TIME = ('interrupts-interrupted_by_a_timer_thread',)
MIXTURES = tuple(sorted(set(chainer_ooc.policies()) - set(MECHANISMS)))

pytestmark = [
    pytest.mark.timeout(60),
    # An interrupt that falls into a destructor is lost, in plain Chainer too.
    pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning'),
    pytest.mark.filterwarnings('ignore:3 backward passes in a row have read:RuntimeWarning'),  # as some threads do
]


def pytest_generate_tests(metafunc):
    """Each program under all policies, or under a part of them that depends on its name."""
    every = metafunc.config.getoption(EVERY_POLICY, False)
    if 'policy' in metafunc.fixturenames:
        at_floor = metafunc.function is test_a_named_floor_works_at_once
        pairs = [(name, policy) for name in PROGRAMS if every or name not in OTHERWISE_EACH_TIME
                 for policy in (chainer_ooc.policies() if every else part_of_policies(name, at_floor))]
        metafunc.parametrize(('name', 'policy'), pairs, ids=['-'.join(pair) for pair in pairs])
    elif 'mechanism' in metafunc.fixturenames:
        metafunc.parametrize('mechanism', chainer_ooc.policies() if every else ('keep', 'pooch', 'superneurons'))
    elif 'name' in metafunc.fixturenames:
        metafunc.parametrize('name', [name for name in PROGRAMS if every or zlib.crc32(name.encode()) % 8 == 0])


def part_of_policies(name, at_floor):
    """At the floor one mechanism or mixture; for half of them also, without a budget, what moves maps even then."""
    number = zlib.crc32(name.encode())
    mechanism, number = MECHANISMS[number % len(MECHANISMS)], number // len(MECHANISMS)
    without, number = number % 2, number // 2
    if at_floor:
        return (mechanism,) if without or number % 2 else (MIXTURES[number // 2 % len(MIXTURES)],)
    return (ALWAYS_MOVE[number % len(ALWAYS_MOVE)],) if without else ()


@contextlib.contextmanager
def not_there(name):
    """Lets programs of those lists end in LostMapError where the budget is short, or in a child's SpillError."""
    try:
        yield
    except SpillError as error:
        if name not in AWAY_WHEN_FORKED:
            raise
        pytest.xfail(f'what the child reads is in the parent: {error}')
    except LostMapError as error:
        if name not in USED_UP:
            raise
        pytest.xfail(f'what it reads was used up: {error}')


@functools.cache
def plain(name):
    """The run of a program in plain Chainer."""
    return perform(PROGRAMS[name])


@pytest.mark.usefixtures('copies_end_at_once')
def test_without_a_budget_the_bits_are_those_of_plain_chainer(name, policy):
    with not_there(name):
        assert_same_bits(perform(PROGRAMS[name], policy), plain(name))


@pytest.mark.usefixtures('copies_end_at_once')
@pytest.mark.parametrize('program', sorted(USED_UP))
def test_what_is_used_up_under_a_short_budget_is_there_without_one(program, mechanism):
    assert_same_bits(perform(PROGRAMS[program], mechanism), plain(program))


@pytest.mark.usefixtures('every_other_copy_ends_at_once')
def test_a_named_floor_works_at_once(name, policy):
    with not_there(name):
        outcome = at_the_floor(PROGRAMS[name], policy)
        if outcome.refused_twice or outcome.run.overruns:  # what other tests have left may be freed while it records
            gc.collect()
            outcome = at_the_floor(PROGRAMS[name], policy)
    if outcome.run is not None:
        assert_same_bits(outcome.run, plain(name))
    if outcome.refused_twice and name in UNFORESEEN:
        pytest.xfail(f'{UNFORESEEN[name]}; floors {outcome.floors}')
    assert outcome.refused_twice == [], f'refused again: {outcome.floors}'
    assert outcome.run.overruns == [], f'more was in use than the budget of {outcome.budget_bytes}'


def test_plain_chainer_gives_the_same_bits_twice(name):
    assert_same_bits(perform(PROGRAMS[name]), plain(name))
