"""The still picture."""
import dataclasses
from unittest import mock

import pytest

from chainer_ooc.report import still
from chainer_ooc.simulate.timeline import Cause, Stall

pytestmark = pytest.mark.usefixtures('matplotlib')


@pytest.mark.parametrize('measured', [True, False])
def test_the_picture_has_memory_and_lanes(report, tmp_path, measured):
    still.draw(report if measured else dataclasses.replace(report, measured=None), tmp_path / 'report.svg')
    drawn = (tmp_path / 'report.svg').read_text()
    named = {'part0', 'scratch', 'budget', 'drawn &lt;/script&gt;: swap-all within 9 MB', *(
        ('predicted: compute', 'measured: copies in', 'measured') if measured else ('compute', 'copies in'))}
    assert {each for each in named if f'<!-- {each} -->' not in drawn} == set()


def test_a_suffix_that_is_no_picture_is_refused(report, tmp_path):
    with pytest.raises(ValueError, match='docx'):
        still.draw(report, tmp_path / 'report.docx')


def test_two_waits_of_one_position_are_drawn_one_after_the_other(report):
    """The last step begins at 4.5 s of what was measured."""
    waits = (Stall(4, 1, 0.25, Cause.MEMORY), Stall(4, 1, 0.5, Cause.SWAP_IN))
    axes = mock.MagicMock()
    still._draw_lanes(axes, [('measured', dataclasses.replace(report.measured, stalls=waits))], 3)
    drawn, = (call.args[0] for call in axes.broken_barh.call_args_list if call.kwargs.get('hatch'))
    assert drawn == [(3.75, 0.25), (4, 0.5)]
