"""The still picture."""
import dataclasses
from unittest import mock

import pytest

from chainer_ooc.report import still
from chainer_ooc.simulate.timeline import Cause, Stall, Stream

pytestmark = pytest.mark.usefixtures('matplotlib')


@pytest.mark.parametrize('measured', [True, False])
def test_the_picture_has_memory_and_lanes(report, tmp_path, measured):
    still.draw(report if measured else dataclasses.replace(report, measured=None), tmp_path / 'report.svg')
    drawn = (tmp_path / 'report.svg').read_text()
    named = {'part0', 'scratch', 'budget', 'drawn &lt;/script&gt;: swap-all within 9 MB', *(
        ('predicted: compute', 'measured: copies in', 'measured') if measured else ('compute', 'copies in'))}
    assert {each for each in named if f'<!-- {each} -->' not in drawn} == set()


def test_colours_of_the_lanes_are_explained(report, tmp_path):
    still.draw(report, tmp_path / 'report.svg')
    drawn = (tmp_path / 'report.svg').read_text()
    named = ('forward', 'backward', 'runs again', 'wait', 'copy')
    assert [each for each in named if f'<!-- {each} -->' not in drawn] == []


def test_what_runs_again_is_drawn_at_the_beginning_of_its_computation(report):
    timeline = report.course.timeline
    tasks = [dataclasses.replace(each, recomputed_seconds=0.25) if each.stream is Stream.COMPUTE and each.subject == 4
             else each for each in timeline.tasks]
    axes = mock.MagicMock()
    still._draw_lanes(axes, [('predicted', dataclasses.replace(timeline, tasks=tuple(tasks), stalls=()))], 3)
    last, = (each for each in tasks if each.recomputed_seconds)
    drawn, = (call.args[0] for call in axes.broken_barh.call_args_list if call.kwargs.get('hatch'))
    assert drawn == [(last.start_seconds, 0.25)]


def test_large_amounts_are_in_gigabytes(report, tmp_path):
    plan = dataclasses.replace(report.course.plan, budget_bytes=12_340_000_000)
    courses = [dataclasses.replace(each, plan=plan) for each in report.courses]
    still.draw(dataclasses.replace(report, courses=tuple(courses)), tmp_path / 'report.svg')
    drawn = (tmp_path / 'report.svg').read_text()
    assert '12.34 GB' in drawn and 'near memory [GB]' in drawn and 'MB' not in drawn


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
