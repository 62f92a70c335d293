"""The words of planning: what is given, and what an answer says.

    problem     an iteration, its times, and the memory that there is
    verdict     what can happen to each feature map, and which maps it can happen to
    decision    a verdict for each map, and when it leaves and comes back
"""

from chainer_ooc.problem.decision import EARLY, WITH_THE_STEP_BEFORE, Decision, Shared, Starts, fault_of, is_shared
from chainer_ooc.problem.problem import Problem, Standing, problem_of
from chainer_ooc.problem.verdict import (
    COPIED_BYTES,
    Verdict,
    can_leave,
    can_recompute,
    changed,
    everything,
    from_the_output,
)

__all__ = [
    'COPIED_BYTES', 'EARLY', 'WITH_THE_STEP_BEFORE', 'Decision', 'Problem', 'Shared', 'Standing', 'Starts', 'Verdict',
    'can_leave', 'can_recompute', 'changed', 'everything', 'fault_of', 'from_the_output', 'is_shared', 'problem_of']
