"""What the tests of courses share."""
import pytest

from support.planning.literal_traces import make_trace


@pytest.fixture(scope='session')
def trace_of():
    return make_trace
