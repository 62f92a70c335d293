"""swap-all-naive: every map is swapped, and its swap-in starts together with the computation before its use.

Source: PoocH 5.1, "swap-all (w/o scheduling)".
"""

from chainer_ooc.classify.policies import swap_all
from chainer_ooc.classify.policies.policy import Policy

POLICY = Policy(
    'swap-all-naive', 'every map is swapped; a swap-in starts with the computation before its use', swap_all.classify,
    early=False)
