"""A network bigger than its memory: plain Chainer dies, the same training goes through out-of-core.

    python examples/demo.py

Three trainings of ResNet50, each in a process of its own: plain Chainer behind a wall, out-of-core behind the same
wall, and plain Chainer without a wall to compare with. Takes a few minutes on two cores. Leaves a table, its figures as
JSON and a picture of memory over time. Exit status: 0 when all three ended as they should and computed the same.
"""
import argparse
import pathlib
import sys

import chainer_ooc  # noqa: F401  before chainer, which it patches as it is imported

# isort: split
from chainer_ooc.cli.arguments import positive
from chainer_ooc.errors import OocError
from chainer_ooc.quantities import counted
from comparison import DEFAULT_POLICY, in_core, run_and_say, run_with_workspace, show_comparison
from options import Options, amount
from status_line import StatusLine
from training_run import Outcome


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    options = read_arguments(arguments)
    try:
        options.check()
        return show(options, StatusLine())
    except (OocError, ValueError, OSError) as error:
        print(f'demo.py: {error}', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print('demo.py: stopped', file=sys.stderr)
        return 130


def show(options: Options, status: StatusLine) -> int:
    """Runs the trainings one after the other and compares them."""
    wall = f'{options.wall_bytes / 1e6:,.0f} MB'
    status.say(f'{options.title}: {counted(options.iterations, "iteration")}, three times, a few minutes in all\n')
    status.say(f'1. plain Chainer, with private memory limited to {wall} (it should die of MemoryError)')
    plain = Options(**{**vars(in_core(options)), 'wall_bytes': options.wall_bytes})
    walled = run_and_say('plain, walled', plain, options.out, status)
    status.say(f"\n2. the same behind the same wall with chainer.config.ooc = '{options.policy}'")
    ooc = run_and_say(f'{options.policy}, walled', options, options.out, status)
    status.say('\n3. plain Chainer again, with all the memory it wants')
    free = run_and_say('plain, no wall', in_core(options), options.out, status)
    same = show_comparison([walled, ooc, free, *run_with_workspace(options, status)], free, options, status)
    as_promised = (walled.outcome, ooc.outcome) == (Outcome.OUT_OF_MEMORY, Outcome.FINISHED)
    status.say(f'\nBehind a wall of {wall} plain Chainer died and out-of-core trained, to the last bit the same.'
               if same and as_promised else '\nThat did not go as it should: the table says where.')
    return 0 if same and as_promised else 1


def read_arguments(arguments: list[str] | None) -> Options:
    """Reads the command line into the options of the out-of-core training."""
    parser = argparse.ArgumentParser(description='Trains ResNet50 behind a wall, in-core and out-of-core.')
    parser.add_argument('--wall', type=amount, default=amount('1300MB'), metavar='BYTES', help='(1300MB)')
    parser.add_argument('--batchsize', type=positive, default=16, metavar='N', help='(%(default)s)')
    parser.add_argument('--crop', type=positive, default=224, metavar='PIXELS', help='side of an image (%(default)s)')
    parser.add_argument('--iterations', type=positive, default=4, metavar='N', help='(%(default)s)')
    parser.add_argument('--policy', default=DEFAULT_POLICY, metavar='NAME', help='(%(default)s)')
    parser.add_argument('--workspace', metavar='BYTES', help="chainer.config.ooc_workspace (Chainer's own way)")
    parser.add_argument('--out', type=pathlib.Path, default=pathlib.Path('result'), metavar='DIR',
                        help='folder for table and picture (%(default)s)')
    parsed = parser.parse_args(arguments)
    return Options(policy=parsed.policy, workspace=parsed.workspace, batchsize=parsed.batchsize, crop=parsed.crop,
                   iterations=parsed.iterations, wall_bytes=parsed.wall, out=parsed.out)


if __name__ == '__main__':
    sys.exit(main())
