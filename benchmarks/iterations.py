"""One training, taken an iteration at a time, so that a benchmark can take turns between two of them.

Dropout draws from NumPy's global random stream; it is seeded anew before every iteration, so that two trainings in one
process draw the same.
"""
from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import chainer
import numpy

from models import ARCHITECTURES
from photographs import RandomCrops, bundled_photographs
from surroundings import configured

SEED = 0
CHECKED = 3  # iterations after which the states of two trainings are compared


class Training:
    """A network, its optimizer and its data, run under some entries of chainer.config.

    Args:
        network: A name in `models.ARCHITECTURES`.
        batchsize: Images per iteration; None takes the network's own.
        crop: Side of an image in pixels.
        entries: Entries of chainer.config during an iteration; none is plain Chainer.
        multi_node: Makes an optimizer over several ranks of one of this process.

    Attributes:
        entries: The same; they may be changed between iterations.
    """

    def __init__(self, network: str, batchsize: int | None, crop: int, entries: Mapping[str, Any],
                 multi_node: Callable[[Any], Any] = lambda optimizer: optimizer) -> None:
        architecture = ARCHITECTURES[network]
        numpy.random.seed(SEED)
        self.chain = architecture.build()
        self.batchsize = batchsize or architecture.batchsize
        self._optimizer = multi_node(chainer.optimizers.MomentumSGD(lr=architecture.learning_rate)).setup(self.chain)
        self._crops = RandomCrops(bundled_photographs(), crop, 10**9, SEED)
        self.entries = entries
        self._reporter = chainer.Reporter()
        self._reporter.add_observer('main', self.chain)
        self.losses: list[str] = []
        self.checked_state: dict[str, str] = {}

    def iterate(self) -> float:
        """Runs one iteration.

        Returns:
            float: Its seconds, from the first function to the last updated parameter.
        """
        start = len(self.losses) * self.batchsize
        images, labels = chainer.dataset.concat_examples(self._crops[start:start + self.batchsize])
        numpy.random.seed(SEED + len(self.losses))
        observed: dict[str, Any] = {}
        with self._reporter.scope(observed), configured(self.entries):
            began = time.perf_counter()
            self._optimizer.update(self.chain, images, labels)
            seconds = time.perf_counter() - began
        self.losses.append(float(observed['main/loss'].array).hex())
        if len(self.losses) == CHECKED:
            self.checked_state = self._digests()
        return seconds

    def iterate_twice(self) -> float:
        """Runs two iterations, and times the second.

        Where trainings take turns, the first one finds memory that the other training had no use for, which a virtual
        machine may have given back to its host meanwhile: fresh pages cost more than many computations.
        """
        self.iterate()
        return self.iterate()

    def _digests(self) -> dict[str, str]:
        """A digest of every parameter, running statistic and array of the optimizer, by the name it is saved under."""
        serializer = chainer.serializers.DictionarySerializer()
        serializer['chain'].save(self.chain)
        serializer['optimizer'].save(self._optimizer)
        return {name: hashlib.sha256(repr((value.dtype, value.shape)).encode() + value.tobytes()).hexdigest()
                for name, value in serializer.target.items()}
