"""The JSON form: whatever the values, what is written reads back equal; what is no trace is refused with a reason."""
import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainer_ooc.errors import TraceFormatError
from chainer_ooc.trace import ArrayForm, Call, FeatureMap, MemoryEvent, Step, Trace
from chainer_ooc.trace.model import VERSION

NUMBERS = st.integers(-1, 2**62)
IDS = st.lists(st.integers(-1, 1000), max_size=4).map(tuple)
TIMES = st.floats(0, allow_nan=False, allow_infinity=False)
TEXTS = st.text(max_size=20)

MAPS = st.builds(
    FeatureMap, id=NUMBERS, nbytes=NUMBERS, producer=st.none() | NUMBERS, hidden=st.booleans(), retained=st.booleans(),
    foreign=st.booleans(), last_forward_use=NUMBERS, backward_uses=IDS, shape=IDS, dtype=TEXTS, last_alive=NUMBERS,
    shown=st.booleans(), written=st.booleans())
FORMS = st.lists(st.builds(ArrayForm, st.sampled_from(['<f4', '>i8', '|b1', '<f2']),
                           st.lists(st.integers(0, 1000), max_size=4).map(tuple)), max_size=3).map(tuple)
CALLS = st.builds(Call, NUMBERS, TEXTS, IDS, IDS, IDS, TIMES, NUMBERS, FORMS, FORMS, st.booleans())
STEPS = st.builds(Step, NUMBERS, NUMBERS, IDS, TIMES, NUMBERS, NUMBERS)
EVENTS = st.builds(MemoryEvent, st.sampled_from(['malloc', 'free']), NUMBERS, NUMBERS, NUMBERS)


def rows(kind):
    return st.lists(kind, max_size=4).map(tuple)


TRACES = st.builds(
    Trace, device=st.sampled_from(['host', 'cuda']), calls=rows(CALLS), steps=rows(STEPS), maps=rows(MAPS),
    events=rows(EVENTS), seconds=TIMES, write_bytes_per_second=TIMES, read_bytes_per_second=TIMES,
    versions=st.dictionaries(TEXTS, TEXTS, max_size=3))

SMALL = Trace(
    device='host',
    calls=(Call(0, 'ReLU', (0, -1), (1,), (), 0.25, 64, (ArrayForm('<f4', (16,)),) * 2, (ArrayForm('<f4', (16,)),)),),
    steps=(Step(1, 0, (1,), 0.5, 32, 0),),
    maps=(FeatureMap(0, 64, None, False, False, True, 0, (), (16,), 'float32'),
          FeatureMap(1, 64, 0, False, True, False, 0, (1,), (16,), 'float32')),
    events=(MemoryEvent('malloc', 1, 64, 0), MemoryEvent('free', 1, 64, 2)),
    seconds=0.75, write_bytes_per_second=1e9, read_bytes_per_second=2e9, versions={'numpy': '2.0.0'})


@given(TRACES)
def test_a_trace_reads_back_equal(trace):
    back = Trace.from_json(trace.to_json())
    assert back == trace
    assert back.fingerprint == trace.fingerprint
    assert back.to_json() == trace.to_json()


@given(TRACES)
def test_rows_read_back_as_immutable_values_of_the_same_types(trace):
    back = Trace.from_json(trace.to_json())
    for table in ('calls', 'steps', 'maps', 'events'):
        assert type(getattr(back, table)) is tuple
        for row, other in zip(getattr(trace, table), getattr(back, table), strict=True):
            hash(other)
            for field in dataclasses.fields(row):
                assert type(getattr(other, field.name)) is type(getattr(row, field.name)), field.name


def test_the_form_is_one_object_with_a_format_and_a_version_and_a_row_a_line():
    text = SMALL.to_json()
    read = json.loads(text)
    assert (read['format'], read['version'], read['device']) == ('chainer_ooc trace', VERSION, 'host')
    assert read['calls'][0] == [field.name for field in dataclasses.fields(Call)]
    assert read['calls'][1][:2] == [0, 'ReLU']
    assert read['events'][1:] == [['malloc', 1, 64, 0], ['free', 1, 64, 2]]
    assert sum(line.strip().startswith('["malloc"') for line in text.splitlines()) == 1


def changed(change):
    read = json.loads(SMALL.to_json())
    change(read)
    return json.dumps(read)


def test_columns_may_come_in_another_order():
    def turn(read):
        read['maps'] = [row[::-1] for row in read['maps']]
    assert Trace.from_json(changed(turn)) == SMALL


@pytest.mark.parametrize(
    'text', ['', 'hello', '{"format": ', SMALL.to_json()[:-20]], ids=['empty', 'text', 'cut', 'cut late'])
def test_what_is_no_json_is_no_trace(text):
    with pytest.raises(TraceFormatError, match=r'not a trace: no JSON \(.+\); write one with'):
        Trace.from_json(text)


@pytest.mark.parametrize('text', ['null', '[]', '{}', '3', '{"format": "another"}', '{"version": 2}'])
def test_json_of_another_kind_is_no_trace(text):
    with pytest.raises(TraceFormatError, match="not a trace: the key \"format\" is not 'chainer_ooc trace'; write one"):
        Trace.from_json(text)


@pytest.mark.parametrize('version', [0, VERSION - 1, VERSION + 1, '2', None])
def test_another_version_is_named_beside_the_one_that_can_be_read(version):
    with pytest.raises(TraceFormatError) as caught:
        Trace.from_json(changed(lambda read: read.update(version=version)))
    said, _, step = str(caught.value).partition('; ')
    assert said == f'trace of version {version!r}, this release reads {VERSION}'
    assert step == 'record it again with "chainer-ooc profile MODEL --save FILE"'


def test_a_trace_without_a_version_is_refused():
    with pytest.raises(TraceFormatError, match='trace of version None'):
        Trace.from_json(changed(lambda read: read.pop('version')))


FORMS_COLUMN = [field.name for field in dataclasses.fields(Call)].index('arguments')
DAMAGE = {
    'a table is missing': lambda read: read.pop('maps'),
    'a value is missing': lambda read: read.pop('seconds'),
    'an unknown key': lambda read: read.update(colour='red'),
    'an unknown column': lambda read: read['maps'][0].__setitem__(0, 'colour'),
    'a column less': lambda read: read['maps'][0].pop(),
    'a short row': lambda read: read['steps'][1].pop(),
    'a long row': lambda read: read['steps'][1].append(0),
    'a row is a number': lambda read: read['calls'].append(7),
    'a table is a number': lambda read: read.update(calls=7),
    'a table is empty': lambda read: read.update(calls=[]),
    'a form is a number': lambda read: read['calls'][1].__setitem__(FORMS_COLUMN, [7]),
    'a form has no shape': lambda read: read['calls'][1].__setitem__(FORMS_COLUMN, [['<f4']]),
    'a form has no known dtype': lambda read: read['calls'][1].__setitem__(FORMS_COLUMN, [['colour', [2]]]),
    'an extent is negative': lambda read: read['calls'][1].__setitem__(FORMS_COLUMN, [['<f4', [-2]]]),
    'an extent is no number': lambda read: read['calls'][1].__setitem__(FORMS_COLUMN, [['<f4', ['2']]]),
}


@pytest.mark.parametrize('damage', DAMAGE)
def test_a_damaged_trace_is_refused_with_the_reason(damage):
    with pytest.raises(TraceFormatError, match=r'damaged trace: \w+: .+; record it again'):
        Trace.from_json(changed(DAMAGE[damage]))


@given(st.integers(0, len(SMALL.to_json()) - 3))
def test_a_trace_cut_off_anywhere_is_refused(length):
    with pytest.raises(TraceFormatError):
        Trace.from_json(SMALL.to_json()[:length])
