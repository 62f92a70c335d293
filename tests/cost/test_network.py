"""The ring in which ranks add up their gradients."""
import pytest

from chainer_ooc.cost.network import LATENCY_SECONDS, Interconnect, parse_network


def test_each_rank_sends_every_part_but_one_twice():
    # 4 ranks, 1,000 bytes: 6 messages of 250 bytes, one after the other
    assert Interconnect(1e6, 0.1).allreduce_seconds(1000, 4) == pytest.approx(6 * (0.1 + 250 / 1e6))


def test_one_rank_exchanges_nothing_and_many_send_twice_the_bytes():
    assert Interconnect(1e6).allreduce_seconds(1000, 1) == 0
    assert Interconnect(1e6, 0.0).allreduce_seconds(10**6, 10**6) == pytest.approx(2, rel=1e-5)


@pytest.mark.parametrize(('text', 'bytes_per_second'), [
    ('100Gbit', 12.5e9), ('10 Gbit/s', 1.25e9), ('2.5gbps', 312.5e6), ('2.5gbitps', 312.5e6), ('12.5GB', 12.5e9),
    ('10Gb', 1.25e9), ('10 Gb/s', 1.25e9), ('1.6Tbit', 200e9), ('2GBps', 2e9), ('800 MB/s', 8e8), ('1Mbit', 125e3),
    ('1kbit', 125)])
def test_speeds_are_read_in_bits_and_bytes(text, bytes_per_second):
    assert parse_network(text) == Interconnect(bytes_per_second, LATENCY_SECONDS)


@pytest.mark.parametrize('text', ['', 'fast', '100', '0Gbit', '0.5kbit', '-1Gbit', '100Gbit 5', '1e9 GB'])
def test_what_is_no_speed_is_refused_with_examples(text):
    with pytest.raises(ValueError, match=r'such as 100Gbit, 10Gbit or 12\.5GB'):
        parse_network(text)
