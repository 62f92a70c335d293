"""Finds what a command line names as ``module:attribute``: a training, or a model with a batch or without one.

The attribute is called without arguments, as entry points are; a Trainer, an Updater or a model that is there already
is taken as it is. What comes out is sorted::

    Trainer, Updater                     draws its own batches, and has its optimizer
    (model, batch), (model, x, t)        a batch of any kind: what a converter gives, a tuple, a dict or one value
    model                                is run on random images, see `model`
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from chainer_ooc.cli import programs
from chainer_ooc.cli.answer import UsageError, message
from chainer_ooc.cli.arguments import search_here, unknown
from chainer_ooc.cli.model import NAMES, Model, ModelTooLargeError, example, model_of
from chainer_ooc.errors import InfeasibleBudgetError, OocError, ProfileError
from chainer_ooc.profiling.profile import LEAST, Training, record, training_of
from chainer_ooc.trace import Trace

_RESULTS = 'a Trainer, an Updater, a chainer.Chain, or a chain together with its batch: (model, (x, t))'


@dataclass(frozen=True)
class Program:
    """What brings its own batch.

    Attributes:
        name: as the command line has it.
        training: what runs an iteration.
    """

    name: str
    training: Training

    @property
    def is_updated(self) -> bool:
        """Whether an optimizer runs, whose state is in the trace."""
        return not {'optimizer', 'optimizers'}.isdisjoint(self.training.roots)

    def record(self, policy: str) -> Trace:
        """Records it under a policy; what it changes is not put back.

        Raises:
            ModelTooLargeError: it does not fit into memory.
            OocError: it is no training, or an error in its own code.
        """
        try:
            return record(replace(self.training, is_kept=False), policy)
        except InfeasibleBudgetError as error:
            finding = error.finding
        except ProfileError as error:
            raise UsageError(f'{self.name} cannot be profiled: {message(error)}') from None
        except MemoryError:
            finding = f'{self.name} needs more memory than there is'
        except OocError:
            raise
        except (Exception, SystemExit) as error:
            raise programs.failed(f'{self.name} cannot be trained', error) from None
        advice = f', or --policy {LEAST}' if policy != LEAST else ''
        raise ModelTooLargeError(f'{finding}; make its batch smaller{advice}')


def load(name: str, optimizer: str | None = None) -> Model | Program:
    """Finds or makes what is named.

    Args:
        name: one of `NAMES`, or ``module:attribute``; the current folder is searched too.
        optimizer: the name of a class of chainer.optimizers that updates a model.

    Raises:
        UsageError: there is nothing of that name, or something that cannot be profiled.
        ProgramError: making it has raised an error.
        OocError: this is no checkout, and an example is named.
    """
    found = _made(name, example(name) if name in NAMES else _attribute(name))
    if _is_training(found):
        if optimizer is not None:
            raise UsageError(f'{name} is a {type(found).__name__}, which has its optimizer; leave --optimizer out')
        return Program(name, training_of(found, (), {}))
    model, batch, named = _taken_apart(name, found)
    updates = None if optimizer is None else _optimizer(optimizer, model)
    if batch or named:
        return Program(name, training_of(model, batch, named, updates))
    return replace(model_of(name, model), optimizer=updates)


def _taken_apart(name: str, found: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The model, and what it is called with; nothing for a model alone."""
    import chainer

    if isinstance(found, chainer.Link):
        return found, (), {}
    if isinstance(found, tuple | list) and len(found) > 1 and isinstance(found[0], chainer.Link):
        model, *rest = found
        batch = rest[0] if len(rest) == 1 else tuple(rest)
        if isinstance(batch, dict):
            return model, (), batch
        return model, batch if isinstance(batch, tuple) else (batch,), {}
    raise UsageError(f'{name} returns a value of type {type(found).__name__}; have it return {_RESULTS}')


def _is_training(found: Any) -> bool:
    import chainer

    return isinstance(found, chainer.training.Trainer | chainer.training.Updater)


def _optimizer(name: str, model: Any) -> Any:
    import chainer

    kinds = {each: value for each, value in vars(chainer.optimizers).items() if isinstance(value, type)
             and issubclass(value, chainer.Optimizer)}
    if name not in kinds:
        raise UsageError(f'{unknown("optimizer", name, kinds)}; an Updater can have any other')
    return kinds[name]().setup(model)


def _attribute(name: str) -> Any:
    module_name, colon, attribute = name.partition(':')
    if not (module_name and colon and attribute):
        raise UsageError(f'{unknown("model", name, NAMES)}, or module:attribute')
    search_here()
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        meant = f'did you mean {module_name[:-3]}:{attribute}? ' if module_name.endswith('.py') else ''
        raise UsageError(f'cannot import {module_name} for {name}: {error}; {meant}run this where it can be imported '
                         'from, or set PYTHONPATH') from None
    except OocError:
        raise
    except (Exception, SystemExit) as error:  # a script that has no `if __name__ == '__main__'` may end the process
        raise programs.failed(f'cannot import {module_name} for {name}', error, 2) from None
    where = module_name
    for part in attribute.split('.'):
        if not hasattr(found, part):
            has = ', '.join(_public_callables(found)) or 'nothing that can be called'
            raise UsageError(f'{where} has no {part}; it has: {has}')
        found, where = getattr(found, part), f'{where}.{part}'
    return found


def _made(name: str, build: Any) -> Any:
    """What a callable returns, or what is a training or a model already."""
    import chainer

    if _is_training(build) or isinstance(build, chainer.Link | tuple | list):
        return build
    if not callable(build):
        raise UsageError(f'{name} is of type {type(build).__name__}, which cannot be called; name a class or function '
                         f'that returns {_RESULTS}')
    return _call(name, build)


def _call(name: str, build: Callable[[], Any]) -> Any:
    try:
        return build()
    except MemoryError:
        raise ModelTooLargeError(f'there is too little memory to make {name}; free some, or raise the limit '
                                 "(ulimit -d, the container's)") from None
    except OocError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, TypeError) and programs.is_of_the_call(error):
            raise UsageError(f'{name} cannot be called without arguments: {message(error)}; write a function that '
                             f'returns {_RESULTS}, and name that') from None
        raise programs.failed(f'{name} cannot be made', error, 2) from None


def _public_callables(module: object) -> list[str]:
    return [name for name, value in getattr(module, '__dict__', {}).items()
            if callable(value) and not name.startswith('_')]
