"""Runs the papers' experiments on paper: a network, a size, a machine and a policy give a time, or a refusal.

    recordings at small sizes -> extrapolated -> as on a GPU -> roofline times -> plan -> simulated time
                                                                              '-> allocations -> fits the device?

A policy that has no plan within the device's memory is out of memory. Bytes are counted exactly unless an allocator is
named. One that fragments serves less than the device, so that a plan's budget has to be below it: it is the largest of
`PLANNED` of which what two iterations allocate succeeds.

The papers' systems copy a map out to the end before they copy it in again, and so it is here (`Problem.recalls`); ours
keeps one that is wanted while it is still leaving.

Calibration: where a paper states how fast its in-core training was, all computations are drawn out to that. For
networks of which it does not say so, they are drawn out as much as ResNet50's, whose throughput PoocH states: the same
program on the same device is assumed to miss the roofline by as much.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.cost.analytic import analytic
from chainer_ooc.cost.machine import Machine, read_machine
from chainer_ooc.cost.on_cuda import on_cuda
from chainer_ooc.papers.allocators.allocator import AllocatorModel, ExactAllocator
from chainer_ooc.papers.allocators.events import events_of, replay, smallest_capacity
from chainer_ooc.papers.allocators.pool import BestFitPool
from chainer_ooc.papers.allocators.virtual import VirtualModel
from chainer_ooc.papers.extrapolation import extrapolate
from chainer_ooc.papers.pooch_chainer import as_pooch_has_it, without_scales
from chainer_ooc.papers.published import PUBLISHED
from chainer_ooc.problem import Problem, Standing, Verdict, can_leave
from chainer_ooc.quantities import MOST_BYTES
from chainer_ooc.schedule.schedule import Schedule, lay_out
from chainer_ooc.simulate.simulator import simulate
from chainer_ooc.simulate.timeline import Timeline
from chainer_ooc.trace import Trace

Size = int | tuple[int, ...]

#: Budgets that are tried with an allocator that fragments, as shares of what a program can have of the device.
PLANNED = tuple(number / 20 for number in range(20, 9, -1))
#: Maps below this stay, as with chainer.config.ooc_min_bytes.
MIN_BYTES = 1 << 20
#: Arrays below this share chunks of virtual memory. Window+VA does not say what it does with small arrays; with a chunk
#: of 40 MB for each, batch normalisation's statistics alone would fill its device.
SMALL_BYTES = 1 << 20
ALLOCATORS: dict[str, Callable[[int], AllocatorModel]] = {
    'exact': ExactAllocator, 'pool': BestFitPool, 'virtual': partial(VirtualModel, small_bytes=SMALL_BYTES)}
#: The network and the images per second that the calibration of the others comes from: PoocH 5.2.
REFERENCE = 'resnet50', 128, 316.0
REFERENCE_MACHINES = 'v100-pcie3', 'v100-nvlink2'
#: Frameworks. Plain Chainer holds all maps until backward has ended, and adds gradients into new arrays. The Neural
#: Network Libraries of Window+VA free maps as they are used up, and add gradients where they lie.
CHAINER, NNABLA = 'chainer', 'nnabla'
#: Chainer with PoocH's functions. Policies of `PUBLISHED` run on the rest of PoocH's program too.
POOCH_CHAINER = 'pooch'
#: At which sizes networks are recorded: two for each size that varies.
SMALL_BATCHES = ((2, 3),)
SMALL_SIZES: dict[str, tuple[tuple[int, int], ...]] = {'resnext3d': ((32, 64), (32, 64), (16, 32))}


@dataclass(frozen=True)
class Outcome:
    """What one experiment gives.

    Attributes:
        network, size, machine, policy: what was run.
        feasible: the policy has a plan, and its allocations fit the device.
        seconds: of an iteration; None if it is not feasible.
        in_core_seconds: of an iteration that neither waits nor computes anything twice.
        budget_bytes: that the plan has.
        peak_bytes: of near memory, by counting bytes.
        device_bytes: what the allocator takes from the device for that; of in-core, the smallest device that is enough.
        keep, swap, recompute: verdicts on the maps that can leave.
        planning_seconds: for this budget.
    """

    network: str
    size: Size
    machine: str
    policy: str
    feasible: bool
    seconds: float | None
    in_core_seconds: float
    budget_bytes: int
    peak_bytes: int | None = None
    device_bytes: int | None = None
    keep: int = 0
    swap: int = 0
    recompute: int = 0
    planning_seconds: float = 0.0

    @property
    def images_per_second(self) -> float | None:
        """Images, or voxels where the size is a volume."""
        return units_of(self.size) / self.seconds if self.seconds else None

    @property
    def in_core_images_per_second(self) -> float:
        """The same if memory had no end."""
        return units_of(self.size) / self.in_core_seconds

    @property
    def below(self) -> float | None:
        """How much less it is than in-core: 0.1 is ten percent."""
        return 1 - self.in_core_seconds / self.seconds if self.seconds else None


class Experiments:
    """Everything that tables ask for; what was asked before is remembered.

    `record` gives the trace of a network at a small size, with even its smallest arrays.
    """

    def __init__(self, record: Callable[[str, Size], Trace]):
        self.record = cache(record)
        self.trace = cache(self._trace)
        self.stretch = cache(self._stretch)
        self.planned = cache(self._planned)
        self.as_pooch_has_it = cache(self._as_pooch_has_it)
        self.planned_as_published = cache(self._planned_as_published)
        self.in_core = cache(self._in_core)
        self.run = cache(self._run)

    def structure(self, network: str, size: Size) -> Trace:
        """The iteration as the host would record it, from recordings at small sizes."""
        wanted = size if isinstance(size, tuple) else (size,)
        return self._between(network, wanted, (), SMALL_SIZES.get(network, SMALL_BATCHES))

    def _between(self, network: str, wanted: tuple[int, ...], fixed: tuple[int, ...],
                 small: tuple[tuple[int, int], ...]) -> Trace:
        """Fixes one size after the other, and joins the recordings of the last one on the way back."""
        if not small:
            return self.record(network, fixed if len(fixed) > 1 else fixed[0])
        (first, second), rest = small[0], small[1:]
        return extrapolate(self._between(network, wanted, (*fixed, first), rest),
                           self._between(network, wanted, (*fixed, second), rest), first, second, wanted[len(fixed)])

    def _trace(self, network: str, size: Size, framework: str = CHAINER) -> Trace:
        """The iteration as it is on a GPU."""
        structure = self.structure(network, size)
        return on_cuda(without_scales(structure) if framework == POOCH_CHAINER else structure,
                       adds_in_place=framework == NNABLA)

    def _stretch(self, machine_name: str) -> float:
        """By how much the reference misses the roofline: on a machine of which it is not stated, as on the x86 one."""
        network, size, images_per_second = REFERENCE
        machine = read_machine(machine_name if machine_name in REFERENCE_MACHINES else REFERENCE_MACHINES[0])
        return size / images_per_second / sum(analytic(self.trace(network, size), machine).seconds)

    def problem(self, network: str, size: Size, machine: Machine, images_per_second: float | None = None,
                framework: str = CHAINER) -> Problem:
        """The iteration with momentum SGD, within all of the machine's memory.

        `images_per_second` are those in-core, if that is stated; else computations are drawn out as the reference's.
        """
        trace = self.trace(network, size, framework)
        if images_per_second is not None:
            in_core_seconds = units_of(size) / images_per_second
        else:
            in_core_seconds = sum(analytic(trace, machine).seconds) * self.stretch(machine.name)
        parameter_bytes = trace.standing_backward_bytes
        return Problem(trace, analytic(trace, machine, in_core_seconds),
                       Standing(3 * parameter_bytes, 2 * parameter_bytes), machine.usable_bytes, MIN_BYTES,
                       recalls=False)

    def _in_core(self, network: str, size: Size, machine: str, allocator: str = 'exact',
                 images_per_second: float | None = None, framework: str = CHAINER) -> Outcome:
        """The framework alone, whatever memory it takes; it is feasible if the device holds it."""
        described = read_machine(machine)
        problem = self.problem(network, size, described, images_per_second, framework)
        maps = tuple(replace(each, reused=framework != NNABLA) for each in problem.trace.maps)
        problem = replace(problem, trace=replace(problem.trace, maps=maps), budget_bytes=MOST_BYTES)
        schedule = lay_out(problem, POLICIES['keep'].decide(problem))
        timeline = simulate(problem, schedule)
        device_bytes = smallest_capacity(events_of(problem, schedule, timeline), ALLOCATORS[allocator], 2)
        return Outcome(
            network, size, machine, 'keep', device_bytes <= described.usable_bytes, timeline.seconds, timeline.seconds,
            described.usable_bytes, timeline.peak_bytes, device_bytes, **_counts(problem, schedule))

    def _run(self, network: str, size: Size, machine: str, policy: str, planned_for: str | None = None,
             allocator: str = 'exact', images_per_second: float | None = None, framework: str = CHAINER) -> Outcome:
        """A policy on a machine; or, with `planned_for`, what was planned for another one."""
        if policy in PUBLISHED:
            return self._run_as_published(network, size, machine, policy, planned_for or machine, images_per_second)
        problem = self.problem(network, size, read_machine(machine), images_per_second, framework)
        in_core_seconds = sum(problem.costs.seconds)
        plan = self.planned(network, size, planned_for or machine, policy, allocator, images_per_second, framework)
        if plan is None:
            return Outcome(network, size, machine, policy, False, None, in_core_seconds, problem.budget_bytes)
        run = _running(problem, plan.schedule, allocator)
        if run is None:
            return Outcome(network, size, machine, policy, False, None, in_core_seconds, plan.budget_bytes)
        timeline, device_bytes = run
        return Outcome(
            network, size, machine, policy, True, timeline.seconds, in_core_seconds, plan.budget_bytes,
            timeline.peak_bytes, device_bytes, **_counts(problem, plan.schedule), planning_seconds=plan.seconds)

    def _planned(self, network: str, size: Size, machine: str, policy: str, allocator: str,
                 images_per_second: float | None, framework: str) -> Planned | None:
        """The plan within the largest of the budgets whose allocations the device holds; None if there is none."""
        problem = self.problem(network, size, read_machine(machine), images_per_second, framework)
        for share in PLANNED:
            within = replace(problem, budget_bytes=math.floor(share * problem.budget_bytes))
            began = time.perf_counter()
            decision = POLICIES[policy].decide(within)
            seconds = time.perf_counter() - began
            # who does not look at memory when swap-ins are due is not held to a budget below the device either
            schedule = lay_out(within if decision.starts.checks_memory else problem, decision)
            if schedule.fits(problem.budget_bytes) and _running(problem, schedule, allocator) is not None:
                return Planned(schedule, within.budget_bytes, seconds)
            if allocator == 'exact' and decision.starts.checks_memory:
                return None  # a smaller budget only makes it harder
        return None

    def _run_as_published(self, network: str, size: Size, machine: str, policy: str, planned_for: str,
                          images_per_second: float | None) -> Outcome:
        """PoocH's own program: verdicts and starts of swap-ins are the plan's, wherever it runs."""
        problem = self.as_pooch_has_it(network, size, machine, images_per_second)
        in_core_seconds = sum(problem.costs.seconds)
        plan = self.planned_as_published(network, size, planned_for, policy, images_per_second)
        if plan is None:
            return Outcome(network, size, machine, policy, False, None, in_core_seconds, problem.budget_bytes)
        timeline = simulate(problem, plan.schedule)
        fits = timeline.peak_bytes <= problem.budget_bytes
        return Outcome(network, size, machine, policy, fits, timeline.seconds if fits else None,
                       in_core_seconds, plan.budget_bytes, timeline.peak_bytes, problem.budget_bytes,
                       **_counts(problem, plan.schedule), planning_seconds=plan.seconds)

    def _planned_as_published(self, network: str, size: Size, machine: str, policy: str,
                              images_per_second: float | None) -> Planned | None:
        problem = self.as_pooch_has_it(network, size, machine, images_per_second)
        began = time.perf_counter()
        schedule = lay_out(problem, PUBLISHED[policy](problem))
        fits = schedule.fits(problem.budget_bytes)
        return Planned(schedule, problem.budget_bytes, time.perf_counter() - began) if fits else None

    def _as_pooch_has_it(self, network: str, size: Size, machine: str, images_per_second: float | None) -> Problem:
        described = read_machine(machine)
        return as_pooch_has_it(self.problem(network, size, described, images_per_second, POOCH_CHAINER), described)


@dataclass(frozen=True)
class Planned:
    """A plan that fits a device: its schedule, its budget, and how long it took to find."""

    schedule: Schedule
    budget_bytes: int
    seconds: float


def units_of(size: Size) -> int:
    """Images of a batch, or voxels of a volume."""
    return math.prod(size) if isinstance(size, tuple) else size


def _running(problem: Problem, schedule: Schedule, allocator: str) -> tuple[Timeline, int] | None:
    """The iteration on a device with an allocator, and what that takes of the device; None if it runs out of memory.

    Where a malloc fails the computation waits for swap-outs until it succeeds. The simulator counts bytes and knows no
    addresses, so that it is told what it cannot have there, a little more after each failure.
    """
    lost = np.zeros_like(schedule.need)
    while True:
        slower = replace(schedule, need=schedule.need + lost)
        timeline = simulate(problem, slower)
        found = replay(events_of(problem, slower, timeline), ALLOCATORS[allocator](problem.budget_bytes), 2)
        if found.failed_at is None:
            return timeline, found.peak_reserved_bytes
        lost[found.failed_at] += problem.budget_bytes // 50
        if found.failed_at < 0 or slower.need[found.failed_at] >= problem.budget_bytes:
            return None


def _counts(problem: Problem, schedule: Schedule) -> dict[str, int]:
    """How many of the maps that can leave have which verdict."""
    verdicts = [verdict for each, verdict in zip(problem.trace.maps, schedule.verdicts, strict=True)
                if can_leave(each, problem.min_bytes)]
    return {verdict.value: verdicts.count(verdict) for verdict in Verdict}
