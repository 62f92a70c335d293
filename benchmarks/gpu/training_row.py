"""A row that trains: seconds per iteration, peaks, what was predicted of both, and what happened on the way.

    settle          iterations in which the graph is recorded, planned, and planned again
    iterations      timed: forward, backward and update, from one synchronised moment to the next
    one more        in which a thread watches the driver's memory, and no time is taken

Nothing is planned anew from the first timed iteration on. Rows of one process that differ in policy and budget alone
go on with the network of the row before, its recorded graph, the times that were measured of it, and pinned memory: the
next one settles sooner, and pins nothing. All else begins with `chainer_ooc.reset()`.

Data lie on the device, weights are random, the optimizer is momentum SGD. 'plain' is Chainer with `ooc` unset.
"""
from __future__ import annotations

import contextlib
import pathlib
import statistics
import time
from collections.abc import Hashable, Iterator
from typing import Any
from unittest import mock

import here  # noqa: F401  chainer_ooc before chainer, and the examples on the path

# isort: split
import chainer

import chainer_ooc
import evidence
import near
import networks
import profiler
from chainer_ooc.execute.graphs.graph import Graph
from chainer_ooc.plans.run import Run
from chainer_ooc.simulate.timeline import Stream
from pace import Pace

LEARNING_RATE = 0.001
TF32 = {'use_cudnn_tensor_core': 'always'}
#: What gives a graph another plan after an iteration.
LEARNING = ('note_timing', 'note_shortage', 'take_better')

#: What the rows before have left of recorded graphs and pinned memory is of use to the next row of the same; and their
#: network, since a plan for one whose parameters have no gradients and no momentum yet would be another.
_shared: Hashable = None
_trained: dict[Hashable, Training] = {}


class Training:
    """A network, its batch on the device, and its optimizer."""

    def __init__(self, network: str, batch: Any, image_side: int | None, device: near.Host | near.Cuda) -> None:
        self._device = device
        self.model, self._batch = networks.build(network, batch, image_side, device)
        self.optimizer = chainer.optimizers.MomentumSGD(lr=LEARNING_RATE, momentum=0.9).setup(self.model)
        self.loss = float('nan')
        self.host_seconds: list[float] = []

    def iterate(self) -> float:
        """Runs one iteration and returns its seconds."""
        self._device.synchronize()
        began = time.perf_counter()
        loss = self.model(*self._batch)
        self.model.cleargrads()
        loss.backward()
        self.optimizer.update()
        self.host_seconds.append(time.perf_counter() - began)
        self._device.synchronize()
        seconds = time.perf_counter() - began
        self.loss = float(loss.array)
        return seconds


@contextlib.contextmanager
def configured(policy: str, budget_bytes: int | None, allocator: str | None = None, min_bytes: int | None = None,
               host_limit_bytes: int | None = None, share: Hashable = None, **entries: Any) -> Iterator[None]:
    """Sets chainer.config.ooc* meanwhile; None leaves an entry alone.

    Rows of the same `share` find what the row before has left; without one, all is forgotten before and afterwards.
    """
    global _shared
    if share is None or share != _shared:
        _trained.clear()
        chainer_ooc.reset(unpin=True)
    _shared = share
    asked = {'ooc_budget': budget_bytes, 'ooc_allocator': allocator, 'ooc_min_bytes': min_bytes,
             'ooc_host_limit': host_limit_bytes, 'ooc': None if policy == 'plain' else policy}
    with contextlib.ExitStack() as stack:
        if share is None:
            stack.callback(chainer_ooc.reset, unpin=True)
        for name, value in {**entries, **{key: value for key, value in asked.items() if value is not None}}.items():
            stack.enter_context(chainer.using_config(name, value))
        yield


@contextlib.contextmanager
def planned_for_good() -> Iterator[None]:
    """No graph learns from its iterations meanwhile: planning takes its time, and would be timed with them."""
    with contextlib.ExitStack() as stack:
        for name in LEARNING:
            stack.enter_context(mock.patch.object(Graph, name, return_value=None))
        yield


def train(*, device: str, network: str, batch: Any, policy: str, budget_bytes: int | None, settle: int,
          iterations: int, min_bytes: int, image_side: int | None, allocator: str | None = None,
          tf32: bool = False, autotune: bool = False, host_limit_bytes: int | None = None,
          workspace: str | None = None, trace: str | None = None) -> dict[str, Any]:
    """Trains and returns the figures of the timed iterations; `trace` is a file that a profiler's goes to."""
    on = near.of(device)
    share = (None if policy == 'plain' else
             (network, str(batch), allocator, tf32, autotune, host_limit_bytes, min_bytes))
    try:
        with configured(policy, budget_bytes, allocator, min_bytes, host_limit_bytes, share, autotune=autotune,
                        **{'ooc_workspace': workspace, **(TF32 if tf32 else {})}), evidence.counting():
            on.trim()  # networks and graphs are cycles, whose arrays would count in this row
            training = _trained.get(share) or Training(network, batch, image_side, on)
            if share is not None:
                _trained[share] = training
            found = figures(training, on, policy, batch, settle, iterations, Pace())
            if trace is not None:
                with planned_for_good():
                    found['profile'] = profiler.profile(training.iterate, on.synchronize, pathlib.Path(trace))
            return found
    finally:
        on.trim()


def warm_up(*, device: str, network: str, batch: int, image_side: int | None) -> dict[str, Any]:
    """Two iterations of plain Chainer, the first of which compiles each kernel that the cache lacks."""
    on = near.of(device)
    with evidence.counting():
        training = Training(network, batch, image_side, on)
        first_seconds, second_seconds = training.iterate(), training.iterate()
    return {'first_seconds': first_seconds, 'second_seconds': second_seconds}


def figures(training: Training, on: near.Host | near.Cuda, policy: str, batch: Any, settle: int, iterations: int,
            pace: Pace) -> dict[str, Any]:
    """Trains, and says what was measured."""
    stats: list[chainer_ooc.IterationStats] = []
    planned: list[Any] = []

    def look() -> None:
        stats.append(chainer_ooc.stats())
        planned.append(chainer_ooc.plan())

    before_bytes = on.used_bytes()
    timing = planned_for_good()
    followed: list[str] = []

    def note(name: str, seconds: list[float]) -> None:
        evidence.note(name, seconds)
        said = None if policy == 'plain' else chainer_ooc.stats()
        if said is not None:
            expected = 'not planned' if said.predicted_seconds is None else f'{said.predicted_seconds:.3f} s expected'
            plan = chainer_ooc.plan()
            within = '' if plan is None else f' within {plan.budget_bytes / 1e9:.3f} GB'
            followed.append(f'{said.phase}: {said.keep}/{said.swap}/{said.recompute}{within}, {expected}')
            evidence.note('followed', followed)

    _, times = pace.run(training.iterate, settle, iterations, timing, note, look)
    # Libraries, kernels and the context are there by now. What the allocators hold is not among them.
    base_bytes = on.used_bytes() - on.held_bytes()
    with planned_for_good(), near.highest(on) as seen:
        training.iterate()
    median_seconds = statistics.median(times)
    run = chainer_ooc.last_run()
    return {
        'seconds': median_seconds, 'spread': [min(times), max(times)],
        'host_seconds': statistics.median(training.host_seconds[-len(times) - 1:-1]),
        'images_per_second': networks.images_of(batch) / median_seconds, 'loss': training.loss,
        'driver_peak_bytes': seen[0] - base_bytes, 'driver_base_bytes': base_bytes,
        'driver_before_bytes': before_bytes,
        **({} if policy == 'plain' else _accounted(stats, planned)),
        **({} if policy == 'plain' or run is None else {'seconds_by_function': seconds_by_function(run)}),
    }


def _accounted(stats: list[chainer_ooc.IterationStats], planned: list[Any]) -> dict[str, Any]:
    """What the statistics say of the timed iterations: the highest peak, the middle of the rest."""
    last = stats[-1]
    predicted = [each.predicted_seconds for each in stats if each.predicted_seconds is not None]
    return {
        'phases': sorted({each.phase for each in stats}), 'peak_bytes': max(each.peak_bytes for each in stats),
        'plans': len({id(each) for each in planned}),
        'plan_budget_bytes': None if planned[-1] is None else planned[-1].budget_bytes,
        'predicted_peak_bytes': last.predicted_peak_bytes,
        'predicted_seconds': statistics.median(predicted) if predicted else None,
        'accounted_seconds': statistics.median(each.seconds for each in stats),
        'stall_seconds': statistics.median(each.stall_seconds for each in stats),
        'verdicts': f'{last.keep}/{last.swap}/{last.recompute}', 'faults': max(each.faults for each in stats),
        'recomputed_calls': last.recomputed_calls, 'swapped_out_bytes': last.swapped_out_bytes,
        'swapped_in_bytes': last.swapped_in_bytes,
    }


def seconds_by_function(run: Run) -> dict[str, list[float]]:
    """Seconds of the last iteration, forward and backward, by class of function: [0.031, 0.064], the longest first.

    Where nothing had to move nobody takes times of calls: then they are those that the plan was made from.
    """
    trace = run.trace
    ran = [task for task in run.timeline.tasks if task.stream is Stream.COMPUTE]
    seconds = ({task.subject: task.end_seconds - task.start_seconds for task in ran} if ran else
               {position: each.seconds for position, each in enumerate((*trace.calls, *trace.steps))})
    found: dict[str, list[float]] = {}
    for position, took in seconds.items():
        is_backward = position >= len(trace.calls)
        step = trace.steps[position - len(trace.calls)] if is_backward else None
        label = trace.calls[position].label if step is None else (
            trace.calls[step.call].label if step.call >= 0 else step.label)
        found.setdefault(label, [0.0, 0.0])[is_backward] += took
    return dict(sorted(found.items(), key=lambda item: -sum(item[1])))
