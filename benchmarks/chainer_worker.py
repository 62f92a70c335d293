"""Our side of `pytorch.py`: trains a network of `examples/models` when told to.

    python chainer_worker.py '{"network": "resnet50", "batchsize": 16, "side": 224, "entries": {"ooc": "keep"}, ...}'

`entries` are those of chainer.config; none is plain Chainer. A budget that is refused is raised to 1.02 times the floor
that the refusal names. It is ready when no better plan is looked for and the plan has been the same for six iterations:
plans are made again from what iterations took, after two others, then after four (`execute/graphs/times.py`).
"""
from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import json
import sys
from typing import Any

from turn_worker import SETTLE, Voice, limit_memory, memory_bytes

LEARNING_RATE = 1e-5  # the batch is noise: a larger one diverges
MARGIN = 1.02  # above a floor that a refusal names
MOST_REFUSALS = 10
SAME_PLAN = 6
MOST_SETTLE = 40


def main() -> None:
    voice, row = Voice(), json.loads(sys.argv[1])
    limit_memory(row['limit_bytes'])
    import surroundings  # noqa: F401  puts the examples on the path, and chainer_ooc before chainer

    # isort: split
    import chainer_ooc

    imported_bytes = memory_bytes('VmRSS')
    training = Training(row)
    try:
        about = {**training.about(), 'imported_bytes': imported_bytes, 'versions': versions()}
        if row['settle']:
            training.settle()
        stats = chainer_ooc.stats()
        voice.say({**about, 'peak_bytes': memory_bytes('VmHWM'), 'budget_bytes': training.entries.get('ooc_budget'),
                   'refusals': training.refusals, 'losses': training.losses, **figures_of(stats)})
        voice.serve(training.iterate, chainer_ooc.plan)
    finally:
        chainer_ooc.reset()


class Training:
    """A network, its optimizer and a batch that stays.

    Args:
        row: As on the command line.

    Attributes:
        entries: Of chainer.config.
        refusals: Of budgets, so far.
        losses: Of the iterations so far.

    Raises:
        OSError: oneDNN is to compute, and what goes with it was not built.
    """

    def __init__(self, row: dict[str, Any]) -> None:
        import chainer
        import numpy

        from chainer_ooc import extension
        from models import ARCHITECTURES

        if row['entries'].get('use_ideep') in ('auto', 'always') and versions()['oneDNN'] != 'none':
            extension.load(ctypes.CDLL, 'kernels', 'onednn', '_batch_norm')  # without it NumPy computes, at a third
        numpy.random.seed(0)
        random = numpy.random.default_rng(0)
        self.entries = {name: value for name, value in row['entries'].items() if value is not None}
        self.refusals = 0
        self.losses: list[float] = []
        with self._made():
            self._chain = ARCHITECTURES[row['network']].build()
        self._optimizer = chainer.optimizers.MomentumSGD(lr=LEARNING_RATE).setup(self._chain)
        self._images = random.standard_normal((row['batchsize'], 3, row['side'], row['side']), dtype=numpy.float32)
        self._labels = numpy.arange(row['batchsize'], dtype=numpy.int32) % 1000
        self._reporter = chainer.Reporter()
        self._reporter.add_observer('main', self._chain)

    def about(self) -> dict[str, Any]:
        """Shapes of the weights and outputs of all layers with weights, for one image, and the number of parameters."""
        import chainer

        layers: list[Any] = []

        class Note(chainer.LinkHook):
            def forward_postprocess(self, args: Any) -> None:
                weight = getattr(args.link, 'W', getattr(args.link, 'gamma', None))
                if weight is not None:
                    layers.append([list(weight.shape), list(args.out.shape)])

        with self._made(), chainer.using_config('train', False), chainer.no_backprop_mode(), Note():
            self._chain(self._images[:1], self._labels[:1])
        return {'parameters': self._chain.count_params(), 'layers': layers}

    def _made(self) -> contextlib.AbstractContextManager[Any]:
        """What parameters are made under: the entries, where they say where those lie."""
        from surroundings import configured

        return configured(self.entries) if 'ooc_parameters' in self.entries else contextlib.nullcontext()

    def settle(self) -> None:
        """Runs until the plan stays."""
        import chainer_ooc

        plan, same = None, 0
        for number in range(MOST_SETTLE):
            self.iterate()
            latest = chainer_ooc.plan()
            stats = chainer_ooc.stats()
            stays = latest is plan and not (stats is not None and stats.is_searching)
            plan, same = latest, same + 1 if stays else 1
            needed = SAME_PLAN if 'ooc' in self.entries else SETTLE
            if number + 1 >= SETTLE and same >= needed and (plan is not None or 'ooc' not in self.entries):
                return

    def iterate(self) -> float:
        """Runs one iteration and returns its loss.

        Raises:
            InfeasibleBudgetError, DeviceMemoryError: The budget was refused ten times.
        """
        from chainer_ooc.errors import DeviceMemoryError, InfeasibleBudgetError

        while True:
            try:
                return self._iterate()
            except (InfeasibleBudgetError, DeviceMemoryError) as error:
                self.refusals += 1
                if 'ooc_budget' not in self.entries or self.refusals > MOST_REFUSALS:
                    raise
                floor_bytes = max(error.floor_bytes, self.entries['ooc_budget'])
            self.entries['ooc_budget'] = int(floor_bytes * MARGIN)

    def _iterate(self) -> float:
        from surroundings import configured

        observed: dict[str, Any] = {}
        with self._reporter.scope(observed), configured(self.entries):
            self._optimizer.update(self._chain, self._images, self._labels)
        self.losses.append(float(observed['main/loss'].array))
        return self.losses[-1]


def figures_of(stats: Any) -> dict[str, Any]:
    """What a row says of the last iteration before it was ready."""
    if stats is None:
        return {'accounted_bytes': None}
    return {'accounted_bytes': stats.peak_bytes, 'predicted_seconds': stats.predicted_seconds,
            'swapped_out_bytes': stats.swapped_out_bytes, 'swapped_in_bytes': stats.swapped_in_bytes,
            'verdicts': f'{stats.keep}/{stats.swap}/{stats.recompute}'}


def versions() -> dict[str, str]:
    """Of what computes."""
    import chainer
    import numpy

    try:
        onednn = importlib.metadata.version('onednn-cpu-gomp')
    except importlib.metadata.PackageNotFoundError:
        onednn = 'none'
    return {'chainer': chainer.__version__, 'NumPy': numpy.__version__, 'oneDNN': onednn}


if __name__ == '__main__':
    main()
