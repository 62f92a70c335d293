"""How long ranks take to add up their gradients: a ring over a network of links that are all alike.

Each of N ranks sends what it has to the next one, a part of 1/N at a time, until every part has been all around twice:
once to be added up, once to be told. All links are busy all the time::

    seconds = 2 (N - 1) (latency + bytes / N / bytes per second)

Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations (2009); NCCL's rings.
Left out: trees, which take fewer latencies with many ranks; several ranks behind one link; the additions themselves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: From one rank to the next, software included: an assumption, between NCCL over InfiniBand and MPI over Ethernet.
LATENCY_SECONDS = 1e-5

_SPEED = re.compile(r'([0-9]+(?:\.[0-9]*)?)\s*([kKmMgGtT])(?:(?i:bit)|([bB]))(?i:/s|ps)?')
_FACTORS = {'k': 1e3, 'm': 1e6, 'g': 1e9, 't': 1e12}


@dataclass(frozen=True)
class Interconnect:
    """What joins ranks.

    Attributes:
        bytes_per_second: of each rank's link, in either direction.
        latency_seconds: from the send of a message to its arrival, its bytes aside.
    """

    bytes_per_second: float
    latency_seconds: float = LATENCY_SECONDS

    def allreduce_seconds(self, nbytes: int, ranks: int) -> float:
        """How long so many ranks take to add up arrays of so many bytes; 0 for one."""
        return 2 * (ranks - 1) * (self.latency_seconds + nbytes / ranks / self.bytes_per_second)


def parse_network(text: str) -> Interconnect:
    """Reads ``'100Gbit'``, ``'10 Gb/s'`` or ``'12.5GB/s'``: b is a bit, B a byte of eight, units are powers of 1000.

    Raises:
        ValueError: it is no speed, or one below 1 kbit/s.
    """
    match = _SPEED.fullmatch(text.strip())
    speed = 0.0 if match is None else float(match[1]) * _FACTORS[match[2].lower()] / (1 if match[3] == 'B' else 8)
    if speed < 125:
        raise ValueError(f'{text!r} is no speed of a network; write one such as 100Gbit, 10Gbit or 12.5GB')
    return Interconnect(speed)
