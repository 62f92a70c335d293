"""OOC-Paleo's strategies on iterations of networks: by its formulas, and by the simulator.

Both get the same times of layers and links, and the same maps leave, those of the policy that has the strategy. So they
differ in what happens when, and in nothing else.

Source: OOC-Paleo 3.4 to 3.6, 4.3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.classify.search import evaluate
from chainer_ooc.cost.analytic import analytic
from chainer_ooc.cost.machine import Machine
from chainer_ooc.papers.experiments import Experiments
from chainer_ooc.papers.paleo_formulas import (
    PaleoIteration,
    Pass,
    capacity_iteration,
    catching_layer,
    on_demand_iteration,
    passes_of,
    vdnn_iteration,
)
from chainer_ooc.problem import Decision, Problem, Standing, Starts, Verdict

#: How the time of an iteration is found.
WAYS = ('formula', 'simulated')
#: All maps leave that are retained, however small: so does IBM's switch.
_LEAST_BYTES = 1


@dataclass(frozen=True)
class Strategy:
    """A strategy of the paper.

    Attributes:
        title: as in the tables.
        decide: the policy that has it.
        formula: an iteration of it.
    """

    title: str
    decide: Callable[[Problem], Decision]
    formula: Callable[[Pass, Pass], PaleoIteration]


def _on_demand(problem: Problem) -> Decision:
    """Policy capacity, but a map comes back when the step that reads it begins."""
    return replace(POLICIES['capacity'].decide(problem), starts=Starts(ahead=0))


VDNN = Strategy('vDNN-like', POLICIES['vdnn-all'].decide, vdnn_iteration)
CAPACITY = Strategy('capacity-based', POLICIES['capacity'].decide, capacity_iteration)
#: "Very similar to capacity-based", says the paper of Unified Memory with prefetching; this is without.
ON_DEMAND = Strategy('without prefetching', _on_demand, on_demand_iteration)


@dataclass(frozen=True, eq=False)
class Case:
    """A strategy on an iteration."""

    strategy: Strategy
    problem: Problem

    @cached_property
    def decision(self) -> Decision:
        """The policy's."""
        return self.strategy.decide(self.problem)

    @cached_property
    def passes(self) -> tuple[Pass, Pass]:
        """Forward and backward, with the maps that the decision swaps."""
        swapped = [each for each, verdict in enumerate(self.decision.verdicts) if verdict is Verdict.SWAP]
        return passes_of(self.problem.trace, self.problem.costs, swapped)

    @cached_property
    def formula(self) -> PaleoIteration:
        """The iteration by the paper's formulas."""
        return self.strategy.formula(*self.passes)

    @cached_property
    def simulated_seconds(self) -> float:
        """The iteration by the simulator; infinite if it does not fit."""
        return evaluate(self.problem, self.decision).seconds

    @property
    def in_core_seconds(self) -> float:
        """The sum of all computations."""
        return sum(self.problem.costs.seconds)

    @property
    def transfer_seconds(self) -> float:
        """What the link needs for all that leaves and comes back."""
        return sum(sum(each.swap_seconds) for each in self.passes)

    @property
    def seconds(self) -> dict[str, float]:
        """Both, by how they were found."""
        return {'formula': self.formula.seconds, 'simulated': self.simulated_seconds}

    @property
    def utilisations(self) -> dict[str, float]:
        """Both, as shares of the time in which the processing unit works."""
        return {how: self.in_core_seconds / seconds for how, seconds in self.seconds.items()}

    @property
    def full_share(self) -> float:
        """How much of backward's work is done before processing catches up with swap-in."""
        backward = self.passes[1]
        return sum(backward.seconds[:catching_layer(backward)]) / backward.in_core_seconds

    @property
    def swaps(self) -> bool:
        """Whether any map leaves."""
        return Verdict.SWAP in self.decision.verdicts

    def over(self, gigabytes_per_second: float) -> Case:
        """The same with another link, of so many GB/s in each direction. What leaves stays the same."""
        rate = gigabytes_per_second * 1e9
        costs = replace(self.problem.costs, write_bytes_per_second=rate, read_bytes_per_second=rate)
        decision = self.decision
        return Case(replace(self.strategy, decide=lambda _: decision), replace(self.problem, costs=costs))


def problem_of(experiments: Experiments, network: str, size: int, machine: Machine) -> Problem:
    """The problem that a network poses on a machine, with all of its near memory less the reserve."""
    trace = experiments.trace(network, size)
    in_core_seconds = experiments.in_core(network, size, machine.name).in_core_seconds
    return Problem(trace, analytic(trace, machine, in_core_seconds),
                   Standing(trace.standing_forward_bytes, trace.standing_backward_bytes),
                   machine.near_bytes - machine.reserve_bytes, _LEAST_BYTES)
