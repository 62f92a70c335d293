import dataclasses

import pytest

from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.problem import problem_of
from chainer_ooc.report.contents import make_report
from support.planning.drawn_run import run_of
from support.planning.drawn_trace import MB, TRACE


@pytest.fixture(scope='session')
def report():
    """Of the drawn iteration, under swap-all, within 9, 10 and 13 MB; measured within 9 MB."""
    calls = tuple(dataclasses.replace(each, path=f'/part{each.index}', line=f'model.py:{each.index + 7}')
                  for each in TRACE.calls)
    trace = dataclasses.replace(TRACE, calls=calls)
    run = dataclasses.replace(run_of(), trace=trace)
    return make_report('drawn </script>', POLICIES['swap-all'], problem_of(trace, 9 * MB, 0), [10 * MB, 13 * MB], run)
