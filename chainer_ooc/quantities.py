"""Bytes as people write and read them.

Decimal units as on a data sheet ('16GB' is 16e9 bytes), binary ones where they are named ('16GiB'). Messages show
decimal units alone: an amount that was read in one of them can be typed as it stands.
"""

import decimal
import math
import numbers
import re

_FACTORS = {'': 1, 'b': 1}
for _power, _prefix in enumerate('kmgt', start=1):
    _FACTORS.update({_prefix: 1000**_power, f'{_prefix}b': 1000**_power,
                     f'{_prefix}i': 1024**_power, f'{_prefix}ib': 1024**_power})

#: More than any memory has, and little enough for all arithmetic of the system.
MOST_BYTES = 2**60

#: From the largest on: a unit, the digits behind the point, and its name.
_SHOWN = (10**9, 2, 'GB'), (10**6, 1, 'MB')

_PATTERN = re.compile(r'\s*([0-9]*\.?[0-9]+)\s*([a-z]*)\s*', re.ASCII)
#: What is nearly an amount: signed, with a comma, in powers of ten, or with another word for its unit.
_NEAR = re.compile(r'[-+]?([0-9]{1,20}(?:,[0-9]{3})*(?:[.,][0-9]{1,9})?)(?:e\+?([0-9]{1,2}))?\s*'
                   r'([kmgt]?)(i(?=b))?(?:b|[a-z]{0,5}bytes?|igs?|egs?)?', re.ASCII)
_THOUSANDS = re.compile('[0-9]{1,3}(,[0-9]{3})+')


def parse_bytes(value: int | float | str) -> int:
    """Turns ``1500000``, ``'1.5GB'`` or ``'1.4 GiB'`` into bytes.

    Raises:
        ValueError: it is no amount of bytes; the message lists the forms that are.
    """
    if isinstance(value, str):
        match = _PATTERN.fullmatch(value.lower())
        if match is None or match.group(2) not in _FACTORS:
            raise ValueError(
                f'{value!r} is no amount of bytes; {_meant(value)}write a number of bytes, or one with a unit of '
                "'kB', 'MB', 'GB', 'TB' (powers of 1000) or 'KiB', 'MiB', 'GiB', 'TiB', such as '1.5GB'")
        nbytes = int(decimal.Decimal(match.group(1)) * _FACTORS[match.group(2)])
    elif not _is_real(value) or not math.isfinite(value):
        raise ValueError(f'{value!r} is no amount of bytes; write a number or a string such as "1.5GB"')
    else:
        nbytes = int(value)
    if nbytes > MOST_BYTES:
        raise ValueError(f'{value!r} is more bytes than any memory has; write at most 2**60 (1048576TiB)')
    return nbytes


def _meant(text: str) -> str:
    """A question whether the nearest amount was meant, or '' where none is near."""
    match = _NEAR.fullmatch(text.strip().lower())
    if match is None:
        return ''
    number, exponent, prefix, binary = match.groups()
    number = number.replace(',', '') if _THOUSANDS.fullmatch(number) else number.replace(',', '.')
    unit = f'{"k" if prefix == "k" and not binary else prefix.upper()}{binary or ""}B' if prefix else ''
    if exponent is not None:
        nbytes = int(decimal.Decimal(number).scaleb(int(exponent)) * _FACTORS[unit.lower()])
        power = min((len(str(nbytes)) - 1) // 3, 4)
        number, unit = f'{decimal.Decimal(nbytes) / 1000**power:f}', ('', 'kB', 'MB', 'GB', 'TB')[power]
    amount = decimal.Decimal(number) * _FACTORS[unit.lower()]
    return f'did you mean {number + unit!r}? ' if 1 <= amount <= MOST_BYTES else ''


def _is_real(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def format_bytes(nbytes: int) -> str:
    """``'2.60 GB'`` from a GB on, else ``'512.0 MB'``, below a MB ``'4096 bytes'``."""
    for unit_bytes, digits, unit in _SHOWN:
        if abs(nbytes) >= unit_bytes:
            return f'{nbytes / unit_bytes:.{digits}f} {unit}'
    return counted(nbytes, 'byte')


def counted(count: int, noun: str) -> str:
    """``'1 map'``, ``'2 maps'``."""
    return f'{count} {noun}' if count == 1 else f'{count} {noun}s'


def format_enough(nbytes: int) -> str:
    """As `format_bytes`, rounded up, so that the amount that it names is enough."""
    return format_bytes(enough(nbytes))


def enough(nbytes: int) -> int:
    """The smallest amount that `format_bytes` shows exactly and that is no less."""
    for unit_bytes, digits, _ in _SHOWN:
        if nbytes >= unit_bytes:
            return rounded_up(nbytes, unit_bytes // 10**digits)
    return nbytes


def rounded_up(nbytes: int, step_bytes: int) -> int:
    """The smallest multiple of `step_bytes` that is no less."""
    return -(-nbytes // step_bytes) * step_bytes
