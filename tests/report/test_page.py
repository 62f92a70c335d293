"""The page as text: complete in itself, and its numbers say what the report says."""
import itertools
import json
import re
from importlib import resources

from chainer_ooc.problem import Verdict
from chainer_ooc.report.page import to_html, values
from support.planning.drawn_trace import MB

NUMBERS = re.compile('<script type="application/json" id="numbers">(.*?)</script>', re.DOTALL)


def test_the_numbers_are_in_the_page_and_end_no_script(report):
    page = to_html(report)
    assert page.count('</script>') == 4
    assert json.loads(NUMBERS.search(page).group(1)) == json.loads(json.dumps(values(report)))
    assert '<title>drawn &lt;/script&gt; ' in page


def test_nothing_in_the_page_is_fetched_from_elsewhere(report):
    page = to_html(report)
    assert '{{' not in page
    assert not re.findall(r'<(?:script|img|iframe)[^>]+src|<link[^>]+href="(?!data:)|@import|url\((?!data:)', page)


def test_uplot_has_its_licence_beside_it():
    assets = resources.files('chainer_ooc.report').joinpath('assets')
    assert 'The MIT License' in assets.joinpath('uPlot.LICENSE').read_text()
    assert 'uPlot (v1.6.32)' in assets.joinpath('uPlot.iife.min.js').read_text()


def series(course, kinds):
    """The rows of bytes by kind, from their changes."""
    found = {}
    for name, flat in zip(kinds, course['memory'], strict=True):
        row, now = [], 0
        for skip, change in itertools.batched(flat, 2) if hasattr(itertools, 'batched') else zip(
                flat[::2], flat[1::2], strict=True):
            row += [now] * skip
            now += change
        found[name] = row + [now] * (6 - len(row))
    return found


def test_memory_is_written_as_changes(report):
    numbers = values(report)
    found = series(numbers['courses'][0], numbers['kinds'])
    assert found == {each.name: [*each.nbytes] for each in report.course.kinds}


def test_lanes_are_in_microseconds(report):
    course = values(report)['courses'][0]
    assert course['compute'] == [
        0, 10**6, 0, 0, 10**6, 0, 4 * 10**6, 10**6, 0, 0, 2 * 10**6, 0, 4 * 10**6, 2 * 10**6, 0, 0, 2 * 10**6, 0]
    assert course['out'][:3] == [1, 2 * 10**6, 4 * 10**6]
    assert course['stalls'] == [[2, 1, 4 * 10**6, 'memory'], [4, 1, 4 * 10**6, 'swap-in']]


def test_maps_have_where_they_are_made_and_their_verdicts(report):
    numbers = values(report)
    held, large, _ = numbers['maps']
    assert large[:4] == [1, 4 * MB, 0, numbers['blocks'].index('part0')]
    assert numbers['calls'][0] == ['Layer0', '/part0', 'model.py:7']
    assert (held[2], held[6]) == (None, 'the program holds it itself, so that letting go frees nothing')
    assert numbers['courses'][0]['maps'][1] == [
        Verdict.SWAP.value, 8 * 10**6, [['keep', None, 13 * MB], ['recompute', 10**7, 9 * MB]]]


def test_what_was_measured_is_there_as_it_was(report):
    measured = values(report)['measured']
    assert (measured['seconds'], measured['peak_bytes'], measured['out']) == (6.5, 8 * MB, [1, 1500000, 500000])
    assert measured['near_bytes'] == [each * MB for each in (3, 5, 8, 8, 6, 2)]
