"""lms: maps that are away long enough are swapped, and start back a fixed number of steps before their use.

Two thresholds for the whole graph, tuned by simulation within `SIMULATIONS` tries; here 6 and 2::

    position    0  1  2  3 | 4  5  6  7
    map 0       m . . . . . . . . . . u      7 > 6: swapped       swap-in [=====] at 5 and 6
    map 1          m . . . . . . . u         5: stays

Source: Window+VA 2 (Large Model Support of TensorFlow). What differs: distance is counted in positions, the order in
which the graph runs, not in edges; the tuning is ours. More in docs/policies/lms.md.
"""

from __future__ import annotations

import functools
import math

from chainer_ooc.classify.policies.policy import Policy
from chainer_ooc.classify.search import evaluate, largest_fitting
from chainer_ooc.problem import Decision, Problem, Starts, Verdict, can_leave
from chainer_ooc.trace import FeatureMap, Trace

#: How many pairs of thresholds are tried.
SIMULATIONS = 200

#: Up to here each number of steps ahead is tried; beyond, each that is a quarter larger.
DENSE_AHEAD = 8


def decide(problem: Problem) -> Decision:
    """Tunes both thresholds; if no pair fits, swaps everything at the last moment, which needs least."""
    tuning = _Tuning(problem)
    tuning.walk_the_edge()
    tuning.descend()
    return tuning.decision(*tuning.best)


class _Tuning:
    """The search. A pair is the number of a threshold, from the most swapped to the least, and the steps ahead."""

    def __init__(self, problem: Problem):
        trace = problem.trace
        self.problem = problem
        self.distances = {each.id: _distance(trace, each) for each in trace.maps
                          if can_leave(each, problem.min_bytes)}
        self.thresholds = [0, *sorted(set(self.distances.values()))]
        self.most_ahead = max(1, len(trace.steps))
        self._tried: dict[tuple[int, int], bool] = {}
        self._fastest = (math.inf, 0, 1)

    @property
    def best(self) -> tuple[int, int]:
        """The fastest pair that fits, so far; if none does, the one that needs least."""
        seconds, fewer, ahead = self._fastest
        return (-fewer, ahead) if seconds < math.inf else (0, 1)

    def decision(self, number: int, ahead: int) -> Decision:
        """What a pair of thresholds says."""
        threshold = self.thresholds[number]
        verdicts = tuple(Verdict.SWAP if self.distances.get(each.id, 0) > threshold else Verdict.KEEP
                         for each in self.problem.trace.maps)
        return Decision(verdicts, Starts(ahead=ahead, checks_memory=False))

    def walk_the_edge(self) -> None:
        """Tries, for each number of steps ahead, the largest threshold that fits: it never grows."""
        highest, ahead = len(self.thresholds) - 1, 1
        while ahead <= self.most_ahead:
            if not self.fits(highest, ahead):  # what fits with a threshold fits with each that swaps more
                highest = largest_fitting(-1, highest, functools.partial(self.fits, ahead=ahead))
            if highest < 0:
                return
            ahead += 1 if ahead < DENSE_AHEAD else ahead // 4

    def descend(self) -> None:
        """Goes to a faster neighbour as long as there is one."""
        centre = None
        while centre != self.best:
            centre = self.best
            number, ahead = centre
            for pair in ((number + 1, ahead), (number - 1, ahead), (number, ahead + 1), (number, ahead - 1)):
                if 0 <= pair[0] < len(self.thresholds) and 1 <= pair[1] <= self.most_ahead:
                    self.fits(*pair)

    def fits(self, number: int, ahead: int) -> bool:
        """Whether a pair keeps within the budget; remembers the fastest, of equal ones that which moves less.

        When enough pairs were tried, no other one counts as fitting, so that each search ends.
        """
        pair = number, ahead
        if pair not in self._tried and len(self._tried) < SIMULATIONS:
            found = evaluate(self.problem, self.decision(*pair))
            self._tried[pair] = found.fits
            self._fastest = min(self._fastest, (found.seconds if found.fits else math.inf, -number, ahead))
        return self._tried.get(pair, False)


def _distance(trace: Trace, feature_map: FeatureMap) -> int:
    """From the last use in forward to the first in backward; what backward never reads is away for good."""
    uses = feature_map.backward_uses
    return (uses[0] if uses else trace.positions) - feature_map.last_forward_use


POLICY = Policy(
    'lms', 'swapped if away longer than one threshold, back ahead by another; both tuned', decide,
    takes_long=True)
