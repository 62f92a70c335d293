"""OOC-Paleo's case studies: its formulas and the simulator beside what its text claims.

Both get the same times of layers and links, and the same maps leave, those of the policy that has the strategy. So they
differ in what happens when, and in nothing else. The figures with the paper's own numbers exist as images only. What
can be compared is what the text says that they show: that something is slower, falls, or ends.

Source: OOC-Paleo 3.4 to 3.6, 4.2 to 4.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.classify.search import evaluate
from chainer_ooc.cost.analytic import analytic
from chainer_ooc.cost.machine import Machine, read_machine
from chainer_ooc.papers.comparison import PaperTable, Row, claim
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
from chainer_ooc.papers.reported import PALEO_PREFETCHING
from chainer_ooc.problem import Decision, Problem, Standing, Starts, Verdict

MACHINE = 'v100-pcie3'
#: Of ResNet50. The paper's appendix begins at 2; which others its figures have was lost with them.
BATCHES = (2, 16, 64, 128, 256, 384, 512, 640)
#: Of VGG16. The paper does not say its own; this is vDNN's, whose strategy it models.
SWEEP_BATCH = 256
#: GB/s in each direction. The paper's machine has 16.
THROUGHPUTS = (4, 8, 16, 32, 64, 128, 256)
#: An iteration is bound by computation, or by transfers, if it takes no more than this times what they take.
BOUND = 1.05
#: Time falls "apparently" if it does so by more than this.
CLEARLY = 0.05
#: An iteration is slower than in-core if the processing unit works less than this share of it.
NEARLY_FULL = 0.99
#: GB/s between which the throughput is looked for at which computation bounds an iteration, and how exactly.
_SLOWEST, _FASTEST, _CLOSE = 1.0, 1e5, 1.001
#: How the time of an iteration is found.
WAYS = ('formula', 'simulated')
#: All maps leave that are retained, however small: so does IBM's switch.
_LEAST_BYTES = 1

_NOTES = (
    'No number of figures 5, 7 and A.1 survives; the rows without a stated value show what ours are.',
    'A share is in-core time by the time of an iteration, so that 1 is the speed of in-core.',
    ('vDNN-like, simulated: policy vdnn-all. Its swap-outs begin when their layer has ended, and are waited for at '
     'once; the formula has them beside the next layer. In backward both are the same, where memory is not short.'),
    ('Capacity-based, simulated: policy capacity. Its swap-ins wait for the memory that backward frees, which the '
     'formula leaves out; after T_catch the formula idles the link until a layer begins, which execution does not.'),
)
_PREFETCHING_NOTE = (
    'the paper names neither network nor batch, and its link is Unified Memory\'s. Ours is the gain of having the same '
    'transfers beside computation: in a pass up to twofold where both take as long, little where transfers take longer')
_SWEEP_NOTES = (
    ('The paper states neither batch size nor strategy, and its figure 8 was lost. The batch is that of the VGG16 of '
     'vDNN.'),
    f'Bound by computation: no more than {BOUND - 1:.0%} longer than in-core.'.replace('%', ' %'),
    'Near memory, times of layers and the latency of a transfer are those of the machine at every throughput.',
    ('Of this batch near memory holds most maps, so that the capacity-based strategy needs little of the link. What '
     'the paper says of a link of 16 GB/s can be meant of the vDNN-like strategy alone: only its rows state it.'),
)


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


def utilisation(experiments: Experiments) -> PaperTable:
    """Sections 4.2 and 4.3: ResNet50 over batch sizes, with out-of-core on and off, and with Unified Memory."""
    machine = read_machine(MACHINE)
    problems = {batch: problem_of(experiments, 'resnet50', batch, machine) for batch in BATCHES}

    def on_all(strategy: Strategy) -> dict[int, Case]:
        return {batch: Case(strategy, problem) for batch, problem in problems.items()}

    vdnn, capacity = on_all(VDNN), on_all(CAPACITY)
    rows = [_figure(f'batch {batch}, {_title(case, how)}', case.utilisations[how], 'share', _title(case, how), batch)
            for batch in BATCHES for case in (vdnn[batch], capacity[batch]) for how in WAYS]
    rows += [_figure(f'batch {batch}, work of backward that is done before T_catch', case.full_share, 'share')
             for batch, case in capacity.items()]
    return PaperTable(
        'ooc-paleo', '5', 'ResNet50: utilisation of the processing unit (sections 4.2 and 4.3, figures 5, 7 and A.1)',
        (*rows, *_vdnn_claims(vdnn), *_capacity_claims(capacity), *_prefetching(capacity, on_all(ON_DEMAND))), _NOTES)


def vgg16_sweep(experiments: Experiments) -> PaperTable:
    """Section 4.4: the time of an iteration of VGG16 over the throughput of the link."""
    problem = problem_of(experiments, 'vgg16', SWEEP_BATCH, read_machine(MACHINE))
    cases = [Case(strategy, problem) for strategy in (VDNN, CAPACITY)]
    rows = [_figure('in-core', cases[0].in_core_seconds, 's')]
    for case in cases:
        swept = {each: case.over(each).seconds for each in THROUGHPUTS}
        rows += [_figure(f'{each} GB/s, {_title(case, how)}', seconds[how], 's', _title(case, how), f'{each} GB/s')
                 for each, seconds in swept.items() for how in WAYS]
        for how in WAYS:
            rows += _sweep_claims(case, how, {each: seconds[how] for each, seconds in swept.items()})
    return PaperTable('ooc-paleo', '8', f'VGG16, batch {SWEEP_BATCH}: time of an iteration over the link (section 4.4)',
                      tuple(rows), _SWEEP_NOTES, axis='link')


def bounding_throughput(case: Case, how: str) -> float | None:
    """The throughput in GB/s from which on computation bounds an iteration; None if it never does."""
    limit_seconds = BOUND * case.in_core_seconds
    low, high = _SLOWEST, _FASTEST
    if case.over(high).seconds[how] > limit_seconds:
        return None
    while high / low > _CLOSE:
        middle = (low * high) ** 0.5
        if case.over(middle).seconds[how] > limit_seconds:
            low = middle
        else:
            high = middle
    return high


def _vdnn_claims(cases: Mapping[int, Case]) -> tuple[Row, ...]:
    smallest, largest = cases[BATCHES[0]], cases[BATCHES[-1]]
    return (
        claim(f'vDNN-like is slower than in-core at batch {BATCHES[0]} already (4.2)', _is_slower(smallest)),
        claim('vDNN-like is slower than in-core at each batch (4.2)', all(map(_is_slower, cases.values()))),
        claim(f'at batch {BATCHES[-1]} swapping takes longer than computing (4.2)',
              largest.transfer_seconds > largest.in_core_seconds))


def _capacity_claims(cases: Mapping[int, Case]) -> tuple[Row, ...]:
    inside = [case for case in cases.values() if not case.swaps]
    outside = [case for case in cases.values() if case.swaps]
    speeds = [[case.utilisations[how] for case in outside] for how in WAYS]
    return (
        claim('while all fits, capacity-based has the speed of in-core (4.3)',
              bool(inside) and not any(map(_is_slower, inside))),
        claim('beyond that utilisation is still full when backward begins (4.3)',
              bool(outside) and all(case.full_share for case in outside)),
        claim('the stage of full utilisation shortens as the batch grows (4.3)',
              _falls([case.full_share for case in outside])),
        claim('the speed falls as the batch grows (4.3)', all(map(_falls, speeds))),
        claim('it falls less and less, towards a constant (4.3)', all(map(_falls, map(_steps, speeds)))),
        claim(f'at batch {BATCHES[-1]} transfers bound it (4.3)', bool(outside) and all(
            seconds <= BOUND * outside[-1].transfer_seconds for seconds in outside[-1].seconds.values())))


def _prefetching(ahead: Mapping[int, Case], late: Mapping[int, Case]) -> list[Row]:
    gains = {how: {batch: late[batch].seconds[how] / ahead[batch].seconds[how]
                   for batch in BATCHES if ahead[batch].swaps} for how in WAYS}
    rows = [_figure(f'batch {batch}, prefetching over none, {how}', gain, 'x')
            for how in WAYS for batch, gain in gains[how].items()]
    rows += [PALEO_PREFETCHING.beside(max(gains[how].values(), default=None), note=_PREFETCHING_NOTE,
                                      what=f'prefetching over none, at most, {how} (4.3)')
             for how in WAYS]
    return [*rows, Row('pinned copies are faster than prefetching, but for very large buffers (4.3)', (1.0, 1.0), None,
                       'holds', 'a measurement of the driver, which no model has')]


def _sweep_claims(case: Case, how: str, swept: Mapping[int, float]) -> list[Row]:
    title, limit_seconds, seconds = _title(case, how), BOUND * case.in_core_seconds, list(swept.values())
    is_stated = case.strategy is VDNN
    return [
        claim(f'{title}: 32 GB/s are clearly faster than 16 GB/s (4.4)',
              swept[32] < (1 - CLEARLY) * swept[16], is_stated),
        claim(f'{title}: time falls with throughput until computation bounds it (4.4)',
              _falls(seconds) and seconds[0] > limit_seconds >= seconds[-1]),
        _figure(f'{title}: throughput from which on computation bounds it', bounding_throughput(case, how), 'GB/s')]


def _title(case: Case, how: str) -> str:
    return f'{case.strategy.title}, {how}'


def _figure(what: str, ours: float | None, unit: str, series: str = '', group: object = '') -> Row:
    fits = ours != float('inf')
    return Row(what, None, ours if fits else None, unit, '' if fits else 'out of memory', series, str(group))


def _is_slower(case: Case) -> bool:
    return all(each < NEARLY_FULL for each in case.utilisations.values())


def _falls(values: Iterable[float]) -> bool:
    """Whether none is larger than the one before, and the last smaller than the first."""
    found = list(values)
    return len(found) > 1 and all(later <= one for one, later in pairwise(found)) and found[-1] < found[0]


def _steps(values: Sequence[float]) -> list[float]:
    """By how much each is below the one before."""
    return [one - later for one, later in pairwise(values)]
