"""The still picture."""
import dataclasses

import pytest

from chainer_ooc.report import still

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
