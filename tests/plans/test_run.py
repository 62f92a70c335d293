"""An iteration as it ran, and its file."""
import dataclasses
import json

import pytest

from chainer_ooc.errors import OocError, RunFormatError
from chainer_ooc.plans.run import Run
from chainer_ooc.simulate.timeline import Timeline
from support.planning.drawn_run import run_of


def test_a_run_comes_back_from_its_text():
    run = run_of()
    assert Run.from_json(run.to_json()) == run
    assert Run.is_one(run.to_json())


def test_a_run_in_which_nothing_moved_has_no_tasks():
    run = dataclasses.replace(run_of(), timeline=Timeline(6.5, 100, (), (), ()))
    assert Run.from_json(run.to_json()) == run


def test_a_trace_is_no_run():
    assert not Run.is_one(run_of().trace.to_json())
    with pytest.raises(RunFormatError, match='not a run'):
        Run.from_json(run_of().trace.to_json())


def changed(**values):
    return json.dumps({**json.loads(run_of().to_json()), **values})


@pytest.mark.parametrize(('values', 'message'), [
    ({'seconds': 'long'}, "seconds is 'long', not float"),
    ({'peak_bytes': -1}, 'peak_bytes: -1'),
    ({'near_bytes': [1.5] * 6}, 'near_bytes is'),
    ({'near_bytes': [-1] * 6}, 'near_bytes, value 0'),
    ({'tasks': [['stream'], ['compute']]}, "'subject' is missing"),
    ({'tasks': [['stream', 'subject', 'start_seconds', 'end_seconds', 'recomputed_seconds'], ['idle', 0, 0, 1, 0]]},
     "tasks, row 0, stream: 'idle' is none of compute, copy-out, copy-in"),
    ({'tasks': [['stream', 'subject', 'start_seconds', 'end_seconds', 'recomputed_seconds'], ['compute', 0, 2, 1, 0]]},
     'tasks, row 0, end_seconds: 1 is before its start'),
    ({'stalls': [['position', 'map', 'seconds', 'cause'], [9, 0, 1, 'memory']]}, 'stalls, row 0, position: 9'),
    ({'trace': 1}, 'not a trace'),
    ({'plan': 1}, 'not a plan'),
    ({'more': 1}, "'more' is unknown"),
])
def test_a_damaged_run_says_where(values, message):
    with pytest.raises(OocError) as caught:
        Run.from_json(changed(**values))
    assert message in str(caught.value)
