"""What was seen while a row ran, kept whether or not it ended well: a rented machine is asked once.

    warnings        each once, with how often; whoever raised them
    log             what the package said from level WARNING on; below, it would wait for the device to say it
    cudnn           versions; operations planned, and those that cuDNN refused, of all rows of this process so far
    im2col          how often Chainer's own way through im2col ran: 0 where cuDNN did it all
    before, after   clocks, temperature, power and memory of the device; memory of the host

Nothing that cannot be asked is an error: it is not there, or says why.
"""
from __future__ import annotations

import collections
import contextlib
import importlib
import logging
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

MOST_LINES = 60
SMI_SECONDS = 5.0
#: Asking takes a moment: after a row that took less, nobody asks.
WORTH_ASKING_SECONDS = 3.0
SMI_BASIC = ('name', 'driver_version', 'clocks.sm', 'clocks.mem', 'temperature.gpu', 'memory.used', 'memory.total')
SMI = ('name', 'driver_version', 'pstate', 'clocks.sm', 'clocks.mem', 'clocks.max.sm', 'clocks.max.mem',
       'clocks_event_reasons.active', 'temperature.gpu', 'power.draw', 'power.limit', 'memory.used', 'memory.total',
       'pcie.link.gen.current', 'pcie.link.width.current', 'ecc.mode.current', 'persistence_mode')
#: Where Chainer's own convolutions go through, by module.
IM2COL = {'chainer.utils.conv': ('im2col_cpu', 'im2col_gpu', 'col2im_cpu', 'col2im_gpu'),
          'chainer.utils.conv_nd': ('im2col_nd_cpu', 'im2col_nd_gpu', 'col2im_nd_cpu', 'col2im_nd_gpu')}


class Evidence(logging.Handler):
    """Collects within a `with` block.

    Attributes:
        noted: what the row has measured so far, see `note`.
    """

    latest: Evidence | None = None
    count = 0  # of rows of this process

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.noted: dict[str, Any] = {}
        self._log: list[str] = []
        self._im2col: collections.Counter[str] = collections.Counter()
        self._stack = contextlib.ExitStack()
        self._seen: list[Any] = []
        self._states: dict[str, Any] = {}

    def __enter__(self) -> Evidence:
        Evidence.latest = self
        self._seen = self._stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter('always')
        logger = logging.getLogger('chainer_ooc')
        logger.addHandler(self)
        self._stack.callback(logger.removeHandler, self)
        self._began = time.monotonic()
        self._states['before'] = state() if Evidence.count == 0 else {'host': host_memory()}
        Evidence.count += 1
        return self

    def __exit__(self, *_: object) -> None:
        if time.monotonic() - self._began >= WORTH_ASKING_SECONDS:
            self._states['after'] = state()
        self._stack.close()

    def emit(self, record: logging.LogRecord) -> None:
        """Takes a record of the package."""
        if len(self._log) < MOST_LINES:
            self._log.append(f'{record.levelname}: {record.getMessage()}')

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Counts calls of Chainer's im2col meanwhile; Chainer has been imported."""
        with contextlib.ExitStack() as stack:
            for name, functions in IM2COL.items():
                module = importlib.import_module(name)
                for function in functions:
                    original = getattr(module, function, None)
                    if original is not None:
                        stack.callback(setattr, module, function, original)
                        setattr(module, function, self._counted(function, original))
            yield

    def found(self) -> dict[str, Any]:
        """All of it, as JSON takes it."""
        warned = _counted_lines(self._seen)
        for line in warned:
            print(f'  {line}', file=sys.stderr, flush=True)
        return {'warnings': warned, 'log': self._log, 'im2col': dict(self._im2col),
                'cudnn': cudnn(), **self._states}

    def _counted(self, name: str, original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._im2col[name] += 1
            return original(*args, **kwargs)

        return call


def note(name: str, value: Any) -> None:
    """Keeps a figure of the row in hand, even if the row fails later; printed, for a process that dies of it."""
    if Evidence.latest is not None:
        Evidence.latest.noted[name] = list(value) if isinstance(value, list) else value
    print(f'  {name}: {value}', file=sys.stderr, flush=True)


def counting() -> contextlib.AbstractContextManager[None]:
    """See `Evidence.counting`, of the row in hand."""
    return contextlib.nullcontext() if Evidence.latest is None else Evidence.latest.counting()


def state() -> dict[str, Any]:
    """The machine now."""
    return {'time': time.strftime('%H:%M:%S'), 'device': smi(), 'host': host_memory()}


def smi() -> dict[str, str]:
    """What nvidia-smi says of the first GPU; empty where there is none."""
    if shutil.which('nvidia-smi') is None:
        return {}
    found: dict[str, str] = {}
    for names in (SMI, SMI_BASIC):  # one name that a driver does not know has it answer none of them
        try:
            done = subprocess.run(
                ['nvidia-smi', '--id=0', f'--query-gpu={",".join(names)}', '--format=csv,noheader'],
                capture_output=True, text=True, timeout=SMI_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return {'error': str(error)}
        values = done.stdout.strip().split(', ')
        if done.returncode == 0 and len(values) == len(names):
            return {**found, **dict(zip(names, values, strict=True))}
        found['error'] = ' '.join((done.stdout + done.stderr).split())[:300]
    return found


def host_memory() -> dict[str, int]:
    """Bytes of the host: in all, available, and of this process."""
    found = {}
    for path, names in (('/proc/meminfo', ('MemTotal', 'MemAvailable')), ('/proc/self/status', ('VmRSS', 'VmPin'))):
        with contextlib.suppress(OSError), open(path) as lines:
            for line in lines:
                name, _, value = line.partition(':')
                if name in names:
                    found[name] = int(value.split()[0]) * 1024
    return found


def cudnn() -> dict[str, Any]:
    """Versions of cuDNN, and what it was asked for in this process; empty where nobody asked."""
    session = sys.modules.get('chainer_ooc.kernels.cudnn.handles')
    library = sys.modules.get('cudnn')
    if session is None or library is None:
        return {}
    found: dict[str, Any] = {'frontend': getattr(library, '__version__', None)}
    with contextlib.suppress(Exception):
        found['version'] = library.backend_version()
    planned: collections.Counter[str] = collections.Counter()
    refused, most_bytes = [], 0
    for operation, settings, scratch_bytes in session.asked():
        if scratch_bytes is None:
            refused.append(f'{operation} under {settings}')
        else:
            planned[_what(operation)] += 1
            most_bytes = max(most_bytes, scratch_bytes)
    return {**found, 'planned': dict(planned), 'most_scratch_bytes': most_bytes, 'refused_count': len(refused),
            'refused': refused[:MOST_LINES]}


def _what(operation: Any) -> str:
    """Such as 'Convolution Y' or 'BatchNormalization forward'."""
    which = getattr(operation, 'result', None)
    suffix = which.name if which is not None else 'forward' if getattr(operation, 'forward', False) else 'backward'
    return f'{type(operation).__name__} {suffix}'


def _counted_lines(seen: list[Any]) -> list[str]:
    count = collections.Counter(
        f'{each.category.__name__}: {" ".join(str(each.message).split())} ({each.filename}:{each.lineno})'
        for each in seen)
    return [line if number == 1 else f'{line} ({number} times)' for line, number in count.most_common(MOST_LINES)]
