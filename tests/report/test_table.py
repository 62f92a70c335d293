import json

import pytest

from chainer_ooc.report.table import Column, Table, megabytes, percent, ratio, seconds

TABLE = Table(
    (Column('name', 'net'), Column('peak_bytes', 'peak', megabytes, right=True)),
    [{'name': 'AlexNet', 'peak_bytes': 1_234_567_890, 'note': 'kept'}, {'name': 'VGG16', 'peak_bytes': None}],
    'Peaks')


def test_text_aligns_words_to_the_left_and_numbers_to_the_right():
    assert TABLE.to_text().splitlines() == [
        'Peaks',
        'net          peak',
        '-------  --------',
        'AlexNet  1,235 MB',
        'VGG16           -',
    ]


def test_sideways_a_row_is_a_column():
    assert TABLE.to_text_sideways().splitlines() == [
        'Peaks',
        'net    AlexNet  VGG16',
        '----  --------  -----',
        'peak  1,235 MB      -',
    ]


def test_markdown_marks_the_aligned_columns():
    assert TABLE.to_markdown().splitlines()[2:] == [
        '| net | peak |', '| --- | ---: |', '| AlexNet | 1,235 MB |', '| VGG16 | - |']


def test_json_keeps_every_digit_and_what_no_column_shows():
    assert json.loads(TABLE.to_json()) == {'title': 'Peaks', 'rows': list(TABLE.rows)}


def test_table_without_rows_has_its_headings():
    assert Table(TABLE.columns, []).to_text() == 'net  peak\n---  ----'


@pytest.mark.parametrize(('form', 'value', 'text'), [
    (megabytes, 0, '0 MB'), (megabytes, 1_300_000_000, '1,300 MB'),
    (seconds, 0.01321, '0.0132 s'), (seconds, 9.809, '9.81 s'), (seconds, 142.3, '142 s'), (seconds, 2400.0, '2,400 s'),
    (percent, 0.0421, '+4.2 %'), (percent, -0.1, '-10.0 %'), (ratio, 0.384, '0.38'),
])
def test_quantities_are_written_with_their_unit(form, value, text):
    assert form(value) == text
