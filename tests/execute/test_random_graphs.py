"""P1, P2 and P8 on graphs that nobody thought of: whatever the verdicts and the budget, the bits are plain Chainer's.

100 graphs in every run; more, and others each time, with

    pytest tests/execute/test_random_graphs.py --hypothesis-profile nightly
"""
import chainer
from hypothesis import given
from hypothesis import strategies as st
from ooc_training import assert_same_bits, ooc
from random_graphs import BudgetedTraining, GraphTraining, policies, programs, verdict_row

import chainer_ooc

factors = st.sampled_from([None, 1.0, 1.2, 2.0])
thresholds = st.sampled_from([0, 0, 1, 100, 700, 3000])


def compare(program, seed, factor, min_bytes):
    """Trains in plain Chainer and under drawn verdicts, and compares every bit."""
    with chainer.using_config('ooc', None):
        expected = GraphTraining(program).train().bits
    row = verdict_row(seed)
    with policies(row):
        try:
            with ooc(row.name, min_bytes=min_bytes):
                ours = (GraphTraining(program) if factor is None else BudgetedTraining(program, factor)).train()
        finally:
            chainer_ooc.reset()
    assert_same_bits(ours, expected)
    return ours


@given(programs, st.integers(0, 1 << 16), factors, thresholds)
def test_random_graph_gives_the_bits_of_plain_chainer(program, seed, factor, min_bytes):
    compare(program, seed, factor, min_bytes)
