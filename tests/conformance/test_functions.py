"""Every public function of chainer.functions gives the bits of plain Chainer, whatever happens to the maps around it.

P1, P2, P4, P5 and P7 for all functions, at a threshold of 0 bytes.
"""
import chainer.functions as F
import numpy as np
import pytest
from conformance_cases import Feature
from conformance_mixes import RECOMPUTE_ALL, SWAP_ALL
from conformance_runs import assert_conforms, in_core
from conformance_tables import FUNCTIONS, LEFT_OUT_FUNCTIONS, TABLES, functions, named, uncovered

LAYOUTS = ('plain', 'transposed')


def test_every_public_function_is_in_the_tables_or_left_out_for_a_reason():
    assert uncovered(F, FUNCTIONS, LEFT_OUT_FUNCTIONS) == []
    assert {named(key) for key in FUNCTIONS} | set(LEFT_OUT_FUNCTIONS) <= set(functions())
    assert all(LEFT_OUT_FUNCTIONS.values())
    assert not {named(key) for key in FUNCTIONS} & set(LEFT_OUT_FUNCTIONS)


def test_at_least_95_percent_of_the_functions_have_a_case():
    assert len({named(key) for key in FUNCTIONS}) >= 0.95 * len(functions())


def test_no_case_hides_another_of_its_name():
    assert sum(map(len, TABLES)) == len(FUNCTIONS)


@pytest.mark.parametrize('name', FUNCTIONS)
def test_the_case_is_worth_running(name):
    case = FUNCTIONS[name]
    bits = in_core(case)
    assert np.isfinite(np.frombuffer(bits['1: loss'][2], bits['1: loss'][0])).all()
    assert bits['0: loss'] != bits['1: loss']
    for place, given in enumerate(case.arguments):
        if isinstance(given, Feature) and not case.flat:
            assert any(bits[f'1: gradient of argument {place}'][2]), f'the gradient of argument {place} is zero'


@pytest.mark.parametrize('layout', LAYOUTS)
@pytest.mark.parametrize('name', FUNCTIONS)
def test_function_gives_the_bits_of_plain_chainer(name, mix, layout):
    stats = assert_conforms(FUNCTIONS[name], mix, layout)
    if mix == SWAP_ALL:
        assert stats.swapped_out_bytes > 0
    if mix == RECOMPUTE_ALL:
        assert stats.recomputed_calls > 0
