"""vdnn-conv: only what convolutions read is swapped, while convolutions run; copies are waited for as in vdnn-all.

Convolutions take long enough to hide a copy. So a swap-in starts with the nearest step of a convolution before its
use, and that step's end waits for it::

    compute    [ conv 3 ..........][relu][norm][ conv 2 ..........]
    copy-in    [ input of conv 2 ]             [ input of conv 1 ]

Source: OOC-Paleo 2.1 and 3.4 for the schedule; the variant is of the vDNN paper that OOC-Paleo cites. What differs:
as in vdnn-all; a swap-in with no convolution before its use starts when backward begins.
"""

from chainer_ooc.classify.kinds import steps_of
from chainer_ooc.classify.policies.policy import Policy
from chainer_ooc.cost.analytic import is_convolution
from chainer_ooc.problem import Decision, Problem, Starts, Verdict, can_leave


def decide(problem: Problem) -> Decision:
    """Swaps each map that a convolution reads, and keeps the others."""
    trace = problem.trace
    read = {map_id for call in trace.calls if is_convolution(call.label) for map_id in call.inputs}
    verdicts = tuple(Verdict.SWAP if each.id in read and can_leave(each, problem.min_bytes) else Verdict.KEEP
                     for each in trace.maps)
    return Decision(verdicts, Starts(ahead=1, gates=steps_of(trace, is_convolution)), synchronous=True)


POLICY = Policy('vdnn-conv', "vDNN: only inputs of convolutions are swapped, with waits at each layer's end", decide)
