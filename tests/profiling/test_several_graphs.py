"""The floor of a profile is that of the training, which may have other graphs beside the one whose trace it is."""
import chainer_ooc  # before chainer

# isort: split
import chainer
import pytest

from chainer_ooc.cli.totals import least_of
from chainer_ooc.trace import Trace
from chainer_ooc.trace.scaling import scale
from support.combinations import spread
from support.trainings import several_graphs
from support.trainings.ooc_training import ooc


def profiled(kind, optimizer=chainer.optimizers.Adam):
    with chainer.using_config('ooc_min_bytes', 0):
        return chainer_ooc.profile(several_graphs.updater_of(kind, optimizer))


@pytest.mark.parametrize(('kind', 'optimizer'), spread(
    [several_graphs.InTurn, several_graphs.Shared, several_graphs.Penalised, several_graphs.Sloped],
    [chainer.optimizers.Adam, chainer.optimizers.SGD], every=2))
def test_the_floor_of_a_profile_is_enough_for_all_graphs(kind, optimizer):
    floor_bytes = least_of(profiled(kind, optimizer), 0).floor_bytes
    updater = several_graphs.updater_of(kind, optimizer)
    with ooc('swap-all', budget=int(1.02 * floor_bytes)):
        for _ in range(4):
            updater.update()
        assert chainer_ooc.stats().swapped_out_bytes > 0


def test_what_other_graphs_need_is_beside_the_trace_at_any_batch():
    trace = profiled(several_graphs.Shared)
    assert trace.others_bytes > 0
    assert Trace.from_json(trace.to_json()) == trace
    assert scale(trace, 2).others_bytes == 2 * trace.others_bytes


def test_a_profile_says_why_more_may_be_needed():
    assert profiled(several_graphs.InTurn).doubt == ''
    assert 'double backprop' in profiled(several_graphs.Penalised).doubt
