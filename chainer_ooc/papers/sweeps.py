"""What the tables of several papers have in common: one network on one machine, over sizes and policies, and what is
asked about the runs.

The four policies of `runs_of` have one optimisation of PoocH more each, so that their gains tell what it is worth.

A run that does not fit has no speed: its rows say so, quotients over it cannot be told, and where a paper has a figure
for it the figure is missed.

Source: PoocH 5.1 (figures 15 and 16) and PoocH-2018 5.1 (figure 14), for the four policies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from chainer_ooc.papers.comparison import Reported, Row, claim
from chainer_ooc.papers.experiments import CHAINER, Experiments, Outcome, Size
from chainer_ooc.papers.published import POOCH, SWAP_ALL, SWAP_ALL_NAIVE, SWAP_OPT

#: The machines by the names that the papers give them.
MACHINES = {'x86': 'v100-pcie3', 'POWER9': 'v100-nvlink2'}

#: What tables call policy pooch, which goes further than its paper.
OURS = 'policy pooch'
BASE = 'swap-all (w/o scheduling)'
TO_THE_LETTER = (
    'swap-all, swap-opt, PoocH and superneurons follow the paper and, where it is silent, the program that its authors '
    f'published (papers/published.py, papers/pooch_chainer.py). {OURS[0].upper() + OURS[1:]} is this project\'s: it '
    'searches further, shares what a recomputation passes, and has all the memory that the driver leaves.')
FASTER = ('Where ours leaves a stated bound it is faster. The model has no costs but computations, copies at the '
          'speed of the link, and waits for memory whose bytes are counted: no fragmentation, no Python. The '
          "authors' program has both: its pool moves its pieces together when they fit no request, which stops the "
          'device, and after each block of backward the host waits for the device (docs/results/papers.md).')
CALIBRATED = 'The in-core throughput is put in ({:g} images/s, as stated); all other times follow from data sheets.'
UNCALIBRATED = ("The text states no in-core throughput (its figure was lost): times are the data sheet's roofline, "
                'drawn out as much as those of ResNet50. Shares and ratios are comparable; speeds stand alone.')


@dataclass(frozen=True)
class Setting:
    """A network on a machine.

    Attributes:
        network: its name, as the experiments knows it.
        machine: likewise.
        images_per_second: the stated in-core throughput by which times are calibrated, or None.
        allocator: 'exact', 'pool' (best fit) or 'virtual' (chunks of 40 MiB).
        framework: that the paper extends, or its own.
    """

    network: str
    machine: str
    images_per_second: float | None = None
    allocator: str = 'exact'
    framework: str = CHAINER

    def run(self, experiments: Experiments, size: Size, policy: str, planned_for: str | None = None) -> Outcome:
        """Trains under a policy."""
        return experiments.run(self.network, size, self.machine, policy, planned_for, allocator=self.allocator,
                              images_per_second=self.images_per_second, framework=self.framework)

    def in_core(self, experiments: Experiments, size: Size) -> Outcome:
        """Trains in unlimited memory."""
        return experiments.in_core(self.network, size, self.machine, allocator=self.allocator,
                                  images_per_second=self.images_per_second, framework=self.framework)


Measure = Callable[[Outcome], float | None]
#: Setting and size of each network.
Networks = Mapping[str, tuple[Setting, Size]]
#: Outcomes by network and policy, the latter as the paper calls it.
Found = Mapping[str, dict[str, Outcome]]


def speed(outcome: Outcome) -> float | None:
    """Images per second; None where it does not run."""
    return outcome.images_per_second if outcome.feasible else None


def below(outcome: Outcome) -> float | None:
    """Share of the in-core speed that is lost; None where it does not run."""
    return outcome.below if outcome.feasible else None


def gain(outcome: Outcome, over: Outcome) -> float | None:
    """How many times as fast as another run of the same work; None where one of the two does not run."""
    if not (outcome.feasible and over.feasible and outcome.seconds and over.seconds):
        return None
    return over.seconds / outcome.seconds


def is_faster(outcome: Outcome, than: Outcome) -> bool | None:
    """Whether a run is faster than another; None where only the other does not fit, false where this does not."""
    found = gain(outcome, than)
    return None if found is None and outcome.feasible else found is not None and found > 1


def is_no_slower(outcome: Outcome, than: Outcome) -> bool | None:
    """Whether a run is at least as fast as another; None and false as in `is_faster`."""
    found = gain(outcome, than)
    return None if found is None and outcome.feasible else found is not None and found >= 1


def are_no_slower(outcomes: Iterable[Outcome], than: Iterable[Outcome]) -> bool | None:
    """Whether each is at least as fast as its other, of those that can be told; None if none can."""
    told = [each for each in map(is_no_slower, outcomes, than) if each is not None]
    return all(told) if told else None


def falls(outcomes: Sequence[Outcome]) -> bool | None:
    """Whether the speed never rises from size to size, of those that run."""
    found = [each for each in map(speed, outcomes) if each is not None]
    return all(later <= earlier for earlier, later in pairwise(found)) if found else None


def measured(what: str, outcome: Outcome, unit: str, series: str, group: str, measure: Measure = speed,
             stated: Reported | None = None) -> Row:
    """A row with what was measured of a run, which says where it does not fit."""
    ours = measure(outcome)
    return Row(what, stated.bounds if stated else None, ours, unit, '', series, group, out_of_memory=ours is None)


def worst(stated: Reported, outcomes: Sequence[Outcome]) -> Row:
    """The most that is lost beside a bound that is stated for all; missed where one of them does not run."""
    found = [below(each) for each in outcomes]
    told = [each for each in found if each is not None]
    does_not_run = len(told) < len(found)
    return stated.beside(max(told) if told and not does_not_run else None, out_of_memory=does_not_run,
                         series=stated.what, group='at worst',
                         note='one of the sizes does not fit here' if does_not_run else '')


def speeds_from(stated: Reported, outcomes: Sequence[Outcome], series: str) -> tuple[Row, Row]:
    """The ends of a range of speeds whose upper end is in-core's: that one was put in, and proves nothing."""
    low, high = stated.ends_beside([speed(each) for each in outcomes], series=series)
    return low, replace(high, is_input=True, note='where all fits it is the speed of in-core, which was put in')


def fits(what: str, outcome: Outcome) -> Row:
    """Claims that a run has memory enough."""
    return claim(what, outcome.feasible)


def fails(what: str, outcome: Outcome) -> Row:
    """Claims that a run has not memory enough."""
    return claim(what, not outcome.feasible)


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
