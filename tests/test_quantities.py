import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainer_ooc.quantities import MOST_BYTES, format_bytes, format_enough, parse_bytes


@pytest.mark.parametrize(('written', 'nbytes'), [
    (0, 0), (1500000, 1500000), (1e9, 10**9), (2**60, 2**60), (0.9, 0),
    ('512', 512), ('512B', 512), (' 1.5GB ', 1500000000), ('1.5gb', 1500000000), ('1G', 10**9), ('.5 kB', 500),
    ('3 KiB', 3072), ('1MB', 10**6), ('1MiB', 2**20), ('1.4 GiB', int(1.4 * 2**30)), ('2TB', 2 * 10**12),
    ('1tib', 2**40), ('512Mi', 512 * 2**20), ('1.5Gi', 3 * 2**29),
])
def test_numbers_and_decimal_and_binary_units_are_bytes(written, nbytes):
    read = parse_bytes(written)
    assert (read, type(read)) == (nbytes, int)


@pytest.mark.parametrize('written', [
    '12 bananas', '', 'GB', '-1GB', '1,000', '1.2.3MB', '5.', '1e9', '1 000', 'nan', 'inf', '0x10', '1PB', '\u0663'])
def test_a_string_that_is_no_amount_is_refused_with_the_units_that_are_known(written):
    with pytest.raises(ValueError, match=r"no amount of bytes.*'GB'.*'GiB'") as caught:
        parse_bytes(written)
    assert repr(written) in str(caught.value)


@pytest.mark.parametrize(('written', 'meant'), [
    ('-5GB', '5GB'), ('+5gb', '5GB'), ('-2GiB', '2GiB'), ('1e9', '1GB'), ('1.5e9', '1.5GB'), ('2E+6', '2MB'),
    ('1e3 kB', '1MB'), ('2e2 GB', '200GB'),
    ('12e2', '1.2kB'), ('1,5GB', '1.5GB'), ('1,000', '1000'), ('1,500,000 kB', '1500000kB'), ('5 gigabytes', '5GB'),
    ('3 gigs', '3GB'), ('3 megs', '3MB'), ('-7', '7'), ('800 kbyte', '800kB'), ('1e15', '1000TB')])
def test_a_string_that_is_nearly_an_amount_is_answered_with_that(written, meant):
    with pytest.raises(ValueError, match='is no amount of bytes; did you mean ') as caught:
        parse_bytes(written)
    assert f'did you mean {meant!r}? write' in str(caught.value)
    assert parse_bytes(meant) > 0


@pytest.mark.parametrize('written', ['12 bananas', '', 'GB', '1PB', '50%', '1e99', '-0', '9' * 30 + '.', '1.2.3MB'])
def test_a_string_that_is_near_no_amount_is_not_guessed_at(written):
    with pytest.raises(ValueError, match='is no amount of bytes; write'):
        parse_bytes(written)


@given(st.text(alphabet='0123456789.,eE+-kKmMgGtTiIbBs %_', max_size=12))
def test_no_string_is_anything_but_an_amount_or_refused(written):
    with contextlib.suppress(ValueError):
        assert parse_bytes(written) >= 0


@pytest.mark.parametrize('value', [None, True, False, [], b'5', float('nan'), 1j])
def test_what_is_neither_number_nor_string_is_refused(value):
    with pytest.raises(ValueError, match='is no amount of bytes'):
        parse_bytes(value)


@pytest.mark.parametrize('value', [1e30, 2**60 + 1, 10**40, '10000000000TB', '1048577 TiB'])
def test_what_no_memory_has_is_refused(value):
    with pytest.raises(ValueError, match='more bytes than any memory has') as caught:
        parse_bytes(value)
    assert repr(value) in str(caught.value)


@given(st.integers(0, 2**50))
def test_a_string_of_digits_is_that_number(nbytes):
    assert parse_bytes(str(nbytes)) == parse_bytes(nbytes) == nbytes


@pytest.mark.parametrize(('nbytes', 'shown'), [
    (0, '0 bytes'), (4096, '4096 bytes'), (10**6 - 1, '999999 bytes'), (10**6, '1.0 MB'), (512 * 10**6, '512.0 MB'),
    (10**9, '1.00 GB'), (2_600_000_000, '2.60 GB'), (-(2 * 10**9), '-2.00 GB'), (3 * 10**12, '3000.00 GB')])
def test_messages_show_the_units_that_amounts_are_typed_in(nbytes, shown):
    assert format_bytes(nbytes) == shown


@given(st.integers(0, 2**45))
def test_what_is_shown_reads_back_within_the_shown_digits(nbytes):
    tolerance = 0 if nbytes < 10**6 else 0.051 * 10**6 if nbytes < 10**9 else 0.0051 * 10**9
    assert abs(parse_bytes(format_bytes(nbytes).replace('bytes', 'B').replace('byte', 'B')) - nbytes) <= tolerance


@given(st.integers(0, MOST_BYTES))
def test_what_is_said_to_be_enough_is_enough_and_not_much_more(nbytes):
    shown = format_enough(nbytes).replace('bytes', 'B').replace('byte', 'B')
    enough = parse_bytes(shown) if nbytes < MOST_BYTES - 10**9 else nbytes
    assert nbytes <= enough <= nbytes + (0 if nbytes < 10**6 else 0.11 * 10**6 if nbytes < 10**9 else 0.011 * 10**9)
