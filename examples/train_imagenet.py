"""Trains an ImageNet network with Chainer, in memory that is too small for it where a policy is given.

    python examples/train_imagenet.py --arch resnet50 --policy auto --wall 1300MB
    python examples/train_imagenet.py --arch alexnet --policy auto --compare
    python examples/train_imagenet.py --images photos/ --iterations 1000 --snapshot-every 100
    python examples/train_imagenet.py --images photos/ --iterations 2000 --resume result/snapshot_iter_1000

Exit status: 0 when the training went through (with `--compare`: and gave the same to the last bit), 2 when it was
refused (an option or image that cannot be used, a budget too small, a full disk), 3 when it ended with MemoryError.
"""
import argparse
import sys

import chainer_ooc  # noqa: F401  before chainer, which it patches as it is imported

# isort: split
from chainer_ooc.errors import OocError
from chainer_ooc.quantities import counted
from options import Options, add_arguments, read_options

REFUSED, OUT_OF_MEMORY, INTERRUPTED = 2, 3, 130


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description='Trains an ImageNet network with Chainer, out-of-core if wanted.')
    add_arguments(parser)
    parser.add_argument('--compare', action='store_true',
                        help='train in-core beside out-of-core, each in a process of its own, and compare')
    parsed = parser.parse_args(arguments)
    try:
        options = read_options(parsed)
        return compare(options) if parsed.compare else train_once(options)
    except (OocError, ValueError, OSError) as error:
        print(f'{parser.prog}: {error}', file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        print(f'{parser.prog}: stopped', file=sys.stderr)
        return INTERRUPTED


def train_once(options: Options) -> int:
    """Trains in this process."""
    from training import OutOfMemoryError, train

    kind = 'plain Chainer' if options.policy is None else f'policy {options.policy}'
    print(f'{options.title}, {counted(options.iterations, "iteration")}, {kind}', flush=True)
    try:
        train(options)
    except OutOfMemoryError as error:
        print(error, file=sys.stderr)
        return OUT_OF_MEMORY
    return 0


def compare(options: Options) -> int:
    """Trains in-core and out-of-core, each in a process of its own."""
    from comparison import compare_trainings

    return 0 if compare_trainings(options) else 1


if __name__ == '__main__':
    sys.exit(main())
