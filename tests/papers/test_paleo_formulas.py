"""Equations 7 to 12 of OOC-Paleo beside the simulator: exact where their assumptions hold, bounds where not."""
from itertools import accumulate

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from chainer_ooc.papers.paleo_formulas import (
    Pass,
    Sections,
    capacity_backward,
    capacity_forward_seconds,
    capacity_iteration,
    catching_layer,
    on_demand_iteration,
    section_seconds,
    vdnn_backward,
    vdnn_forward,
    vdnn_iteration,
)
from support.planning.paleo_chains import AMPLE, chain, everything, passes, simulated, streamed_seconds

LAYER = st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 8))
LAYERS = st.lists(LAYER, min_size=1, max_size=9).map(lambda rows: tuple(zip(*rows, strict=True)))
RATE = st.sampled_from([0.5, 1.0, 2.0, 4.0])  # powers of two: all sums of times are exact
OUT = RATE | st.just(0.0)
LATENCY = st.sampled_from([0.0, 0.5])


def tight(layers, room, **links):
    """A chain whose budget is between its largest map and all of them."""
    sizes = layers[2]
    least = max(sizes)
    return chain(*layers, budget=least + round(room * (sum(sizes) - least)), **links)


def with_memory_to_come(layers, room, **links):
    """One that keeps some maps, and frees scratch memory for all others when forward ends. Swap-outs take no time."""
    sizes = layers[2]
    return chain(*layers, budget=max(sizes) + round(room * sum(sizes)) + sum(sizes), loss_bytes=sum(sizes), **links)


def kept_layers(sizes, capacity):
    """Calayers: how many layers, in the order of backward, near memory holds when backward begins."""
    return sum(held <= capacity for held in accumulate(sizes))


# --- each equation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(('work', 'swap', 'seconds'), [(2, 1, 2), (2, 8, 8)])
def test_a_section_ends_when_work_and_swap_in_have_ended(work, swap, seconds):
    assert section_seconds(work, swap) == seconds


@given(LAYERS, st.integers(0, 40), RATE)
def test_the_layer_that_waits_is_the_first_whose_data_has_come_after_the_work_before_it(layers, capacity, rate):
    _, seconds, sizes = layers
    kept = kept_layers(sizes, capacity)
    backward = Pass(seconds, tuple(size / rate * (layer >= kept) for layer, size in enumerate(sizes)))
    kept_bytes = sum(sizes[:kept])
    late = [layer for layer in range(kept, len(sizes))
            if (sum(sizes[:layer + 1]) - kept_bytes) / rate > sum(seconds[:layer])]  # Tcatch of equation 11
    assert catching_layer(backward) == (late[0] if late else None)


# --- literal passes --------------------------------------------------------------------------------------------------


def test_vdnn_like_sections():
    """Three layers, whose data takes longer than the layer before twice.

    compute  ...00...1112
    in       000111112
    """
    sections = vdnn_backward(Pass((2, 3, 1), (3, 5, 1)))
    assert sections == Sections(3, (5, 3, 1))
    assert sections.total_seconds == 12


def test_capacity_based_sections():
    """The third layer waits, and those after it are in step.

    compute  00111..2..34
    in       22222223334
    """
    assert capacity_backward(Pass((2, 3, 1, 1, 1), (0, 0, 7, 3, 1))) == Sections(0.0, (2, 5, 3, 1, 1))


def test_forward_ends_when_what_is_not_kept_has_gone():
    """Layer 2 stays and fills the memory.

    compute  0011.....22
    out      ..0000111
    """
    assert capacity_forward_seconds(Pass((2, 2, 2), (4, 3, 0))) == 11
    assert capacity_forward_seconds(Pass((2, 2, 2), (1, 0, 0))) == 6
    assert capacity_forward_seconds(Pass((2, 2, 2), (0, 0, 0))) == 6


def test_vdnn_like_forward_is_the_mirror_of_its_backward():
    assert vdnn_forward(Pass((1, 3, 2), (1, 5, 3))) == Sections(0.0, (1, 3, 5, 3))


def test_without_prefetching_each_layer_waits_for_all_of_its_data():
    forward, backward = Pass((1, 1), (0, 0)), Pass((2, 2), (0, 3))
    assert on_demand_iteration(forward, backward).backward_seconds == 7
    assert capacity_iteration(forward, backward).backward_seconds == 5


# --- vDNN-like, beside the simulator ---------------------------------------------------------------------------------


@given(LAYERS, OUT, RATE, LATENCY)
def test_backward_of_vdnn_all_is_the_sum_of_its_sections(layers, out, back, latency):
    """Exact: each swap-in begins with the step before, and both are waited for, as equation 7 says."""
    problem = chain(*layers, out=out, back=back, latency=latency)
    _, seconds, swapped = simulated('vdnn-all', problem)
    assert swapped == everything(problem)
    assert seconds == vdnn_backward(passes(problem, swapped)[1]).total_seconds


@given(LAYERS, st.floats(0, 1), RATE)
def test_backward_of_vdnn_all_is_no_shorter_where_memory_is_short(layers, room, back):
    """A swap-in for which there is no room beside the layer's own data begins later."""
    problem = tight(layers, room, back=back)
    _, seconds, swapped = simulated('vdnn-all', problem)
    assert seconds >= vdnn_backward(passes(problem, swapped)[1]).total_seconds


@given(LAYERS, OUT, RATE, LATENCY)
def test_forward_of_vdnn_all_runs_no_swap_out_beside_a_layer(layers, out, back, latency):
    """The policy's swap-outs begin when their layer ends and are waited for at once: the sum, and not the maximum."""
    problem = chain(*layers, out=out, back=back, latency=latency)
    seconds, _, swapped = simulated('vdnn-all', problem)
    forward, _ = passes(problem, swapped)
    assert seconds == forward.in_core_seconds + sum(forward.swap_seconds)
    assert seconds >= vdnn_forward(forward).total_seconds


@given(LAYERS, OUT, RATE, LATENCY)
def test_an_iteration_of_the_formula_is_between_vdnn_plus_plus_and_vdnn_all(layers, out, back, latency):
    """Without the waits, copies queue behind each other, and what is still leaving when it is wanted back stays."""
    problem = chain(*layers, out=out, back=back, latency=latency)
    formula = vdnn_iteration(*passes(problem, everything(problem))).seconds
    assert sum(simulated('vdnn++', problem)[:2]) <= formula <= sum(simulated('vdnn-all', problem)[:2])


@given(LAYERS, RATE)
def test_vdnn_plus_plus_saves_nothing_but_the_first_wait_where_swap_outs_take_no_time(layers, back):
    """The sections are the same: a swap-in begins with a step that itself waited for the swap-in before."""
    assume(layers[2][-1])
    problem = chain(*layers, back=back)
    sections = vdnn_backward(passes(problem, everything(problem))[1])
    assert simulated('vdnn++', problem)[1] == sections.total_seconds - sections.lead_seconds


# --- capacity-based, beside the simulator ----------------------------------------------------------------------------


@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 8), st.floats(0, 1), RATE)
def test_backward_of_capacity_is_exact_for_equal_layers_with_memory_to_come(count, seconds, size, room, back):
    problem = with_memory_to_come(([seconds] * count, [seconds] * count, [size] * count), room, back=back)
    forward_seconds, backward_seconds, swapped = simulated('capacity', problem)
    forward, backward = passes(problem, swapped)
    assert count - len(swapped) == kept_layers([size] * count, problem.budget_bytes - size * count)
    assert forward_seconds == capacity_forward_seconds(forward) == count * seconds
    assert backward_seconds == capacity_backward(backward).total_seconds


@given(LAYERS, st.floats(0, 1), RATE)
def test_backward_of_capacity_is_no_longer_than_the_formula_where_layers_differ(layers, room, back):
    """After Tcatch the formula lets the link idle until the next layer begins. Execution does not: where processing
    falls back behind swap-in, data comes ahead once more, and each layer is its own Tcatch.
    """
    problem = with_memory_to_come(layers, room, back=back)
    _, seconds, swapped = simulated('capacity', problem)
    backward = passes(problem, swapped)[1]
    assert seconds == streamed_seconds(backward) <= capacity_backward(backward).total_seconds


def test_how_much_the_formula_loses_by_idling_after_it_was_caught():
    """Both wait for the data of layer 0, and then the next layer's comes beside each.

    simulated  ....01111111123     in 0000122223333
    formula    ....0111111112...3  in 000012222....3333
    """
    early = Pass((1, 8, 1, 1), (4, 1, 1, 1))
    late = Pass((1, 8, 1, 1), (4, 1, 4, 4))
    assert streamed_seconds(early) == capacity_backward(early).total_seconds == 15
    assert (streamed_seconds(late), capacity_backward(late).total_seconds) == (15, 18)


@given(st.integers(2, 6), st.integers(0, 9), st.integers(1, 5), st.integers(1, 8), OUT, RATE)
def test_in_a_full_memory_equal_layers_lose_the_first_of_them_at_most(kept, more, seconds, size, out, back):
    """Equation 10 has swap-in begin with backward. But all memory is in use then, until the first layer has ended."""
    count = kept + more
    problem = chain([seconds] * count, [seconds] * count, [size] * count, budget=kept * size, out=out, back=back)
    forward_seconds, backward_seconds, swapped = simulated('capacity', problem)
    forward, backward = passes(problem, swapped)
    assert len(swapped) == more
    assert forward_seconds == capacity_forward_seconds(forward)
    assert 0 <= backward_seconds - capacity_backward(backward).total_seconds <= seconds
    if more and size / back > kept * seconds:  # swap-in is waited for from the first layer on that is not kept
        assert backward_seconds == capacity_backward(backward).total_seconds + seconds


@given(LAYERS, st.floats(0, 1), OUT, RATE)
def test_a_full_memory_is_no_faster_than_a_link_that_never_pauses(layers, room, out, back):
    """That bounds execution from below for layers that differ too; the formula does not, see the next test."""
    problem = tight(layers, room, out=out, back=back)
    forward_seconds, backward_seconds, swapped = simulated('capacity', problem)
    forward, backward = passes(problem, swapped)
    assert forward_seconds >= capacity_forward_seconds(forward)
    assert backward_seconds >= streamed_seconds(backward)


def test_in_a_full_memory_the_formula_is_no_bound_for_layers_that_differ():
    """It idles the link where execution does not, and execution waits for memory where the formula does not."""
    shorter = chain([1] * 4, [5, 1, 5, 1], [3, 1, 5, 6], budget=9)
    longer = chain([1] * 4, [1] * 4, [3] * 4, budget=6)
    seconds = [(simulated('capacity', problem)[1],
                capacity_backward(passes(problem, simulated('capacity', problem)[2])[1]).total_seconds)
               for problem in (shorter, longer)]
    assert seconds == [(17, 18), (8, 7)]


def test_what_fits_runs_at_full_utilisation():
    problem = chain([2, 1], [3, 1], [5, 5], budget=AMPLE)
    forward_seconds, backward_seconds, swapped = simulated('capacity', problem)
    assert (forward_seconds, backward_seconds, swapped) == (3, 4, set())
    assert capacity_iteration(*passes(problem, swapped)).seconds == 7
    assert vdnn_iteration(*passes(problem, everything(problem))).seconds > 7
