"""chainer.config.ooc* as one frozen value.

The seam patch calls `check` for every entry that is set, so that a bad value raises in the line that sets it. `current`
reads all entries into `Settings`; nothing else in the package looks at chainer.config.
"""

from __future__ import annotations

import functools
import logging
import math
import numbers
import operator
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chainer_ooc.classify.policies import POLICIES, policy_of
from chainer_ooc.errors import ConfigError, did_you_mean
from chainer_ooc.quantities import counted, parse_bytes

ALLOCATORS = ('pool', 'virtual', 'async', 'unified')

#: Where parameters, their gradients and the optimizer's state may lie, beside near memory.
PLACES = ('file',)

#: Takes the entry's name and a value; returns what `Settings` has of it, or raises ConfigError.
_Reader = Callable[[str, Any], Any]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What one iteration runs under; the attributes are the config entries without their prefix.

    Attributes:
        policy: name of a policy, as `classify.policies.policy_of` takes it.
        budget_bytes: near memory for all arrays, or None for what is free.
        spill_dir: absolute path of the folder of the spill file, or None for the system's temporary folder.
        host_limit_bytes: pinned memory for far copies (cuda only), or None for a share of what is free.
        workspace_bytes: scratch of one call, or None for Chainer's own way.
        min_bytes: arrays smaller than this always stay.
        allocator: what allocates near memory, one of `ALLOCATORS` (cuda only).
        profile_iterations: iterations recorded before a graph is planned, at least 1.
        plan_file: absolute path of a file of plans, to read and to write, or None.
        parameters: where parameters, their gradients and the optimizer's state lie: one of `PLACES`, or None for near
            memory (host only).
        log_level: level of the logger 'chainer_ooc', or None for silence.
        use_ideep: Chainer's own entry: 'never', 'auto' or 'always'.
    """

    policy: str
    budget_bytes: int | None
    spill_dir: str | None
    host_limit_bytes: int | None
    workspace_bytes: int | None
    min_bytes: int
    allocator: str
    profile_iterations: int
    plan_file: str | None
    log_level: int | None
    use_ideep: str = 'never'
    parameters: str | None = None


def check(name: str, value: Any) -> Any:
    """Checks a value for the entry `name`, and gives what is to be set.

    That is the value as it is, and of a path the absolute one: the program may go to another folder.

    Raises:
        ConfigError: there is no such entry, or it cannot have this value; the message names those that it can have.
    """
    if name not in _ENTRIES:
        raise ConfigError(f'chainer.config.{name} is no entry of chainer_ooc; {did_you_mean(name, _ENTRIES)}there are: '
                          f'{", ".join(sorted(_ENTRIES))}')
    attribute, reader = _ENTRIES[name]
    read = reader(name, value)
    return read if attribute in _PATHS else value


def current() -> Settings:
    """Reads chainer.config of the calling thread.

    Raises:
        ConfigError: a value was set past `check` and cannot be used.
    """
    global _latest
    import chainer

    # Each call of a function comes here: reading the attributes one by one would take it ten times as long.
    values = _values({**vars(chainer.global_config), **vars(chainer.config._local)})
    latest = _latest  # of any thread
    if latest is None or values != latest[0]:
        latest = _latest = values, _settings(*values)
    return latest[1]


def entry(name: str) -> Any:
    """An entry of chainer.config for the calling thread, in a tenth of the time that the attribute takes."""
    import chainer

    local = vars(chainer.config._local)
    return local[name] if name in local else getattr(chainer.global_config, name)


def entries(first: str, second: str) -> tuple[Any, Any]:
    """Two of them by one call, as each call of a function asks for both."""
    import chainer

    local, everywhere = vars(chainer.config._local), chainer.global_config
    return (local[first] if first in local else getattr(everywhere, first),
            local[second] if second in local else getattr(everywhere, second))


@functools.lru_cache(maxsize=16)
def _settings(use_ideep: Any, *values: Any) -> Settings:
    read = {attribute: reader(name, value)
            for (name, (attribute, reader)), value in zip(_ENTRIES.items(), values, strict=True)}
    return Settings(use_ideep=str(use_ideep), **read)


def _refuse(name: str, value: Any, good: str) -> ConfigError:
    return ConfigError(f'chainer.config.{name} = {value!r} cannot be used; {good}')


def _optional(read: _Reader) -> _Reader:
    return lambda name, value: None if value is None else read(name, value)


def _policy(name: str, value: Any) -> str:
    if not isinstance(value, str) or not (value in POLICIES or ':' in value):
        meant = did_you_mean(str(value), POLICIES)
        raise _refuse(name, value, f'{meant}use None or one of: {", ".join(sorted(POLICIES))}; or module:attribute '
                      'for a policy of your own')
    try:
        policy_of(value)
    except ConfigError as error:
        raise _refuse(name, value, str(error)) from error.__cause__
    return value


def _bytes(name: str, value: Any, least: int = 1) -> int:
    try:
        nbytes = parse_bytes(value)
    except (ValueError, OverflowError) as error:
        raise _refuse(name, value, str(error)) from None
    if nbytes < least:
        raise _refuse(name, value, f'it must be at least {counted(least, "byte")}')
    return nbytes


def _folder(name: str, value: Any) -> str:
    try:
        folder = os.fsdecode(value)
    except TypeError:
        raise _refuse(name, value, 'use None or the path of a folder') from None
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise _refuse(name, value, 'that is no folder; name one, or use None for the temporary folder')
    if not os.path.isdir(folder):
        raise _refuse(name, value, 'there is no such folder; make it, or use None for the temporary folder')
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _refuse(name, value, 'the folder cannot be written to; choose another, or change its mode')
    return os.path.abspath(folder)


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise _refuse(name, value, 'use a whole number of iterations, at least 1')
    return int(value)


def _one_of(good: tuple[str, ...], advice: str) -> _Reader:
    def read(name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in good:
            raise _refuse(name, value, advice)
        return value
    return read


def _plan(name: str, value: Any) -> str:
    try:
        path = os.path.abspath(os.fsdecode(value))
    except TypeError:
        raise _refuse(name, value, 'use None or the path of a file') from None
    if not value or '\0' in path:
        raise _refuse(name, value, 'that is no name of a file; use None or the path of one')
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise _refuse(name, value, f'there is no folder {folder}; make it, or name a file in another')
    if os.path.isdir(path):
        raise _refuse(name, value, 'that is a folder; name a file in it')
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _refuse(name, value, f'the folder {folder} cannot be written to; choose another, or change its mode')
    if os.path.exists(path) and not os.access(path, os.R_OK):
        raise _refuse(name, value, 'the file cannot be read; name another, or change its mode')
    return path


def _log_level(name: str, value: Any) -> int:
    level = logging.getLevelName(value.upper()) if isinstance(value, str) else value
    if isinstance(level, bool) or not isinstance(level, int) or not 0 <= level < math.inf:
        raise _refuse(name, value, "use None or a level of Python's logging, such as 'INFO' or logging.INFO")
    return level


#: Attributes of `Settings` that are paths.
_PATHS = ('spill_dir', 'plan_file')

#: By entry: what `Settings` calls it, and what reads it.
_ENTRIES: dict[str, tuple[str, _Reader]] = {
    'ooc': ('policy', _optional(_policy)),
    'ooc_budget': ('budget_bytes', _optional(_bytes)),
    'ooc_spill_dir': ('spill_dir', _optional(_folder)),
    'ooc_host_limit': ('host_limit_bytes', _optional(_bytes)),
    'ooc_workspace': ('workspace_bytes', _optional(_bytes)),
    'ooc_min_bytes': ('min_bytes', functools.partial(_bytes, least=0)),
    'ooc_profile_iterations': ('profile_iterations', _count),
    'ooc_plan': ('plan_file', _optional(_plan)),
    'ooc_allocator': ('allocator', _one_of(ALLOCATORS, f'use one of: {", ".join(ALLOCATORS)}')),
    'ooc_log': ('log_level', _optional(_log_level)),
    'ooc_parameters': ('parameters', _optional(_one_of(PLACES, f'use None or {", ".join(map(repr, PLACES))}'))),
}
_latest: tuple[tuple[Any, ...], Settings] | None = None
_values: Callable[[dict[str, Any]], tuple[Any, ...]] = operator.itemgetter('use_ideep', *_ENTRIES)
