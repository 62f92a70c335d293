"""Finds the model that a command line names, and runs it on random images.

The four networks by name are those of ``examples/models`` in a checkout; an installed package has no examples, and any
other model is named as ``module:attribute``, as entry points are.
"""

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
from chainer_ooc.cli.arguments import unknown
from chainer_ooc.errors import InfeasibleBudgetError, OocError
from chainer_ooc.quantities import format_bytes, format_enough

NAMES = ('alexnet', 'googlenet', 'resnet50', 'vgg16')
#: The policy that needs the least memory.
LEAST = 'swap-all'
_EXAMPLES = Path(__file__).resolve().parents[2] / 'examples'


class NoRoomError(OocError):
    """The model does not fit into memory under the policy that is in force."""


@dataclass(frozen=True)
class Model:
    """A chain, and how it is called.

    Attributes:
        name: as the command line has it.
        chain: a chainer.Chain.
        takes_labels: it is called with images and labels and returns the loss; else with images alone, and the loss is
            softmax cross entropy over what it returns.
    """

    name: str
    chain: Any
    takes_labels: bool

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
            raise OocError(f'--device {name} cannot be used: {message(error)}; `python -m chainer_ooc doctor` tells '
                           'what is missing for a GPU') from None

    def iterate(self, batchsize: int, insize: int) -> None:
        """One forward and backward pass over random images, float32, ``(batchsize, 3, insize, insize)``.

        Raises:
            NoRoomError: it does not fit into memory.
            OocError: the chain refuses the images or returns no loss.
        """
        import chainer
        import numpy as np
        from chainer.utils.type_check import InvalidType

        shape = batchsize, 3, insize, insize
        self._need_room(shape)
        advice = 'choose a smaller --batchsize or --insize'
        if chainer.config.ooc != LEAST:
            advice += f', or --policy {LEAST}'
        try:
            images = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
            labels = np.zeros(batchsize, np.int32)
            loss = self._loss(*map(self.chain.device.send, (images, labels)))
            self.chain.cleargrads()
            loss.backward()
            return
        except InfeasibleBudgetError as error:
            finding = error.finding
        except OocError:
            raise
        except MemoryError:
            finding = f'{self.name} on images {shape} needs more memory than there is'
        except (InvalidType, AssertionError, ValueError) as error:
            if not programs.is_raised_in(error, chainer):
                raise programs.failed(f'{self.name} cannot be trained on images {shape}', error) from None
            raise OocError(f'{self.name} cannot be trained on images {shape}: {message(error)}{programs.place(error)}; '
                           'choose another --insize, or a chain for such images') from None
        except Exception as error:
            raise programs.failed(f'{self.name} cannot be trained on images {shape}', error) from None
        # Behind the handlers: an error that had those as its context would hold their frames, and so the graph.
        raise NoRoomError(f'{finding}; {advice}')

    def _need_room(self, shape: tuple[int, ...]) -> None:
        """Refuses images for which alone there is no memory: a system that promises more than it has would kill."""
        nbytes, free_bytes = 4 * math.prod(shape), limits.free_bytes()
        if nbytes > free_bytes:
            raise OocError(f'{self.name} on images {shape} needs more memory than there is: {format_enough(nbytes)} '
                           f'for the images alone, and {format_bytes(free_bytes)} are free; choose a smaller '
                           '--batchsize or --insize')

    def _loss(self, images: Any, labels: Any) -> Any:
        import chainer.functions as F
        from chainer import Variable

        found = self.chain(images, labels) if self.takes_labels else self.chain(images)
        if not (isinstance(found, Variable) and found.dtype.kind == 'f'):
            kind = f'{type(found).__name__} {getattr(found, "dtype", "")}'.rstrip()
            raise OocError(f'{self.name} returned {kind}, not a Variable of floating point numbers; name a chain that '
                           'returns scores, or, where it takes labels, the loss')
        return found if self.takes_labels else F.softmax_cross_entropy(F.reshape(found, (len(images), -1)), labels)


def load_model(name: str) -> Model:
    """Makes the model.

    Args:
        name: one of `NAMES`, or ``module:attribute`` of a callable without arguments that returns a chain; the current
            folder is searched too.

    Raises:
        OocError: there is no such model.
    """
    import chainer

    chain = _call(name, _example(name) if name in NAMES else _attribute(name))
    if not isinstance(chain, chainer.Chain):
        raise OocError(f'{name} returns a {type(chain).__name__}, not a chainer.Chain; name a class or function that '
                       'returns one')
    arguments = _required_arguments(chain)
    if arguments > 2:
        raise OocError(f'{name} takes {arguments} arguments; name a chain that takes images, or images and labels')
    return Model(name, chain, takes_labels=arguments == 2)


def example_module(module: str, name: str, otherwise: str = '') -> Any:
    """Imports a module of the examples.

    Args:
        module: such as ``'models'``.
        name: what is looked for in it, for messages.
        otherwise: the end of the message, after the advice to run in a checkout.

    Raises:
        OocError: this is no checkout.
    """
    if not (_EXAMPLES / 'models').is_dir():
        raise OocError(f'{name} is one of the examples, which a checkout has and an installed chainer_ooc has not '
                       f'(looked in {_EXAMPLES}); run this in a checkout{otherwise}')
    if str(_EXAMPLES) not in sys.path:
        sys.path.insert(0, str(_EXAMPLES))
    return importlib.import_module(module)


def _example(name: str) -> Callable[[], object]:
    models = example_module('models', name, ', or name a model as module:attribute')
    return models.ARCHITECTURES[name].build  # type: ignore[no-any-return]


def _attribute(name: str) -> Any:
    module_name, colon, attribute = name.partition(':')
    if not (module_name and colon and attribute):
        raise UsageError(f'{unknown("model", name, NAMES)}, or module:attribute')
    if '' not in sys.path:  # python -m has it, the entry point has not
        sys.path.insert(0, '')
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise OocError(f'cannot import {module_name} for {name}: {error}; run this where it can be imported from, '
                       'or set PYTHONPATH') from None
    except OocError:
        raise
    except (Exception, SystemExit) as error:  # a script that has no `if __name__ == '__main__'` may end the process
        raise programs.failed(f'cannot import {module_name} for {name}', error) from None
    for part in attribute.split('.'):
        if not hasattr(found, part):
            raise OocError(f'{module_name} has no {attribute}; it has: {", ".join(_public_callables(found))}')
        found = getattr(found, part)
    return found


def _call(name: str, build: Any) -> object:
    if not callable(build):
        raise OocError(f'{name} is of type {type(build).__name__}, which cannot be called; name a class or function '
                       'that returns a chainer.Chain')
    try:
        return build()
    except OocError:
        raise
    except MemoryError:
        raise NoRoomError(f'there is too little memory to make {name}; free some, or raise the limit (ulimit -d, the '
                          "container's)") from None
    except (Exception, SystemExit) as error:
        if isinstance(error, TypeError) and programs.is_of_the_call(error):
            raise OocError(f'{name} cannot be called without arguments: {message(error)}; write a function that '
                           'returns the chain, and name that') from None
        raise programs.failed(f'{name} cannot be made', error) from None


def _public_callables(module: object) -> list[str]:
    return [name for name, value in vars(module).items() if callable(value) and not name.startswith('_')]


def _required_arguments(chain: Any) -> int:
    import chainer

    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    # Chains may still have a `__call__` of their own, as all had up to Chainer 4.
    called = chain.forward if type(chain).__call__ is chainer.Link.__call__ else chain
    parameters = inspect.signature(called).parameters.values()
    return sum(each.kind in positional and each.default is each.empty for each in parameters)
