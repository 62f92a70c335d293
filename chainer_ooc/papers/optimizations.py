"""What each optimisation of PoocH is worth: four policies, each with one optimisation more than the one before.

Source: PoocH 5.1 (figures 15 and 16), PoocH-2018 5.1 (figure 14).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from chainer_ooc.papers.comparison import Row, claim
from chainer_ooc.papers.experiments import Experiments, Outcome, Size
from chainer_ooc.papers.published import POOCH, SWAP_ALL, SWAP_ALL_NAIVE, SWAP_OPT
from chainer_ooc.papers.sweeps import OURS, Setting, gain, is_no_slower

BASE = 'swap-all (w/o scheduling)'
#: Setting and size of each network.
Networks = Mapping[str, tuple[Setting, Size]]
#: Outcomes by network and policy, the latter as the paper calls it.
Found = Mapping[str, dict[str, Outcome]]


def runs_of(experiments: Experiments, networks: Networks, last: str) -> dict[str, dict[str, Outcome]]:
    """Runs each network under the four policies of the paper, to the letter, and under policy pooch.

    `last` is what the paper calls its own way.
    """
    policies = {BASE: SWAP_ALL_NAIVE, 'swap-all': SWAP_ALL, 'swap-opt': SWAP_OPT, last: POOCH, OURS: 'pooch'}
    return {network: {name: setting.run(experiments, size, policy) for name, policy in policies.items()}
            for network, (setting, size) in networks.items()}


def gains(found: Found, last: str) -> list[Row]:
    """A row for each bar of the figure; their heights were lost with it."""
    rows = []
    for network, runs in found.items():
        for name in ('swap-all', 'swap-opt', last, OURS):
            ours = gain(runs[name], runs[BASE])
            rows.append(Row(f'{network} ({runs[name].size}), {name}', None, ours, 'x', series=name,
                            group=f'{network} ({runs[name].size})', out_of_memory=ours is None))
    return rows


def orderings(found: Found, last: str) -> list[Row]:
    """Claims that no policy is slower than the one before it."""
    return [claim(f'{network}, {better} no slower than {worse}', is_no_slower(runs[better], runs[worse]))
            for network, runs in found.items()
            for worse, better in pairwise((BASE, 'swap-all', 'swap-opt', last))]
