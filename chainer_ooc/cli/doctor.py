"""``chainer-ooc doctor``: whether training can work here, and what to do where it cannot.

Any part may be missing or broken, so each is tried on its own, and a failure becomes a line under "problems" that says
what to do. Warnings are what works and could be better. Where there is a GPU the same is tried on it as on the host.
Under mpiexec each rank tries it, and rank 0 prints what all of them have.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from chainer_ooc import fork
from chainer_ooc.backends import BackendOptions, choose
from chainer_ooc.backends.cuda import presence
from chainer_ooc.backends.host import onednn
from chainer_ooc.backends.spill.disk_speed import disk_speed
from chainer_ooc.cli import ranks
from chainer_ooc.cli.answer import Answer, listing, message
from chainer_ooc.cli.stage import stage
from chainer_ooc.cli.trial import try_training, try_workspace
from chainer_ooc.errors import WORKSPACE, OocError
from chainer_ooc.fork import series
from chainer_ooc.quantities import counted, format_bytes
from chainer_ooc.ranks.node import node
from chainer_ooc.report.table import seconds

#: The card that is tried.
GPU = '@cupy:0'
#: Copies are timed so often, since no two times are alike: what is shown is the range.
_MEASUREMENTS = 3

HELP = 'say whether training can work here, and what is missing'


@dataclass
class Findings:
    """What was found so far: facts by topic, JSON-ready; problems, each with the next step; warnings."""

    facts: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def examine(self, topic: str, act: Callable[[], dict[str, Any]]) -> None:
        """Adds what ``act`` finds, or what kept it from finding anything."""
        try:
            with stage(f'examining {topic}'), warnings.catch_warnings():
                warnings.simplefilter('ignore')  # of a RAM disk, which `describe` has among its warnings too
                self.facts[topic] = act()
        except OocError as error:
            self.problems.append(f'{topic}: {message(error)}')
        except Exception as error:  # whatever fails is a finding, also what has no error of its own here
            self.problems.append(f'{topic}: {type(error).__name__}: {message(error)}')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the folder to examine."""
    parser.add_argument('--spill-dir', metavar='FOLDER', help='examine this as chainer.config.ooc_spill_dir')


def run(arguments: argparse.Namespace) -> Answer:
    """Examines everything; the status is 0 when training can work."""
    found = Findings()
    found.examine('versions', versions)
    found.examine('patches', patches)
    found.examine('cuda', presence.examine)
    found.examine('device', lambda: device(arguments.spill_dir))
    if not found.problems:
        found.examine('training', lambda: try_training(arguments.spill_dir))
        found.examine('workspace', try_workspace)
    if found.facts.get('cuda', {}).get('gpus'):
        found.examine('gpu_device', lambda: gpu_device(arguments.spill_dir))
        if 'gpu_device' in found.facts:
            found.examine('gpu_training', lambda: try_training(arguments.spill_dir, GPU))
    if node().ranks > 1:
        found.examine('ranks', lambda: ranks.gather(found.facts.get('device', {}), found.problems))
        each = found.facts.get('ranks', {}).get('each')
        if each is None and 'ranks' in found.facts:
            return Answer({}, [], status=1 if found.problems else 0, is_silent=True)  # rank 0 says it
        found.problems += ranks.problems_of_others(each or [])
    for topic in ('cuda', 'device', 'ranks', 'gpu_device'):
        found.warnings += found.facts.get(topic, {}).pop('warnings', [])
    can_train = not found.problems
    facts = {**found.facts, 'problems': found.problems, 'warnings': found.warnings, 'can_train': can_train}
    tables = [listing(topic, show(found.facts[topic])) for topic, show in _SHOWN.items() if topic in found.facts]
    tables += [ranks.table(found.facts['ranks']['each'])] if 'ranks' in found.facts else []
    closing = [f'problem: {line}' for line in found.problems] + [f'warning: {line}' for line in found.warnings]
    closing.append('training can work' if can_train else 'training cannot work before the problems are solved')
    return Answer(facts, tables, closing, status=0 if can_train else 1)


def versions() -> dict[str, Any]:
    """Versions of what takes part; None for what is absent."""
    version = presence.version
    cupy = filter(None, map(version, presence.PACKAGES))
    return {'python': platform.python_version(), 'chainer_ooc': version('chainer-ooc'), 'numpy': version('numpy'),
            'chainer': version('chainer'), 'cupy': next(cupy, None)}


def patches() -> dict[str, Any]:
    """The series, and whether it fits the installed Chainer.

    Raises:
        ForkError: it does not.
    """
    site = fork.check()
    loaded = series.load()
    names = {name for diffs in loaded.diffs.values() for name, _ in diffs}
    return {'folder': str(series.folder()), 'count': len(names), 'changed_files': len(loaded.expected),
            'chainer': str(site / 'chainer')}


def device(spill_dir: str | None) -> dict[str, Any]:
    """The device that training would run on, its budget, its spill medium, and oneDNN if there is one.

    Raises:
        SpillError: the folder cannot be used, or a trial copy failed.
    """
    facts = _backend_facts('host', spill_dir)
    limits, found = facts['near_limits_bytes'], onednn.find()
    return {'budget_bytes': facts.pop('default_budget_bytes'),
            'budget_limit': min(limits, key=limits.get, default=None), **facts,
            'disk': disk_speed(facts['spill_folder']), 'onednn': None if found is None else asdict(found)}


def gpu_device(spill_dir: str | None) -> dict[str, Any]:
    """The first card and its far memory.

    Raises:
        RuntimeError: Chainer cannot use it, or CUDA fails.
        SpillError: a trial copy failed.
    """
    import chainer

    chainer.get_device(GPU).use()
    return _backend_facts('cuda', spill_dir)


def _backend_facts(kind: str, spill_dir: str | None) -> dict[str, Any]:
    found = []
    for _ in range(_MEASUREMENTS):
        with contextlib.closing(choose(kind, BackendOptions(spill_dir))) as backend:
            facts = backend.describe()
            found.append(asdict(backend.bandwidth(anew=True)))
    return {**facts, **{name: statistics.median(each[name] for each in found) for name in found[0]}, 'ranges': {
        name: (min(each[name] for each in found), max(each[name] for each in found)) for name in found[0]}}


def _show_versions(facts: Mapping[str, Any]) -> dict[str, object]:
    absent = {'cupy': 'absent (needed for GPUs alone)',
              'chainer_ooc': 'not installed (running from a checkout)'}
    return {name: version or absent.get(name, 'absent') for name, version in facts.items()}


def _show_patches(facts: Mapping[str, Any]) -> dict[str, object]:
    return {'series': f'{facts["count"]} patches in {facts["folder"]}',
            'applies to': f'{facts["changed_files"]} files of {facts["chainer"]}, all as expected'}


def _show_cuda(facts: Mapping[str, Any]) -> dict[str, object]:
    if facts['cupy'] is None:
        return {'CuPy': 'cannot be imported' if facts['packages'] else
                        'absent; for GPUs: pip install "cupy-cuda13x[ctk]" nvidia-cudnn-frontend nvidia-cudnn-cu13'}
    shown: dict[str, object] = {
        'CuPy': f'{facts["cupy"]}, made for CUDA {facts["built_for"]}',
        'driver': f'supports CUDA up to {facts["driver"]}' if facts['driver'] else 'absent',
        'cuDNN': f'{facts["cudnn"] or "absent"}, nvidia-cudnn-frontend {facts["cudnn_frontend"] or "absent"}',
        'cuda-bindings': facts['cuda_bindings'] or 'absent'}
    return shown | {f'GPU {number}': _gpu(each) for number, each in enumerate(facts['gpus'])}


def _gpu(facts: Mapping[str, Any]) -> str:
    free = 'unknown' if facts['free_bytes'] is None else format_bytes(facts['free_bytes'])
    return (f'{facts["name"]}, compute capability {facts["compute_capability"]}, {format_bytes(facts["total_bytes"])}, '
            f'{free} free')


def _show_device(facts: Mapping[str, Any]) -> dict[str, object]:
    return {
        'name': facts['device'],
        'budget by default': f'{format_bytes(facts["budget_bytes"])}, set by {facts["budget_limit"]}',
        'spill folder': f'{facts["spill_folder"]} ({facts["spill_filesystem"]}), '
                        f'{format_bytes(facts["spill_free_bytes"])} free',
        'spill disk': _disk(facts['disk']),
        'in the page cache': f'{_speeds(facts)}; computations beside it take {_slowdown(facts)} times as long',
        'oneDNN': _onednn(facts['onednn']),
    }


def _onednn(facts: Mapping[str, Any] | None) -> str:
    if facts is None:
        return f'absent; for chainer.config.use_ideep = "auto": {onednn.INSTALL}'
    threads = '' if facts['threads'] is None else f', {counted(facts["threads"], "thread")}'
    return (f'{facts["version"]} of {facts["package"] or "the system"} ({os.path.basename(facts["path"])}){threads}; '
            'used where chainer.config.use_ideep is "auto"')


def _show_gpu_device(facts: Mapping[str, Any]) -> dict[str, object]:
    return {
        'name': facts['device_name'],
        'free': format_bytes(facts['near_free_bytes']),
        'pinned memory': f'up to {format_bytes(facts["pinned_limit_bytes"])}',
        'link': _speeds(facts),
    }


def _speeds(facts: Mapping[str, Any]) -> str:
    ranges = facts['ranges']
    latency = _range([each * 1e3 for each in ranges['latency_seconds']], 2)
    return (f'{_rate(ranges["write_bytes_per_second"])} out, {_rate(ranges["read_bytes_per_second"])} in, {latency} ms '
            'latency')


def _slowdown(facts: Mapping[str, Any]) -> str:
    return _range([1 + each for each in facts['ranges']['slowdown']], 2)


def _disk(facts: Mapping[str, Any] | None) -> str:
    if facts is None:
        return 'not measured: a RAM disk, or too full'
    return f'{_rate(facts["write_range_bytes_per_second"])} out, {_rate(facts["read_range_bytes_per_second"])} in'


def _rate(bytes_per_second: Sequence[float]) -> str:
    return f'{_range([each / 1e9 for each in bytes_per_second], 1 if min(bytes_per_second) > 1e9 else 2)} GB/s'


def _range(ends: Sequence[float], digits: int) -> str:
    """``'1.2 to 1.4'``, or one number where both are shown alike."""
    return ' to '.join(dict.fromkeys(f'{each:.{digits}f}' for each in ends))


def _show_training(facts: Mapping[str, Any]) -> dict[str, object]:
    return {'a tiny network': f'{counted(facts["swap"], "feature map")} swapped, gradients as in-core to the last bit'}


def _show_workspace(facts: Mapping[str, Any]) -> dict[str, object]:
    return {'a convolution': (
        f'{seconds(facts["workspace_seconds"])} with chainer.config.ooc_workspace = {WORKSPACE!r}, '
        f'{seconds(facts["seconds"])} without; {format_bytes(facts["workspace_bytes"])} of buffers in place of '
        f'{format_bytes(facts["scratch_bytes"])}')}


_SHOWN: dict[str, Callable[[Mapping[str, Any]], dict[str, object]]] = {
    'versions': _show_versions, 'patches': _show_patches, 'cuda': _show_cuda, 'device': _show_device,
    'training': _show_training, 'workspace': _show_workspace, 'gpu_device': _show_gpu_device,
    'gpu_training': _show_training}
