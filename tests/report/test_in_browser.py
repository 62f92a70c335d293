"""The page in Chromium: it loads, answers to hands, and asks nobody for anything. One browser for all tests."""
import contextlib

import pytest

pytest.importorskip('websocket', reason='needs the package websocket-client')

from chainer_ooc.report.page import to_html
from support.browser import CHROMIUM, browser

#: Chosen by the pointer: the map that the bars of the page's lanes are of.
CHOSEN = "[...document.querySelectorAll('#maps tr.chosen')].map(row => Number(row.dataset.map))"
ORDER = "[...document.querySelectorAll('#maps tbody tr')].map(row => Number(row.dataset.map))"
FIGURES = "document.getElementById('figures').innerText"
TIP = "document.getElementById('tip').hidden ? '' : document.getElementById('tip').innerText"
LANES = "document.getElementById('lanes').toDataURL()"


@pytest.fixture(scope='module')
def chromium():
    if CHROMIUM is None:
        pytest.skip('there is no Chromium; on Debian: apt-get install chromium')
    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(browser())
        except OSError as error:
            pytest.skip(f'{error} here')


@pytest.fixture(scope='module')
def address(report, tmp_path_factory):
    file = tmp_path_factory.mktemp('page') / 'report.html'
    file.write_text(to_html(report), encoding='utf-8')
    return file.as_uri()


@pytest.fixture
def page(chromium, address):
    """The page, opened anew."""
    chromium.open(address)
    return chromium


def middle_of(page, lane, seconds):
    """Where a lane is at a time, in the window: lane 0 is the uppermost of the canvas."""
    page.ask("document.getElementById('lanes').scrollIntoView({block: 'center'})")
    left, top = page.ask("(({left, top}) => [left, top])(document.getElementById('lanes').getBoundingClientRect())")
    x, y = page.ask(f'[state.lanes.x({seconds * 1e6}), state.lanes.rows[{lane}].top + 9]')
    return left + x, top + y


@pytest.mark.parametrize(('width', 'dark'), [(1200, False), (1200, True), (400, False)])
def test_it_loads_without_an_error_and_without_a_request(chromium, address, width, dark):
    chromium.open(address, width, dark=dark)
    assert chromium.ask("document.querySelectorAll('#maps tbody tr').length") == 3
    assert chromium.ask("document.querySelector('#memory canvas').width") > 300
    assert chromium.ask('document.documentElement.scrollWidth') <= width, 'nothing sticks out'
    assert (chromium.errors, chromium.requests) == ([], [address])


def test_dark_is_dark(chromium, address):
    paper = 'getComputedStyle(document.body).backgroundColor'
    chromium.open(address, dark=True)
    assert chromium.ask(paper) == 'rgb(20, 23, 27)'
    chromium.open(address)
    assert chromium.ask(paper) == 'rgb(255, 255, 255)'


def test_a_heading_sorts_the_table_and_turns_it_around(page):
    assert page.ask(ORDER) == [1, 2, 0], 'the largest first'
    click = "document.querySelector('th[data-key=bytes] button').click()"
    page.ask(click)
    assert page.ask(ORDER) == [0, 2, 1]
    assert page.ask("document.querySelector('th[data-key=bytes]').ariaSort") == 'ascending'
    page.ask(click)
    assert page.ask(ORDER) == [1, 2, 0]
    page.ask(click.replace('bytes', 'where'))
    assert page.ask(ORDER) == [0, 1, 2]
    assert page.ask("document.querySelector('th[data-key=bytes]').ariaSort") == 'none'


def test_the_slider_changes_the_figures(page):
    before = page.ask(FIGURES)
    assert '17 s' in before
    assert 'Measured' in before
    page.ask("(slider => { slider.value = 2; slider.dispatchEvent(new Event('input')); })"
             "(document.getElementById('budget'))")
    after = page.ask(FIGURES)
    assert '9 s' in after
    assert 'no computation waits' in after
    assert 'Measured' not in after, 'that was another plan'
    assert page.ask("document.getElementById('budget-shown').value") == '13 MB'
    assert page.errors == []


def test_a_bar_tells_what_it_is(page):
    page.point(*middle_of(page, 1, 4))
    tip = page.ask(TIP)
    assert 'copy out of map 1, 4.0 MB' in tip
    assert '/part0 · model.py:7' in tip
    page.point(*middle_of(page, 0, 4))
    assert 'waits for memory for map 1' in page.ask(TIP)
    page.point(5, 5)
    assert page.ask(TIP) == ''


def test_a_bar_that_is_clicked_chooses_its_row(page):
    page.point(*middle_of(page, 2, 11), click=True)
    assert page.ask(CHOSEN) == [1]


def test_a_row_that_is_clicked_marks_its_bars(page):
    plain = page.ask(LANES)
    row = "document.querySelector('#maps tr[data-map=\"1\"]').click()"
    page.ask(row)
    assert (page.ask(CHOSEN), page.ask(LANES) != plain) == ([1], True)
    page.ask(row)
    assert (page.ask(CHOSEN), page.ask(LANES)) == ([], plain)


def test_why_says_what_other_verdicts_cost(page):
    why = page.ask("document.querySelector('#maps tr[data-map=\"1\"] .why').innerText")
    assert why == 'if kept, needs 13 MB: over the budget; if recomputed, takes 7 s less'


def test_print_is_light_and_complete(chromium, address, tmp_path):
    chromium.open(address, dark=True)
    chromium.ask("dispatchEvent(new Event('beforeprint'))")
    assert chromium.ask('getComputedStyle(document.body).backgroundColor') == 'rgb(255, 255, 255)'
    chromium.pdf(tmp_path / 'page.pdf')
    assert (tmp_path / 'page.pdf').read_bytes()[:4] == b'%PDF'
    chromium.ask("dispatchEvent(new Event('afterprint'))")
    assert chromium.ask('getComputedStyle(document.body).backgroundColor') == 'rgb(20, 23, 27)'
    assert chromium.errors == []
