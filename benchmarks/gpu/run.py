"""The whole GPU programme by one command: figures, tables, evidence and compiled kernels in one folder.

    python benchmarks/gpu/run.py --stage first --out result          # nine minutes: link, in-core, batch 640, bits
    python benchmarks/gpu/run.py --stage second --out result         # the next nine: allocators, policies, PyTorch
    python benchmarks/gpu/run.py --parts batch-640 bits --minutes 4
    python benchmarks/gpu/run.py --stage first --device host         # tries the programme itself, no GPU

Parts run in the order of their importance and results are written after each row, so that a programme that is killed
has lost nothing. On a machine without a GPU networks and batches are smaller, and the output says so.
"""
from __future__ import annotations

import argparse
import os
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
for folder in (HERE, HERE.parent.parent):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))

from chainer_ooc.quantities import format_bytes, parse_bytes  # noqa: E402
from conduct import Clock, Conductor  # noqa: E402
from kernels import Kernels  # noqa: E402
from processes import Worker  # noqa: E402
from programme import STAGES, Part, Programme  # noqa: E402
from results import Files  # noqa: E402
from sizes import FULL, SMALL  # noqa: E402

MINUTES = 9.0
DESCRIBE_SECONDS = 120.0
SHARE_PINNED = 0.75  # of the host's memory, where it is said how much that is
CLOSING_SECONDS = 10.0  # for writing files and ending processes


def main() -> int:
    asked = _parser().parse_args()
    clock = Clock(60 * asked.minutes - CLOSING_SECONDS)
    sizes = {'full': FULL, 'small': SMALL}[asked.sizes or ('full' if asked.device == 'cuda' else 'small')]
    host_bytes = parse_bytes(asked.host_memory) if asked.host_memory else (
        os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE'))
    budget_bytes = parse_bytes(asked.budget or sizes.budget)
    programme = Programme(asked.device, budget_bytes, sizes, asked.tf32,
                          int(SHARE_PINNED * host_bytes) if asked.host_memory else None,
                          asked.out if asked.profile else None)
    parts = chosen(programme.parts(), asked.parts, asked.stage)
    said = (f'device {asked.device}: {sizes.network}, batches {" ".join(map(str, sizes.batches))}, budget '
            f'{format_bytes(budget_bytes)}, host memory {format_bytes(host_bytes)}')
    print(said, flush=True)
    asked.out.mkdir(parents=True, exist_ok=True)
    log = asked.out / f'log-{asked.stage or "all"}.txt'
    log.unlink(missing_ok=True)
    with Kernels(asked.out, asked.kernels) as kernels, Worker(log=log) as worker:
        device = worker.ask('describe', {'device': asked.device}, min(DESCRIBE_SECONDS, clock.left()))
        if device.pop('outcome') != 'done':
            print(f"no device answered ({device['reason']}); docs/gpu.md says what is needed, and {log} what was said",
                  file=sys.stderr)
            return 1
        facts = {'began': time.strftime('%Y-%m-%d %H:%M:%S %Z'), 'sizes': said, **_plain(device)}
        files = Files(asked.out, facts, _options(asked), asked.stage)
        print(f"{device['device']}: {files.json}, {files.markdown}", flush=True)

        def note(so_far: list[dict[str, Any]]) -> None:
            tell(files, so_far)
            if so_far[-1]['state'] != 'running':
                kernels.keep()

        conductor = Conductor(worker, clock, host_bytes, note)
        done = conductor.conduct(parts)
    rows = [row for part in done for row in part['rows']]
    print(f'{sum(row["outcome"] == "done" for row in rows)} of {len(rows)} rows of {len(done)} parts in '
          f'{60 * asked.minutes - CLOSING_SECONDS - clock.left():.0f} s')
    return 0


def chosen(parts: Sequence[Part], names: Sequence[str] | None, stage: str | None) -> list[Part]:
    """The parts of these names or of a stage, in the programme's order; without either, all that need not be named.

    Raises:
        SystemExit: there is no part of some name.
    """
    if names is None:
        return [part for part in parts if part.stage and stage in (None, part.stage)]
    unknown = sorted(set(names) - {part.name for part in parts})
    if unknown:
        raise SystemExit(f'no part is called {", ".join(unknown)}; there are: '
                         f'{", ".join(part.name for part in parts)}')
    return [part for part in parts if part.name in names]


def tell(files: Files, parts: Sequence[dict[str, Any]]) -> None:
    """Writes what there is, and prints what came last."""
    files.write(parts)
    last = parts[-1]
    if last['state'] == 'done':
        return
    row = last['rows'][-1]
    what = ' '.join(str(row[name]) for name in ('network', 'batch', 'policy', 'allocator', 'mode', 'nbytes')
                    if row.get(name) is not None)
    took = f"{row['seconds']:.3f} s an iteration" if 'seconds' in row else ''
    whole = f"({row['row_seconds']:.0f} s)" if 'row_seconds' in row else ''
    said = (what, row['outcome'], took, whole, row.get('reason'))
    print(f"  {last['name']}: {' '.join(filter(None, said))}", flush=True)


def _plain(device: dict[str, Any]) -> dict[str, Any]:
    """What the device said of itself, without what is a row's."""
    return {name: value for name, value in device.items()
            if name not in ('evidence', 'row_seconds', 'worker_seconds', 'start_seconds', 'fresh_process')}


def _options(asked: argparse.Namespace) -> dict[str, Any]:
    return {name.replace('_', '-'): ' '.join(value) if isinstance(value, list) else value
            for name, value in vars(asked).items() if value not in (None, False) and name not in ('out', 'kernels')}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog='See benchmarks/gpu/README.md.')
    parser.add_argument('--stage', choices=STAGES, help='the parts of one command on a rented machine (all)')
    parser.add_argument('--minutes', type=float, default=MINUTES, metavar='N', help='for everything (%(default)s)')
    parser.add_argument('--parts', nargs='+', metavar='NAME', help='only these')
    parser.add_argument('--out', type=pathlib.Path, default=pathlib.Path('result'), metavar='DIR', help='(%(default)s)')
    parser.add_argument('--budget', metavar='BYTES', help='near memory out-of-core (16GB; 8MB without a GPU)')
    parser.add_argument('--device', choices=['cuda', 'host'], default='cuda', help='(%(default)s)')
    parser.add_argument('--tf32', action='store_true', help='tensor cores for float32')
    parser.add_argument('--profile', action='store_true', help='rows that train run two iterations more, under '
                        "PyTorch's profiler and Python's, and leave a trace")
    parser.add_argument('--sizes', choices=['full', 'small'], help='small ones try the programme itself, and are the '
                        'default without a GPU')
    parser.add_argument('--host-memory', metavar='BYTES', help='of the machine, where it shows less at first (what it '
                        'shows); three quarters of it may be pinned')
    parser.add_argument('--kernels', type=pathlib.Path, metavar='TAR', help='kernels that an earlier run has compiled')
    return parser


if __name__ == '__main__':
    sys.exit(main())
