import json

import pytest

from chainer_ooc.papers import plot
from chainer_ooc.papers.comparison import PaperTable, Reported, Row, claim
from chainer_ooc.papers.presentation import file_stem, heading, present, quantity, score, score_values, summary, values

ROWS = (
    Row('in-core', (316, 316), 316.0, 'images/s', is_input=True),
    Row('batch 512, PoocH', (195, 316), 190.4, 'images/s', 'slower link', series='PoocH', group='512'),
    Row('batch 640, PoocH', (195, 195), None, 'images/s', series='PoocH', group='640', out_of_memory=True),
    Row('below', (None, 0.061), 0.0721, 'share', 'slower link', series='PoocH', group='512'),
    Row('memory', (50, None), 51.264, 'GB'),
    Row('peak', (2189.437, 2189.437), 2189.4373, 'MB'),
    Row('traffic', (0, 0), 0.88, 'GB'),
    Row('pool', (1.12, 1.12), None, 'x', 'needs a GPU'),
    Row('lost', None, 1.5, 'x', series='superneurons', group='512'),
    claim('PoocH faster', True), claim('superneurons fails', False), claim('cannot be told', None),
)
TABLE = PaperTable('pooch', '17', 'ResNet50 on x86', ROWS, ('The in-core throughput is put in.',))


def test_text_shows_stated_beside_ours_and_numbers_the_notes():
    lines = present(TABLE).to_text().splitlines()
    assert lines[0] == 'pooch figure 17: ResNet50 on x86'
    assert lines[3].split() == ['in-core', 'images/s', '316', '316', '-', 'put', 'in', '-']
    assert '195 to 316' in lines[4]
    assert lines[4].split()[-5:] == ['190', '-2.4', '%', 'yes', '[1]']
    assert lines[5].split()[-6:] == ['out', 'of', 'memory', '-', 'NO', '-']
    assert 'at most 6.1 %' in lines[6]
    assert '+1.1 points' in lines[6]
    assert 'at least 50' in lines[7]
    assert 'from 0' in lines[9]
    assert lines[15:18] == ['[1] slower link', '[2] needs a GPU', 'The in-core throughput is put in.']
    assert 'percentage points' in lines[18]
    assert max(map(len, lines)) <= 120


def test_the_last_line_counts():
    assert present(TABLE).notes[-1] == (
        '4 of 6 stated figures are within 15 % (67 %), 2 are not; 1 of 2 orderings and failures hold; '
        'cannot be compared: 2; put in: 1')


def test_a_score_counts_each_stated_row_once():
    found = score(ROWS)
    assert sum(score_values(found).values()) - found.holding == len([row for row in ROWS if row.stated])
    assert score(()).share is None
    assert summary(score(()), 'all') == (
        'all: 0 of 0 stated figures are within 15 %, 0 are not; 0 of 0 orderings and failures hold; '
        'cannot be compared: 0; put in: 0')


def test_markdown_has_a_row_for_each_figure_and_the_notes_as_a_list():
    lines = present(TABLE).to_markdown().splitlines()
    assert lines[0] == '**pooch figure 17: ResNet50 on x86**'
    assert sum(line.startswith('|') for line in lines) == len(ROWS) + 2
    assert '- [1] slower link' in lines


def test_json_keeps_every_digit_and_is_plain_json():
    found = json.loads(json.dumps(values(TABLE), allow_nan=False))
    assert (found['paper'], found['figure'], found['within'], found['outside']) == ('pooch', '17', 4, 2)
    assert found['rows'][5]['ours'] == 2189.4373
    assert found['rows'][6]['deviation'] is None
    assert found['rows'][6]['is_met'] is False
    assert found['rows'][3]['stated'] == [None, 0.061]


@pytest.mark.parametrize(('value', 'unit', 'text'), [
    (1.0, 'holds', 'yes'), (0.0, 'holds', 'no'), (0.061, 'share', '6.1 %'), (0.38, 'share', '38 %'),
    (195.6, 'images/s', '196'), (1.444, 'x', '1.44'), (2189.437, 'MB', '2,189.437'), (51.264, 'GB', '51.26'),
    (1920.0, 'layers', '1,920'), (2.5, 's', '2.5'), (0.123456789, 'none', '0.12346')])
def test_quantities_are_shown_as_papers_show_them(value, unit, text):
    assert quantity(value, unit) == text


@pytest.mark.parametrize(('given', 'shown'), [
    ('17', 'pooch figure 17'), ('table 3', 'pooch table 3'), ('text', 'pooch text')])
def test_a_table_is_called_by_its_paper_and_place(given, shown):
    assert heading('pooch', given) == shown
    assert file_stem('pooch', given) == shown.replace(' ', '-')


def test_bars_are_drawn_for_rows_with_a_series_and_a_group(matplotlib, tmp_path):
    plot.draw_paper_table(TABLE, tmp_path / 'table.png')
    assert (tmp_path / 'table.png').read_bytes()[:8] == b'\x89PNG\r\n\x1a\n'
    assert [row.what for row in plot.drawable(TABLE)] == ['batch 512, PoocH', 'batch 640, PoocH', 'below', 'lost']


def test_the_axis_says_what_the_bars_stand_for(matplotlib, monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(plot, 'save', lambda made, path: drawn.append(made))
    ends = Reported('pooch', '5.2', 'below in-core', 0.13, 0.38, 'share').ends_beside([0.1, 0.2])
    times = Row('16 GB/s', None, 2.0, 's', series='measured', group='16 GB/s')
    plot.draw_paper_table(PaperTable('ooc-paleo', '8', 'VGG16', (times, *ends), axis='link'), tmp_path / 'table.png')
    assert [axes.get_xlabel() for axes in drawn[0].axes] == ['link', 'ends of the stated range']
    assert [axes.get_ylabel() for axes in drawn[0].axes] == ['time [s]', 'share [%]']


def test_each_row_has_a_bar_of_ours_and_one_of_what_is_stated(matplotlib, monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(plot, 'save', lambda made, path: drawn.append(made))
    plot.draw_paper_table(TABLE, tmp_path / 'table.png')
    panels = drawn[0].axes
    assert [axes.get_ylabel() for axes in panels] == ['images/s', 'share [%]', 'ratio']
    assert [axes.get_xlabel() for axes in panels] == ['batch [images]'] * 3
    heights = [[round(patch.get_height(), 2) for patch in axes.patches] for axes in panels]
    assert heights == [[190.4, 255.5, 195.0], [7.21, 6.1], [1.5]]


def test_a_table_without_a_place_for_bars_is_refused(tmp_path):
    with pytest.raises(ValueError, match='nothing to draw in pooch text'):
        plot.draw_paper_table(PaperTable('pooch', 'text', '', (claim('it holds', True),)), tmp_path / 'table.png')
