"""The options of the training example: one frozen value, read from a command line and written back to one.

They are written back because a comparison runs each training in a process of its own. Left out: what only the
dispatching command needs (`--compare`, `--out` of a comparison); `train_imagenet.py` adds that.
"""
from __future__ import annotations

import argparse
import dataclasses
import pathlib

import chainer_ooc.config
from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.cli.arguments import positive
from chainer_ooc.quantities import parse_bytes
from models import ARCHITECTURES


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """One training.

    Attributes:
        arch: A name in `models.ARCHITECTURES`.
        device: Where to train, as Chainer names it: '@numpy' is the host, '@cupy:0' the first GPU.
        policy: The value of `chainer.config.ooc`; None is plain Chainer.
        budget: The value of `chainer.config.ooc_budget`, or None.
        workspace: The value of `chainer.config.ooc_workspace`, or None.
        spill_dir: The value of `chainer.config.ooc_spill_dir`, or None.
        batchsize: Images per iteration; None takes the network's own.
        iterations: Iterations in all, those before a resumed snapshot included.
        crop: Width and height of an image in pixels.
        learning_rate: Of momentum SGD; None takes the network's own.
        seed: Of weights, dropout and data.
        images: A folder of images, or None for the bundled photographs.
        wall_bytes: Limit on private memory (RLIMIT_DATA) from before training on, or None.
        snapshot_every: Iterations between two snapshots; 0 writes none.
        resume: A snapshot to go on from, or None.
        out: Folder of log and snapshots.
        journal: A file that gets one JSON line per iteration, or None.
    """

    arch: str = 'resnet50'
    device: str = '@numpy'
    policy: str | None = None
    budget: str | None = None
    workspace: str | None = None
    spill_dir: str | None = None
    batchsize: int | None = None
    iterations: int = 10
    crop: int = 224
    learning_rate: float | None = None
    seed: int = 0
    images: pathlib.Path | None = None
    wall_bytes: int | None = None
    snapshot_every: int = 0
    resume: pathlib.Path | None = None
    out: pathlib.Path = pathlib.Path('result')
    journal: pathlib.Path | None = None

    @property
    def images_per_iteration(self) -> int:
        """The batch size in force."""
        return self.batchsize or ARCHITECTURES[self.arch].batchsize

    @property
    def title(self) -> str:
        """What is trained, for headings."""
        return f'{ARCHITECTURES[self.arch].title}, batch {self.images_per_iteration}, {self.crop}x{self.crop}'

    @property
    def config_entries(self) -> dict[str, str]:
        """The entries of chainer.config that a training sets; none for plain Chainer."""
        entries = {'ooc': self.policy, 'ooc_budget': self.budget, 'ooc_workspace': self.workspace,
                   'ooc_spill_dir': self.spill_dir}
        return {name: value for name, value in entries.items() if value is not None}

    def check(self) -> None:
        """Refuses what cannot work, before anything is started.

        Raises:
            ValueError: The crop is too small for the network, there is no such snapshot, what is to be a folder is a
                file, or an entry of chainer.config cannot have its value.
        """
        smallest = ARCHITECTURES[self.arch].smallest_crop
        if self.crop < smallest:
            raise ValueError(f'--crop {self.crop} is too small: {self.arch} needs images of {smallest}x{smallest} '
                             'pixels or more; raise --crop')
        if self.resume is not None and not self.resume.is_file():
            raise ValueError(f'--resume {self.resume}: there is no such file; name a snapshot, such as '
                             f'{self.out}/snapshot_iter_100, which --snapshot-every writes')
        if self.out.exists() and not self.out.is_dir():
            raise ValueError(f'--out {self.out} is a file; name a folder')
        for name, value in self.config_entries.items():
            chainer_ooc.config.check(name, value)

    def to_arguments(self) -> list[str]:
        """The command-line arguments that give these options again."""
        arguments = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None:
                name = 'wall' if field.name == 'wall_bytes' else field.name.replace('_', '-')
                arguments += [f'--{name}', str(value)]
        return arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds one argument per option; the defaults are those of `Options`."""
    usual = Options()
    training = parser.add_argument_group('training')
    training.add_argument('--arch', choices=sorted(ARCHITECTURES), default=usual.arch, help='network (%(default)s)')
    training.add_argument('--device', default=usual.device, metavar='NAME',
                          help='@numpy or a GPU, @cupy:0 (%(default)s)')
    training.add_argument('--batchsize', type=positive, metavar='N',
                          help='images per iteration (' + ', '.join(
                              f'{row.name} {row.batchsize}' for row in ARCHITECTURES.values()) + ')')
    training.add_argument('--iterations', type=positive, default=usual.iterations, metavar='N', help='(%(default)s)')
    training.add_argument('--crop', type=positive, default=usual.crop, metavar='PIXELS',
                          help='side of an image (%(default)s)')
    training.add_argument('--learning-rate', type=float, metavar='X', help='of momentum SGD (0.01; vgg16 0.001)')
    training.add_argument('--seed', type=int, default=usual.seed, help='of weights, dropout and data (%(default)s)')
    training.add_argument('--images', type=pathlib.Path, metavar='DIR',
                          help='train on these images; classes are sub-folders, or files where there are none '
                               '(default: photographs bundled with scikit-image and scikit-learn)')
    training.add_argument('--snapshot-every', type=count, default=usual.snapshot_every, metavar='N',
                          help='iterations between two snapshots (%(default)s: none)')
    training.add_argument('--resume', type=pathlib.Path, metavar='SNAPSHOT', help='go on from this snapshot')
    training.add_argument('--out', type=pathlib.Path, default=usual.out, metavar='DIR',
                          help='folder for log, snapshots and results (%(default)s)')
    memory = parser.add_argument_group('memory')
    memory.add_argument('--policy', type=policy, metavar='NAME',
                        help=(
        f'chainer.config.ooc: {", ".join(POLICIES)} (None: plain Chainer)'))
    memory.add_argument('--budget', metavar='BYTES', help='chainer.config.ooc_budget, such as 600MB (what is free)')
    memory.add_argument('--workspace', metavar='BYTES', help="chainer.config.ooc_workspace (Chainer's own way)")
    memory.add_argument('--spill-dir', metavar='DIR', help='chainer.config.ooc_spill_dir (the temporary folder)')
    memory.add_argument('--wall', dest='wall_bytes', type=amount, metavar='BYTES',
                        help='limit private memory to this (RLIMIT_DATA), such as 1300MB')
    memory.add_argument('--journal', type=pathlib.Path, metavar='FILE', help=argparse.SUPPRESS)


def read_options(arguments: argparse.Namespace) -> Options:
    """Takes the options out of parsed arguments.

    Raises:
        ValueError: One of them cannot be used.
    """
    options = Options(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(Options)})
    options.check()
    return options


def count(text: str) -> int:
    """Reads a whole number of at least 0."""
    return 0 if text.strip() == '0' else positive(text)


def amount(text: str) -> int:
    """Reads an amount of memory."""
    try:
        value = parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if value < 1:
        raise argparse.ArgumentTypeError(f'{text} is no amount of memory; write something like 1300MB')
    return value


def policy(text: str) -> str | None:
    """Reads a policy's name; 'None' is plain Chainer."""
    return None if text.lower() == 'none' else text
