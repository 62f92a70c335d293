"""What a policy is: a name, a reason in one line, and a decision; and how one that the user brings becomes one.

The user's is named ``module:attribute``, a function of a `Problem` or a `Policy`. What it decides is looked at before
anything follows it, as it may name maps that are not there or give a map a verdict that it cannot have. Whatever it
decides, a training computes the same: a plan says what is in memory when.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import NoneType

from chainer_ooc.classify.search import SearchStoppedError
from chainer_ooc.errors import ConfigError, OocError, PolicyError, ReentryError
from chainer_ooc.problem import Decision, Problem, Starts, fault_of

#: What the attributes of a `Decision`, and of its `Starts`, may be.
_TYPES: dict[str, tuple[type, ...]] = {
    'verdicts': (tuple, list), 'starts': (Starts,), 'leaves': (Mapping,), 'synchronous': (bool,),
    'shares_chains': (NoneType, bool, frozenset), 'mapped': (bool,)}
_TYPES_OF_STARTS: dict[str, tuple[type, ...]] = {
    'ahead': (NoneType, int), 'gates': (NoneType, tuple), 'checks_memory': (bool,), 'positions': (NoneType, Mapping)}


@dataclass(frozen=True)
class Policy:
    """A row of the table.

    Attributes:
        name: the value of ``chainer.config.ooc``.
        summary: one line for ``chainer_ooc.policies()``.
        decide: a pure function of the problem. It need not keep within the budget: its caller refuses a decision that
            does not fit.
        searches: the time limit of a problem may cut `decide` short, which then gives the best that it has found.
        takes_long: a training of a very large graph begins with another decision, made at once.
        floors_of: the policy that has the same floors and finds them sooner, if there is one.
        may_need_more: of a larger budget its decision may need more than that, where it would do with a smaller one.
    """

    name: str
    summary: str
    decide: Callable[[Problem], Decision]
    may_need_more: bool = False
    searches: bool = False
    takes_long: bool = False
    floors_of: Policy | None = None


def own_policy(name: str) -> Policy:
    """Finds what is named. It is looked up each time, as a notebook may define it anew.

    Raises:
        ConfigError: nothing is there, or it is no policy.
    """
    try:
        found = pkgutil.resolve_name(name)
    except Exception as error:  # the module's own code runs
        raise ConfigError(f'the policy {name!r} cannot be imported ({type(error).__name__}: {error}); it is '
                          'module:attribute, of a module on sys.path') from error
    if isinstance(found, Policy):
        return replace(found, name=name, decide=partial(_decided, name, found.decide))
    if not callable(found):
        raise ConfigError(f'the policy {name!r} is of type {type(found).__name__}; name a function that takes a '
                          'chainer_ooc.problem.Problem and returns a Decision')
    return Policy(name, (found.__doc__ or 'a policy of your own').strip().partition('\n')[0],
                  partial(_decided, name, found))


def _decided(name: str, decide: Callable[[Problem], Decision], problem: Problem) -> Decision:
    fault = ''
    try:
        decision = decide(problem)
        if isinstance(decision, Decision) and not (fault := _wrong_type(decision)):
            decision = _frozen(decision)
    except ReentryError as error:
        raise PolicyError(f'the policy {name!r} applies a function, or calls chainer_ooc.trace() or reset(), in the '
                          'midst of the training that asks it; have it look at its problem alone') from error
    except (OocError, SearchStoppedError, MemoryError):
        raise
    except Exception as error:
        raise PolicyError(f'the policy {name!r} has failed with {type(error).__name__}: {error}; its traceback is '
                          'above') from error
    if not isinstance(decision, Decision):
        raise PolicyError(f'the policy {name!r} has returned a value of type {type(decision).__name__}; have it '
                          'return a chainer_ooc.problem.Decision')
    if fault := fault or fault_of(problem.trace, decision, problem.min_bytes):
        raise PolicyError(f'the decision of the policy {name!r} cannot be followed: {fault}')
    return decision


def _frozen(decision: Decision) -> Decision:
    """Returns it with containers that run none of the user's code, and that nobody else changes."""
    starts = decision.starts
    return replace(
        decision, verdicts=tuple(decision.verdicts), leaves=dict(decision.leaves),
        starts=replace(starts, gates=starts.gates and tuple(starts.gates),
                       positions=starts.positions and dict(starts.positions)))


def _wrong_type(decision: Decision) -> str:
    """Names the first attribute that is of a type which nothing can follow; '' if none is."""
    for of, types, prefix in (decision, _TYPES, ''), (decision.starts, _TYPES_OF_STARTS, 'starts.'):
        for name, allowed in types.items():
            if not isinstance(value := getattr(of, name), allowed):
                names = ' or '.join('None' if each is NoneType else each.__name__ for each in allowed)
                return f'{prefix}{name} is of type {type(value).__name__}, not {names}'
    return ''
