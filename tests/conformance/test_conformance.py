"""Every public function and link of Chainer gives the bits of plain Chainer, whatever happens to the maps around it.

P1, P2, P4, P5 and P7 at a threshold of 0 bytes, for what introspection finds in chainer.functions and chainer.links.
"""
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from support.conformance.conformance_cases import Feature
from support.conformance.conformance_mixes import RECOMPUTE_ALL, SWAP_ALL
from support.conformance.conformance_runs import assert_conforms, in_core
from support.conformance.conformance_tables import (
    FUNCTIONS,
    LEFT_OUT_FUNCTIONS,
    LEFT_OUT_LINKS,
    LINKS,
    TABLES,
    named,
    public,
    uncovered,
)

CASES = {**FUNCTIONS, **LINKS}
OFFERED = [(F, FUNCTIONS, LEFT_OUT_FUNCTIONS), (L, LINKS, LEFT_OUT_LINKS)]


@pytest.fixture
def case(name, heavy):
    if CASES[name].heavy and not heavy:
        pytest.skip('takes minutes and gigabytes; see --conformance-heavy')
    return CASES[name]


@pytest.mark.parametrize(('module', 'table', 'left_out'), OFFERED, ids=['functions', 'links'])
def test_everything_public_is_in_the_tables_or_left_out_for_a_reason(module, table, left_out):
    covered = {named(key) for key in table}
    assert uncovered(module, table, left_out) == []
    assert covered | set(left_out) <= set(public(module))
    assert not covered & set(left_out)
    assert all(left_out.values())


@pytest.mark.parametrize(('module', 'table', 'left_out'), OFFERED, ids=['functions', 'links'])
def test_at_least_95_percent_have_a_case(module, table, left_out):
    assert len({named(key) for key in table}) >= 0.95 * len(public(module))


def test_no_case_hides_another_of_its_name():
    assert sum(map(len, TABLES)) == len(FUNCTIONS)
    assert len(FUNCTIONS) + len(LINKS) == len(CASES)


@pytest.mark.parametrize('name', CASES)
def test_the_case_is_worth_running(name, case):
    bits = in_core(case)
    assert np.isfinite(np.frombuffer(bits['1: loss'][2], bits['1: loss'][0])).all()
    assert bits['0: loss'] != bits['1: loss']
    for place, given in enumerate(case.arguments):
        if isinstance(given, Feature) and not case.flat:
            assert any(bits[f'1: gradient of argument {place}'][2]), f'the gradient of argument {place} is zero'


def test_the_bits_are_those_of_plain_chainer(name, case, device, mix, layout):
    stats = assert_conforms(case, mix, layout)
    assert mix != SWAP_ALL or device != 'host' or stats[1].swapped_in_bytes > 0
    assert mix != RECOMPUTE_ALL or stats[1].recomputed_calls > 0
