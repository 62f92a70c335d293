"""The drawn iteration as if it had run: each computation takes 1 s, with one copy each way and one wait.

    seconds    0   0.5   1.5   2.5   3.5   4.5   5.5   6.5
    compute        [ 0  ][ 1  ][ 2  ][ 3  ][ 4  ][ 5  ]
    copy-out             [1]
    copy-in                             [1]
"""
from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.plans.making import make_plan
from chainer_ooc.plans.run import Run
from chainer_ooc.problem import problem_of
from chainer_ooc.simulate.timeline import Cause, Stall, Stream, Task, Timeline
from support.planning.drawn_trace import MB, TRACE


def run_of(budget_bytes=9 * MB):
    """Under swap-all within a budget."""
    computations = [Task(Stream.COMPUTE, each, each + 0.5, each + 1.5) for each in range(6)]
    copies = [Task(Stream.COPY_OUT, 1, 1.5, 2.0), Task(Stream.COPY_IN, 1, 4.0, 4.25)]
    return Run(TRACE, make_plan(POLICIES['swap-all'], problem_of(TRACE, budget_bytes, 0)), 0, Timeline(
        6.5, 8 * MB, (*computations, *copies), (Stall(4, 1, 0.25, Cause.SWAP_IN),),
        tuple(each * MB for each in (3, 5, 8, 8, 6, 2))))
