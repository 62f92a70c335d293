import pytest

from chainer_ooc.report.table import Column, Table, figures, megabytes, percent, ratio, seconds

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


def test_markdown_marks_the_aligned_columns():
    assert TABLE.to_markdown().splitlines()[2:] == [
        '| net | peak |', '| --- | ---: |', '| AlexNet | 1,235 MB |', '| VGG16 | - |']


def test_table_without_rows_has_its_headings():
    assert Table(TABLE.columns, []).to_text() == 'net  peak\n---  ----'


@pytest.mark.parametrize(('form', 'value', 'text'), [
    (megabytes, 0, '0 MB'), (megabytes, 1_300_000_000, '1,300 MB'),
    (seconds, 0.01321, '0.0132 s'), (seconds, 9.809, '9.81 s'), (seconds, 142.3, '142 s'), (seconds, 2400.0, '2,400 s'),
    (percent, 0.0421, '+4.2 %'), (percent, -0.1, '-10.0 %'), (ratio, 0.384, '0.38'),
])
def test_quantities_are_written_with_their_unit(form, value, text):
    assert form(value) == text


NARROW = Table(
    (Column('nbytes', 'size of it', megabytes, right=True), Column('maker', 'made by'), Column('why', 'why')),
    [{'nbytes': 1e9, 'maker': 'Convolution2DFunction at /stage2/0/widen/convolution in resnet.py:47', 'why': 'it fits'},
     {'nbytes': 2e6, 'maker': 'ReLU', 'why': None}], 'The largest of all of the maps')


def test_what_is_too_wide_is_wrapped_between_words_and_behind_slashes():
    assert NARROW.to_text(46).splitlines() == [
        'The largest of all of the maps',
        'size of it  made by                    why',
        '----------  -------------------------  -------',
        '  1,000 MB  Convolution2DFunction      it fits',
        '            at /stage2/0/widen/',
        '            convolution in',
        '            resnet.py:47',
        '      2 MB  ReLU                       -',
    ]


@pytest.mark.parametrize('width', [120, 80, 46, 40, 33])
def test_no_line_is_wider_than_asked_for_and_nothing_is_lost(width):
    lines = NARROW.to_text(width).splitlines()
    assert max(map(len, lines)) <= width
    shown = ''.join(''.join(lines).split())
    assert all(part in shown for part in ('1,000', 'resnet.py:47', 'ReLU'))


def test_headings_of_numbers_are_wrapped_and_the_numbers_are_not():
    assert NARROW.to_text(33).splitlines()[1:4] == [
        ' size of  made by            why', '      it', '--------  -----------------  ----']


def test_a_word_that_is_wider_than_its_column_is_broken():
    table = Table((Column('path', 'path'),), [{'path': 'x' * 50}])
    assert table.to_text(20).splitlines() == ['path', '-' * 20, 'x' * 20, 'x' * 20, 'x' * 10]


def test_numbers_are_not_broken_however_narrow_it_is():
    assert '1,000 MB' in NARROW.to_text(1)


def test_seconds_without_their_unit_stand_below_a_heading_that_has_it():
    assert (figures(0.01321), figures(2400.0)) == ('0.0132', '2,400')
