"""The JSON form: whatever the values, what is written reads back equal; what is no trace is refused with a reason."""
import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainer_ooc.errors import TraceFormatError
from chainer_ooc.trace import ArrayForm, Call, FeatureMap, Step, Trace
from chainer_ooc.trace.model import VERSION
from support.planning import random_problems

BYTES = st.integers(0, 2**40)
CHANGE = st.integers(-2**40, 2**40)
TIMES = st.just(0.0) | st.floats(1e-15, 1e12)
SPEEDS = st.just(0.0) | st.floats(1.0, 1e300)
TEXTS = st.text(max_size=20)
FORMS = st.lists(st.builds(ArrayForm, st.sampled_from(['<f4', '>i8', '|b1', '<f2']),
                           st.lists(st.integers(0, 1000), max_size=4).map(tuple)), max_size=3).map(tuple)


@st.composite
def traces(draw):
    """Iterations as they may be recorded, with any texts and figures in the places that can have any."""
    def each(rows, **attributes):
        return tuple(dataclasses.replace(row, **{name: draw(kind) for name, kind in attributes.items()})
                     for row in rows)

    trace = draw(random_problems.traces())
    maps = each(trace.maps, nbytes=BYTES, dtype=TEXTS, shape=st.lists(BYTES, max_size=3).map(tuple),
                shown=st.booleans(), written=st.booleans(), reused=st.booleans())
    return dataclasses.replace(
        trace, device=draw(st.sampled_from(['host', 'cuda'])), maps=maps,
        calls=each(trace.calls, label=TEXTS, seconds=TIMES, peak_bytes=BYTES, arguments=FORMS, results=FORMS),
        steps=each(trace.steps, seconds=TIMES, peak_bytes=CHANGE, other_bytes=CHANGE),
        seconds=draw(TIMES), write_bytes_per_second=draw(SPEEDS), read_bytes_per_second=draw(SPEEDS),
        copy_slowdown=draw(st.floats(0, 1e6)),
        versions=draw(st.dictionaries(TEXTS, TEXTS, max_size=3)), machine=draw(TEXTS),
        workspace_bytes=draw(st.none() | BYTES), standing_forward_bytes=draw(BYTES), others_bytes=draw(BYTES),
        doubt=draw(TEXTS))


SMALL = Trace(
    device='host',
    calls=(Call(0, 'ReLU', (0, -1), (1,), (), 0.25, 64, (ArrayForm('<f4', (16,)),) * 2, (ArrayForm('<f4', (16,)),)),),
    steps=(Step(1, 0, (1,), 0.5, 32, 0),),
    maps=(FeatureMap(0, 64, None, False, False, True, 0, (), (16,), 'float32'),
          FeatureMap(1, 64, 0, False, True, False, 0, (1,), (16,), 'float32')),
    seconds=0.75, write_bytes_per_second=1e9, read_bytes_per_second=2e9, versions={'numpy': '2.0.0'})


@given(traces())
def test_a_trace_reads_back_equal(trace):
    back = Trace.from_json(trace.to_json())
    assert back == trace
    assert back.fingerprint == trace.fingerprint
    assert back.to_json() == trace.to_json()


@given(traces())
def test_rows_read_back_as_immutable_values_of_the_same_types(trace):
    back = Trace.from_json(trace.to_json())
    for table in ('calls', 'steps', 'maps'):
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
    assert sum(line.strip().startswith('[0, "ReLU"') for line in text.splitlines()) == 1


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


def put(table, row, column, value):
    """What changes one value of a table, by the number of its row from 0 on."""
    def change(read):
        columns, *rows = read[table]
        rows[row][columns.index(column)] = value
    return change


DAMAGE = {
    'a table is missing': (lambda read: read.pop('maps'), 'maps: no list of rows, of which the first one names'),
    'a value is missing': (lambda read: read.pop('seconds'), "trace: 'seconds' is missing"),
    'an unknown key': (lambda read: read.update(colour='red'), "trace: 'colour' is unknown"),
    'an unknown column': (lambda read: read['maps'][0].__setitem__(0, 'colour'), "maps, row 0: 'colour' is unknown"),
    'a column less': (lambda read: read['maps'][0].pop(), 'maps, row 0: 16 values for 15 columns'),
    'a column twice': (lambda read: read['steps'][0].__setitem__(1, 'position'), 'are no names of columns'),
    'a column is a list': (lambda read: read['steps'][0].__setitem__(1, []), 'are no names of columns'),
    'a short row': (lambda read: read['steps'][1].pop(), 'steps, row 0: 6 values for 7 columns'),
    'a long row': (lambda read: read['steps'][1].append(0), 'steps, row 0: 8 values for 7 columns'),
    'a row is a number': (lambda read: read['calls'].append(7), 'calls: no list of rows'),
    'a table is a number': (lambda read: read.update(calls=7), 'calls: no list of rows'),
    'a table is empty': (lambda read: read.update(calls=[]), 'calls: no list of rows'),
    'text for a number': (put('maps', 1, 'nbytes', 'many'), "maps, row 1: nbytes is 'many', not int"),
    'a number for text': (lambda read: read.update(machine=7), 'trace: machine is 7, not str'),
    'true for a number': (put('calls', 0, 'peak_bytes', True), 'calls, row 0: peak_bytes is True, not int'),
    'a version is a number': (lambda read: read.update(versions={'numpy': 2}), 'versions: numpy is 2, not a text'),
    'a form is a number': (put('calls', 0, 'arguments', [7]), 'calls, row 0, arguments: cannot unpack'),
    'a form has no shape': (put('calls', 0, 'arguments', [['<f4']]), 'calls, row 0, arguments: not enough'),
    'a form has no dtype': (put('calls', 0, 'arguments', [['colour', [2]]]), "arguments: ['colour', (2,)] is not"),
    'a form has no known dtype': (put('calls', 0, 'arguments', [['<z9', [2]]]), 'calls, row 0, arguments: data type'),
    'an extent is negative': (put('calls', 0, 'arguments', [['<f4', [-2]]]), 'is not the form of an array'),
    'an extent is no number': (put('calls', 0, 'arguments', [['<f4', ['2']]]), 'is not the form of an array'),
    'a form is huge': (put('calls', 0, 'results', [['<f4', [2**40, 2**40]]]), 'calls, row 0, results: '),
    'another id': (put('maps', 1, 'id', 0), 'maps, row 1: its id is 0; rows are in the order of their ids, from 0 on'),
    'a row is missing': (lambda read: read['maps'].pop(1), 'maps, row 0: its id is 1; rows are in the order'),
    'another index': (put('calls', 0, 'index', 1), 'calls, row 0: its index is 1; rows are in the order'),
    'another position': (put('steps', 0, 'position', 7), 'steps, row 0: its position is 7, not 1; steps follow'),
    'negative bytes': (put('maps', 1, 'nbytes', -1), 'maps, row 1, nbytes: -1 is no amount of bytes: 0 to 2**60'),
    'huge bytes': (put('calls', 0, 'peak_bytes', 2**63), 'calls, row 0, peak_bytes: 9223372036854775808 is no amount'),
    'bytes that add up': (lambda read: [put('maps', row, 'nbytes', 2**60)(read) for row in (0, 1)], 'all together: '),
    'hugely negative bytes': (put('steps', 0, 'other_bytes', -2**61), 'steps, row 0, other_bytes: '),
    'negative standing': (lambda read: read.update(standing_forward_bytes=-5), 'standing_forward_bytes: -5 is no amo'),
    'a negative extent': (put('maps', 0, 'shape', [-2]), 'maps, row 0, shape: -2 is no extent'),
    'a time that is none': (put('steps', 0, 'seconds', float('nan')), 'steps, row 0, seconds: nan is no time: 0, or'),
    'a time without end': (put('calls', 0, 'seconds', float('inf')), 'calls, row 0, seconds: inf is no time'),
    'a time before': (lambda read: read.update(seconds=-1), 'seconds: -1 is no time'),
    'a time of 400 digits': (put('calls', 0, 'seconds', 10**400), 'is no time'),
    'no bandwidth': (lambda read: read.update(read_bytes_per_second=1e-300), 'read_bytes_per_second: 1e-300 is no ban'),
    'a bandwidth that is none': (lambda read: read.update(write_bytes_per_second=float('nan')), 'nan is no bandwidth'),
    'a slowdown that is none': (lambda read: read.update(copy_slowdown=-1), 'copy_slowdown: -1 is no slowdown'),
    'no such producer': (put('maps', 1, 'producer', 1), 'maps, row 1, producer: 1 is no call: 0 to 0'),
    'a producer that makes another': (put('maps', 0, 'producer', 0), 'row 0, producer: call 0 neither gives nor hides'),
    'a call that reads what it makes': (put('calls', 0, 'inputs', [1, -1]), 'map 1 is made by call 0, which is not be'),
    'no such input': (put('calls', 0, 'inputs', [2, -1]), 'calls, row 0, inputs: 2 is no feature map: -1 to 1'),
    'a use that is none': (put('maps', 1, 'last_forward_use', -1), 'row 1, last_forward_use: -1 is no call'),
    'a use in forward': (put('maps', 1, 'backward_uses', [0]), 'row 1, backward_uses: 0 is no position of a step'),
    'a use that no step has': (put('maps', 0, 'backward_uses', [1]), 'the step at position 1 does not read it'),
    'a use that no map has': (put('steps', 0, 'maps', [0, 1]), 'steps, row 0, maps: map 0 has no backward use at'),
    'uses in another order': (put('maps', 1, 'backward_uses', [1, 1]), '[1, 1] is not in ascending order'),
    'no such call': (put('steps', 0, 'call', 1), 'steps, row 0, call: 1 is no call'),
}


@pytest.mark.parametrize('damage', DAMAGE)
def test_a_damaged_trace_is_refused_with_the_place_and_the_reason(damage):
    change, message = DAMAGE[damage]
    with pytest.raises(TraceFormatError) as caught:
        Trace.from_json(changed(change))
    said, _, step = str(caught.value).rpartition('; ')
    assert said.startswith('damaged trace: ') and message in said
    assert step == 'record it again with "chainer-ooc profile MODEL --save FILE"'
    assert len(said) < 200


def test_a_map_is_not_read_after_its_last_forward_use():
    later = dataclasses.replace(SMALL.calls[0], index=1, inputs=(0,), outputs=(-1,), arguments=(), results=())
    uses = tuple(dataclasses.replace(each, backward_uses=(2,) if each.id else ()) for each in SMALL.maps)
    trace = dataclasses.replace(SMALL, calls=(*SMALL.calls, later), maps=uses,
                                steps=(dataclasses.replace(SMALL.steps[0], position=2),))
    with pytest.raises(TraceFormatError, match='calls, row 1: map 0 had its last forward use before, in call 0'):
        Trace.from_json(trace.to_json())


@given(st.integers(0, len(SMALL.to_json()) - 3))
def test_a_trace_cut_off_anywhere_is_refused(length):
    with pytest.raises(TraceFormatError):
        Trace.from_json(SMALL.to_json()[:length])
