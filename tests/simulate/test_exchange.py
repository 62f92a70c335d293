"""Gradients are added up by several ranks, beside backward and after it: drawn timelines."""
import dataclasses

import pytest

from chainer_ooc.cost.network import Interconnect
from chainer_ooc.errors import OocError
from chainer_ooc.problem import Decision, Verdict, problem_of
from chainer_ooc.schedule.schedule import lay_out
from chainer_ooc.simulate.exchange import gradient_bytes, with_ranks
from chainer_ooc.simulate.simulator import simulate
from chainer_ooc.trace import ArrayForm, Call, FeatureMap, Step, Trace

SECOND = 1000  # bytes that the network below adds up in a second, latencies aside
NETWORK = Interconnect(SECOND, 0.0)


def trace_of(parameters, seconds=1.0):
    """Calls of one second each, the first reads the batch; `parameters` are bytes of each call's weights."""
    calls = tuple(Call(index, 'F', (index, *(-1,) * (nbytes > 0)), (index + 1,), (), seconds, 0,
                       (ArrayForm('<f4', (1,)), *[ArrayForm('<f4', (nbytes // 4,))] * (nbytes > 0)),
                       (ArrayForm('<f4', (1,)),))
                  for index, nbytes in enumerate(parameters))
    count = len(calls)
    steps = tuple(Step(count + number, count - 1 - number, (), seconds, 0, 0) for number in range(count))
    maps = tuple(FeatureMap(id=each, nbytes=4, producer=each - 1 if each else None, hidden=False, retained=False,
                            foreign=False, last_forward_use=min(each, count - 1), backward_uses=(), shape=(1,),
                            dtype='float32', last_alive=2 * count - 1) for each in range(count + 1))
    return Trace('host', calls, steps, maps, 2.0 * count * seconds, 0.0, 0.0)


def ranks_of(parameters, ranks=2, network=NETWORK):
    trace = trace_of(parameters)
    problem = problem_of(trace, 10**9, 1)
    timeline = simulate(problem, lay_out(problem, Decision((Verdict.KEEP,) * len(trace.maps))))
    return with_ranks(trace, timeline, ranks, network)


def test_an_exchange_begins_when_its_step_ends_and_hides_beside_the_steps_after_it():
    # forward 0 to 3; steps of calls 2, 1, 0 end at 4, 5, 6
    #   step      | 2 | 1 | 0 |
    #   exchange      |2|           4 to 4.5
    found = ranks_of((0, 0, 500))
    assert (found.beside_seconds, found.after_seconds, found.exchange_seconds) == (6.0, 6.5, 0.5)


def test_the_last_gradients_are_exchanged_after_backward():
    #   step      | 2 | 1 | 0 |
    #   exchange              |0|   6 to 6.5
    assert ranks_of((500, 0, 0)).beside_seconds == 6.5


def test_gradients_that_gather_meanwhile_go_together():
    #   step      | 3 | 2 | 1 | 0 |
    #   exchange      |    3    |2, 1|0|       with a latency of 2 x 0.1 each
    #                 5        7.7  8.9 9.6
    found = ranks_of((500, 500, 500, 2500), network=Interconnect(SECOND, 0.1))
    assert found.beside_seconds == pytest.approx(5 + 2.7 + 1.2 + 0.7)
    assert found.exchange_seconds == pytest.approx(4.0 + 0.2)


def test_one_rank_takes_what_it_takes_alone():
    found = ranks_of((500, 500), ranks=1)
    assert (found.beside_seconds, found.after_seconds, found.exchange_seconds) == (4.0, 4.0, 0.0)


def test_parameters_of_floats_have_gradients():
    trace = trace_of((8, 0))
    calls = (trace.calls[0], dataclasses.replace(trace.calls[1], inputs=(1, -1), arguments=(
        ArrayForm('<f4', (1,)), ArrayForm('<i4', (100,)))))
    assert gradient_bytes(dataclasses.replace(trace, calls=calls)) == [0, 8]


def test_a_step_of_no_call_has_none_and_a_trace_without_shapes_is_refused():
    trace = trace_of((8, 8))
    steps = (dataclasses.replace(trace.steps[0], call=-1), trace.steps[1])
    assert gradient_bytes(dataclasses.replace(trace, steps=steps)) == [0, 8]
    with pytest.raises(OocError, match='record it again'):
        gradient_bytes(dataclasses.replace(trace, calls=tuple(
            dataclasses.replace(each, arguments=()) for each in trace.calls)))
