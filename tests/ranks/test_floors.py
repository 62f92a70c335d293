"""The budget that a refusal names is the same whether one rank updates a model or all of them together."""
import pytest

from support.ranks.launch import run


def test_the_first_update_which_only_sends_parameters_adds_nothing_to_a_floor(ranks, tmp_path):
    """Gradients that it has not used counted as if backward added to them: 1.6 times what was needed."""
    for left in run(ranks, 'floors.py', folder=tmp_path):
        (alone, *others), together = left[False], left[True]
        assert others == ['', True]
        assert together[1:] == ('', True)
        assert together[0] == pytest.approx(alone, rel=0.01)
