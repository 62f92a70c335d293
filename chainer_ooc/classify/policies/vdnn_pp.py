"""vdnn++: vdnn-all without the waits: a computation begins as soon as its own maps have come.

    compute    [ step l+1 ]..[ step l ].[ step l-1 ]
    copy-in    [ map of l  ][ map of l-1 ][ map of l-2 ]      a copy may outlast the step that it began with

Source: OOC-Paleo 2.1. What differs: of the better schedule only its aim is told there, so that nothing but the waits
is taken away. What is left is the schedule that PoocH 5.1 measures as "w/o scheduling", and both policies decide the
same. vDNN++'s compression and its heuristics for memory are left out.
"""

from chainer_ooc.classify.policies import swap_all_naive
from chainer_ooc.classify.policies.policy import Policy

POLICY = Policy(
    'vdnn++', 'vDNN++: every map is swapped; a computation waits for its own maps alone', swap_all_naive.decide)
