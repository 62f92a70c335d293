"""The whole GPU programme by one command: one JSON and one Markdown file, named by the device.

    python benchmarks/gpu/run.py
    python benchmarks/gpu/run.py --minutes 4 --parts batch-640 bits --out results
    python benchmarks/gpu/run.py --device host --sizes small --budget 40MB --out trial

Parts run in the order of their importance and results are written after each row, so that a programme that is killed
has lost nothing. `--device host` runs the same on a machine without a GPU, to try the programme itself.
"""
from __future__ import annotations

import argparse
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
for folder in (HERE, HERE.parent.parent):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))

from conduct import Clock, conduct  # noqa: E402
from processes import Worker  # noqa: E402
from programme import FULL, SMALL, Part, Programme  # noqa: E402
from results import Files  # noqa: E402

from chainer_ooc.quantities import parse_bytes  # noqa: E402

MINUTES = 8.0
DESCRIBE_SECONDS = 120.0
SHARE_OF_TIME = 0.95  # the rest is for writing files and ending processes


def main() -> int:
    asked = _parser().parse_args()
    clock = Clock(60 * asked.minutes)
    programme = Programme(
        asked.device, parse_bytes(asked.budget), {'full': FULL, 'small': SMALL}[asked.sizes], asked.tf32)
    parts = chosen(programme.parts(), asked.parts)
    with Worker() as worker:
        device = worker.ask('describe', {'device': asked.device}, min(DESCRIBE_SECONDS, clock.left()))
        if device.pop('outcome') != 'done':
            print(f"no device answered ({device['reason']}); docs/gpu.md says what is needed", file=sys.stderr)
            return 1
        device.pop('row_seconds')
        began = time.strftime('%Y-%m-%d %H:%M:%S %Z')
        files = Files(asked.out, {**device, 'began': began}, _options(asked))
        print(f"{device['device']}: {files.json}, {files.markdown}", flush=True)
        done = conduct(parts, worker, clock, stretch(parts, clock.left()), lambda so_far: note(files, so_far))
    print(f'{sum(part["state"] == "done" for part in done)} of {len(done)} parts in '
          f'{60 * asked.minutes - clock.left():.0f} s')
    return 0


def stretch(parts: Sequence[Part], seconds: float) -> float:
    """How many times what they state parts may take, so that all the time is used; never less than once."""
    return max(1.0, SHARE_OF_TIME * seconds / sum(part.most_seconds for part in parts))


def chosen(parts: Sequence[Part], names: Sequence[str] | None) -> list[Part]:
    """The parts of these names in the programme's order; without names, all that need not be asked for.

    Raises:
        SystemExit: there is no part of some name.
    """
    if names is None:
        return [part for part in parts if not part.on_request]
    unknown = sorted(set(names) - {part.name for part in parts})
    if unknown:
        raise SystemExit(f'no part is called {", ".join(unknown)}; there are: '
                         f'{", ".join(part.name for part in parts)}')
    return [part for part in parts if part.name in names]


def note(files: Files, parts: Sequence[dict[str, Any]]) -> None:
    """Writes what there is, and prints what came last."""
    files.write(parts)
    last = parts[-1]
    if last['state'] == 'done':
        return
    row = last['rows'][-1] if last['rows'] else {}
    what = ' '.join(str(row[name]) for name in ('network', 'batch', 'policy', 'allocator', 'mode', 'nbytes')
                    if row.get(name) is not None)
    took = f"{row['seconds']:.3f} s an iteration" if 'seconds' in row else ''
    said = (what, row.get('outcome', last['state']), took, row.get('reason') or last.get('reason'))
    print(f"  {last['name']}: {' '.join(filter(None, said))}", flush=True)


def _options(asked: argparse.Namespace) -> dict[str, Any]:
    return {name: ' '.join(value) if isinstance(value, list) else value
            for name, value in vars(asked).items() if value not in (None, False) and name != 'out'}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog='See benchmarks/gpu/README.md.')
    parser.add_argument('--minutes', type=float, default=MINUTES, metavar='N', help='for everything (%(default)s)')
    parser.add_argument('--parts', nargs='+', metavar='NAME', help='only these (all)')
    parser.add_argument('--out', type=pathlib.Path, default=pathlib.Path('result'), metavar='DIR', help='(%(default)s)')
    parser.add_argument('--budget', default='16GB', metavar='BYTES', help='near memory out-of-core (%(default)s)')
    parser.add_argument('--device', choices=['cuda', 'host'], default='cuda', help='(%(default)s)')
    parser.add_argument('--tf32', action='store_true', help='tensor cores for float32, with a workspace of 1.1 GB')
    parser.add_argument('--sizes', choices=['full', 'small'], default='full',
                        help='small ones try the programme itself (%(default)s)')
    return parser


if __name__ == '__main__':
    sys.exit(main())
