"""Files of plans: what ``chainer.config.ooc_plan`` names and ``chainer-ooc plan`` writes.

A file has one plan for each graph, under each workspace and oneDNN with which that was recorded.
It is replaced as a whole: a reader finds the old one or the new one, and a crash leaves one of them. Threads of one
process take turns; of two processes that write at the same time the later one wins.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict

from chainer_ooc.errors import PlanFormatError, TraceFormatError
from chainer_ooc.locks import make_lock
from chainer_ooc.plans.invariants import check_fit
from chainer_ooc.plans.plan import Plan
from chainer_ooc.plans.saved import SavedPlan, Terms
from chainer_ooc.trace import Trace
from chainer_ooc.trace.invariants import check_bytes
from chainer_ooc.trace.tables import Damage, Form, make

VERSION = 2
_AGAIN = 'delete it to have it written anew, or name another'
_ANOTHER = 'name a file of plans, or one that is not there yet'  # what never was one is not to be deleted
FORM = Form('file of plans', VERSION, PlanFormatError, _ANOTHER, _AGAIN)
_writing = make_lock()


def dump_plans(plans: list[SavedPlan]) -> str:
    """Returns the text of a file."""
    entries = [f'{{"terms": {json.dumps(asdict(each.terms))},\n "metered": {json.dumps(each.metered)},\n "plan": '
               f'{each.plan.to_json().rstrip()},\n "trace": {each.trace.to_json().rstrip()}}}'
               for each in plans]
    return FORM.dump({}, {'plans': '[' + ',\n'.join(entries) + ']'})


def load_plans(text: str) -> list[SavedPlan]:
    """Reads what `dump_plans` wrote.

    Raises:
        PlanFormatError: it is no file of plans, or has something of another version in it.
    """
    values = FORM.parse(text)
    try:
        with FORM.reading():
            if not isinstance(values.get('plans'), list):
                raise Damage('plans', 'no list')
            return [_saved(number, entry) for number, entry in enumerate(values['plans'])]
    except TraceFormatError as error:
        raise PlanFormatError(f'{error}, and plan again with "chainer-ooc plan TRACE --save FILE"; or delete the file '
                              'to have it written anew') from None


def read_plans(path: str) -> list[SavedPlan]:
    """Reads a file of plans; one that is not there has none.

    Raises:
        PlanFormatError: it cannot be read, or is no file of plans; the message has the path.
    """
    if os.path.isdir(path):
        raise PlanFormatError(f'cannot read the plans in {path}: it is a folder; name a file in it')
    if os.path.exists(path) and not os.path.isfile(path):
        raise PlanFormatError(f'cannot read the plans in {path}: it is no regular file; name another')
    try:
        with open(path, encoding='utf-8') as file:
            return load_plans(file.read())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise PlanFormatError(f'cannot read the plans in {path}: {error.strerror}; {_ANOTHER}') from None
    except UnicodeDecodeError:
        raise PlanFormatError(f'cannot read the plans in {path}: it is no text; {_ANOTHER}') from None
    except PlanFormatError as error:
        raise PlanFormatError(f'cannot read the plans in {path}: {error}') from None


def put_plan(path: str, saved: SavedPlan) -> None:
    """Adds a plan to a file, in place of an older one for the same graph, workspace and oneDNN.

    Raises:
        PlanFormatError: what is there is no file of plans.
        OSError: it cannot be written.

    If this fails: the file is as it was.
    """
    with _writing:
        others = [each for each in read_plans(path) if each.terms.recorded != saved.terms.recorded]
        _replace(os.path.realpath(path), dump_plans([*others, saved]))


def _replace(path: str, text: str) -> None:
    temporary = f'{path}.{os.getpid()}.tmp'  # in the same folder: a rename crosses no file system
    try:
        with open(temporary, 'w', encoding='utf-8') as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _saved(number: int, entry: object) -> SavedPlan:
    where = f'plans, entry {number}'
    if not isinstance(entry, dict) or not isinstance(entry.get('terms'), dict):
        raise Damage(where, 'no object with "terms", "metered", "plan" and "trace"')
    saved = make(where, SavedPlan, {
        **entry, 'terms': make(f'{where}, terms', Terms, entry['terms']), 'plan': Plan.from_object(entry.get('plan')),
        'trace': Trace.from_object(entry.get('trace'))})
    terms, plan, trace = saved.terms, saved.plan, saved.trace
    if terms.graph != trace.fingerprint:
        raise Damage(where, 'its terms and its trace are of two graphs')
    if (terms.policy, terms.budget_bytes) != (plan.policy, plan.budget_bytes):
        raise Damage(where, 'its terms and its plan are of two policies or budgets')
    check_bytes(f'{where}, terms, min_bytes', terms.min_bytes)
    check_bytes(f'{where}, terms, workspace_bytes', terms.workspace_bytes or 0)
    check_fit(plan, trace)
    return saved
