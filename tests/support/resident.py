"""What this process holds in real memory, and of addresses.

Linux says it in ``/proc/self``; the peak can be set back, so that one process can measure several runs. The pages of
the spill file are in the page cache, not in the process: they do not count here.

Left out: other systems (``OSError``), and the kernel's own error of up to a few hundred kB, as it adds up each
processor's counts late.
"""

from __future__ import annotations

from chainer_ooc.backends.host.limits import kilobyte_fields

_STATUS = '/proc/self/status'


def rss_bytes() -> int:
    """Returns the resident memory: private pages and those of mapped files.

    Raises:
        OSError: The system does not say.
    """
    return _field('VmRSS')


def private_bytes() -> int:
    """Returns the resident memory that is private (RssAnon): arrays, the heap, stacks.

    Raises:
        OSError: The system does not say.
    """
    return _field('RssAnon')


def mapped_bytes() -> int:
    """Returns the addresses that are mapped (VmSize), with memory behind them or not.

    Raises:
        OSError: The system does not say.
    """
    return _field('VmSize')


def peak_rss_bytes() -> int:
    """Returns the largest ``rss_bytes`` since the process began or since ``reset_peak_rss``.

    Raises:
        OSError: The system does not say.
    """
    return _field('VmHWM')


def reset_peak_rss() -> bool:
    """Sets the peak back to what is resident now; returns whether the system lets us."""
    try:
        with open('/proc/self/clear_refs', 'w', encoding='ascii') as file:
            file.write('5')
    except OSError:
        return False
    return True


def _field(name: str) -> int:
    fields = kilobyte_fields(_STATUS)
    if name not in fields:
        raise OSError(f'{_STATUS} has no field {name}: resident memory can be read on Linux only')
    return fields[name]
