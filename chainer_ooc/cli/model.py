"""A model that comes without a batch, and is run on random images: one of the examples, or the user's own."""

from __future__ import annotations

import importlib
import inspect
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chainer_ooc.backends.host import limits
from chainer_ooc.cli import programs
from chainer_ooc.cli.answer import UsageError, message
from chainer_ooc.errors import InfeasibleBudgetError, OocError
from chainer_ooc.profiling.profile import LEAST, Training, record
from chainer_ooc.quantities import format_bytes, format_enough
from chainer_ooc.trace import Trace

NAMES = ('alexnet', 'googlenet', 'resnet50', 'vgg16')
#: The next step for what cannot be run on images.
WITH_BATCH = 'have it return the model together with its batch: (model, (x, t)), or (model, {name: array})'
_EXAMPLES = Path(__file__).resolve().parents[2] / 'examples'


class ModelTooLargeError(OocError):
    """The model does not fit into memory under the policy that is in force."""


@dataclass(frozen=True)
class Model:
    """A chain, and how it is called.

    Attributes:
        name: as the command line has it.
        chain: a chainer.Chain.
        takes_labels: it is called with images and labels and returns the loss; else with images alone, and the loss is
            softmax cross entropy over what it returns.
        optimizer: updates it after each iteration; None if nothing does.
    """

    name: str
    chain: Any
    takes_labels: bool
    optimizer: Any = None

    @property
    def is_updated(self) -> bool:
        """Whether an optimizer runs, whose state is in the trace."""
        return self.optimizer is not None

    def to_device(self, name: str) -> None:
        """Moves the chain, and the images of later iterations, to a device that Chainer knows by this name.

        Raises:
            OocError: there is none here.
        """
        import chainer

        try:
            device = chainer.get_device(name)
            device.use()
            self.chain.to_device(device)
        except Exception as error:  # CuPy's errors have no class where CuPy is missing
            raise OocError(f'--device {name} cannot be used: {message(error)}; write @numpy, or a GPU as @cupy:0; '
                           '"chainer-ooc doctor" tells what is missing for one') from None

    def record(self, policy: str, batchsize: int, insize: int) -> Trace:
        """Records it under a policy on random images, float32, ``(batchsize, 3, insize, insize)``.

        Raises:
            ModelTooLargeError: it does not fit into memory.
            OocError: the chain refuses the images or returns no loss.
        """
        roots = {'chain': self.chain, 'optimizer': self.optimizer}
        return record(Training(lambda: self._iterate((batchsize, 3, insize, insize)), roots, is_kept=False), policy)

    def _iterate(self, shape: tuple[int, ...]) -> None:
        """One forward and backward pass over random images of a shape, and the update."""
        import chainer
        import numpy as np
        from chainer.utils.type_check import InvalidType

        self._need_room(shape)
        advice = 'choose a smaller batch or --insize'
        if chainer.config.ooc != LEAST:
            advice += f', or --policy {LEAST}'
        try:
            images = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
            labels = np.zeros(len(images), np.int32)
            loss = self._loss(*map(self.chain.device.send, (images, labels)))
            self.chain.cleargrads()
            loss.backward()
            if self.optimizer is not None:
                self.optimizer.update()
            return
        except InfeasibleBudgetError as error:
            finding = error.finding
            if chainer.config.ooc_budget is not None:
                advice = f'raise --budget, {advice}'
        except MemoryError:
            finding = f'{self.name} on images {shape} needs more memory than there is'
        except OocError:
            raise
        except (InvalidType, AssertionError, ValueError) as error:
            if not programs.is_raised_in(error, chainer):
                raise programs.failed(f'{self.name} cannot be trained on images {shape}', error) from None
            raise OocError(f'{self.name} cannot be trained on images {shape}: {message(error)}{programs.place(error)}; '
                           'choose another --insize, or a chain for such images') from None
        except Exception as error:
            raise programs.failed(f'{self.name} cannot be trained on images {shape}', error) from None
        # Behind the handlers: an error that had those as its context would hold their frames, and so the graph.
        raise ModelTooLargeError(f'{finding}; {advice}')

    def _need_room(self, shape: tuple[int, ...]) -> None:
        """Refuses images for which alone there is no memory: a system that promises more than it has would kill."""
        nbytes, free_bytes = 4 * math.prod(shape), limits.free_bytes()
        if nbytes > free_bytes:
            raise OocError(f'{self.name} on images {shape} needs more memory than there is: {format_enough(nbytes)} '
                           f'for the images alone, and {format_bytes(free_bytes)} are free; choose a smaller '
                           'batch or --insize')

    def _loss(self, images: Any, labels: Any) -> Any:
        import chainer.functions as F
        from chainer import Variable

        found = self.chain(images, labels) if self.takes_labels else self.chain(images)
        if not (isinstance(found, Variable) and found.dtype.kind == 'f'):
            kind = f'{type(found).__name__} {getattr(found, "dtype", "")}'.rstrip()
            raise OocError(f'{self.name} returned {kind}, not a Variable of floating point numbers; name a chain that '
                           'returns scores, or, where it takes labels, the loss')
        return found if self.takes_labels else F.softmax_cross_entropy(F.reshape(found, (len(images), -1)), labels)


def model_of(name: str, chain: Any) -> Model:
    """Finds out how a link is called.

    Raises:
        UsageError: not with images, nor with images and labels.
    """
    import chainer

    if isinstance(chain, chainer.links.Classifier):
        if chain.label_key != -1:
            raise UsageError(f'{name} is a Classifier that is given its labels as {chain.label_key!r}; {WITH_BATCH}')
        return Model(name, chain, takes_labels=True)
    arguments = _required_arguments(chain)
    if arguments > 2:
        raise UsageError(f'{name} takes {arguments} arguments, not images, or images and labels; {WITH_BATCH}')
    return Model(name, chain, takes_labels=arguments == 2)


def example_module(module: str, name: str, otherwise: str = '') -> Any:
    """Imports a module of the examples, such as ``'models'``, to look for a name in it.

    Raises:
        OocError: this is no checkout; the message ends with `otherwise`.
    """
    if not (_EXAMPLES / 'models').is_dir():
        raise OocError(f'{name} is one of the examples, which a checkout has and an installed chainer_ooc has not '
                       f'(looked in {_EXAMPLES}); run this in a checkout{otherwise}')
    if str(_EXAMPLES) not in sys.path:
        sys.path.insert(0, str(_EXAMPLES))
    return importlib.import_module(module)


def example(name: str) -> Callable[[], object]:
    """What makes one of the examples' networks.

    Raises:
        OocError: this is no checkout.
    """
    models = example_module('models', name, ', or name a model as module:attribute')
    return models.ARCHITECTURES[name].build  # type: ignore[no-any-return]


def _required_arguments(chain: Any) -> int:
    import chainer

    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    # Chains may still have a `__call__` of their own, as all had up to Chainer 4.
    called = chain.forward if type(chain).__call__ is chainer.Link.__call__ else chain
    parameters = inspect.signature(called).parameters.values()
    return sum(each.kind in positional and each.default is each.empty for each in parameters)
