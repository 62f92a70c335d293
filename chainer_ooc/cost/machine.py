"""Descriptions of machines: what data sheets say about a device, its memory, and its link to far memory.

A description is a JSON file. Each figure names its source, so that you can check it::

    {"name": "v100-pcie3", "title": "...",
     "figures": {"near_bytes": {"value": 17179869184, "source": "..."}, ...,
                 "operations_per_second": {"float32": {"value": 1.4e13, "source": "..."}}}}

Those that come with the package are in `cost/machines`; your own are named by their paths. Source: OOC-Paleo table 1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chainer_ooc.errors import OocError

_FOLDER = Path(__file__).parent / 'machines'
#: What a description has to say, beside the operations per second; each a number of 0 or more.
_REQUIRED = ('memory_bytes_per_second', 'write_bytes_per_second', 'read_bytes_per_second', 'latency_seconds',
             'near_bytes', 'reserve_bytes')


#: More than any figure of a machine.
_MOST = 1e30


class MachineError(OocError, ValueError):
    """A description that cannot be read, or that lacks something."""


@dataclass(frozen=True)
class Machine:
    """A device and what it is connected to.

    Attributes:
        name: what the command line takes.
        title: what tables call it.
        rates: multiplications and additions per second, by dtype.
        memory_bytes_per_second: of near memory.
        write_bytes_per_second, read_bytes_per_second: of the link: near to far, far to near.
        latency_seconds: of one transfer.
        near_bytes: its capacity.
        reserve_bytes: of near memory, what programs cannot have.
    """

    name: str
    title: str
    rates: Mapping[str, float]
    memory_bytes_per_second: float
    write_bytes_per_second: float
    read_bytes_per_second: float
    latency_seconds: float
    near_bytes: int
    reserve_bytes: int

    @property
    def usable_bytes(self) -> int:
        """Near memory that a program can have."""
        return self.near_bytes - self.reserve_bytes

    def operations_per_second(self, dtype: str) -> float:
        """The peak for arrays of a dtype.

        Raises:
            MachineError: the description does not say.
        """
        if dtype not in self.rates:
            raise MachineError(f'the description of {self.name} has no operations per second for {dtype}, only for '
                               f'{", ".join(sorted(self.rates))}; add it to a copy of the file')
        return self.rates[dtype]


def machine_names() -> tuple[str, ...]:
    """The machines that come with the package."""
    return tuple(sorted(each.stem for each in _FOLDER.glob('*.json')))


def read_machine(name: str) -> Machine:
    """Reads the description of one of `machine_names`, or of the path of a file.

    Raises:
        MachineError: there is none, or it lacks something.
    """
    path = _FOLDER / f'{name}.json' if name in machine_names() else Path(name)
    try:
        read = json.loads(path.read_text(encoding='utf-8'))
    except OSError as error:
        raise MachineError(f'there is no machine {name!r} ({error.strerror}); name one of '
                           f'{", ".join(machine_names())}, or a file like theirs in {_FOLDER.name}/') from None
    except (ValueError, RecursionError) as error:
        raise MachineError(f'the description {path} is no JSON: {error}') from None
    return _machine(read, path)


def _machine(read: Any, path: Path) -> Machine:
    try:
        figures = read['figures']
        rates = {dtype: _number(each) for dtype, each in figures['operations_per_second'].items()}
        values: dict[str, Any] = {name: _number(figures[name]) for name in _REQUIRED}
        values.update({name: int(values[name]) for name in _REQUIRED if name.endswith('_bytes')})
        machine = Machine(str(read['name']), str(read['title']), rates, **values)
        speeds = machine.write_bytes_per_second, machine.read_bytes_per_second
        if min(machine.memory_bytes_per_second, *rates.values(), *(each or 1 for each in speeds)) < 1:
            raise ValueError('a rate below 1 per second, with which nothing ends')
        return machine
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise MachineError(f'the description {path} is incomplete ({type(error).__name__}: {error}); it needs a name, '
                           f'a title, and figures with a value and a source: operations_per_second by dtype, '
                           f'{", ".join(_REQUIRED)}') from None


def _number(figure: Any) -> float:
    value = figure['value']
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _MOST:
        raise ValueError(f'{value!r:.60} is no number of 0 to {_MOST:g}')
    if not str(figure.get('source', '')).strip():
        raise ValueError(f'the value {value!r} has no source')
    return value
