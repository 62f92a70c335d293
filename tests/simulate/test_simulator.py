"""Swap-outs, memory and swap-ins: each rule as a drawn timeline (`literal_iterations` says how drawings are read)."""
import pytest

RETAINED = {'retained': True}


# --- swap-outs ----------------------------------------------------------------------------------------------------


def test_a_swap_out_begins_after_the_call_of_the_last_forward_use(run):
    # a: made by 0, read by 1 and by step 5
    shown = run([2, 2, 2], [2, 2, 6], {'a': (4, 0, 1, [5])}, begin={'a': 5})
    assert shown.is_drawn('''
        seconds  0....5....0....5....
        compute  0011223344....555555
        out      ....aaaa
        in       ..........aaaa''')
    assert shown.stalls == [(5, 'a', 4, 'swap-in')]


def test_a_swap_out_waits_for_the_one_before_it(run):
    # b would begin at 4, when its call ends, but a is not whole before 7
    shown = run([2, 2, 2], [2, 2, 2], {'a': (5, 0, 0, [], RETAINED), 'b': (2, 1, 1, [], RETAINED)})
    assert shown.is_drawn('''
        seconds  0....5....0.
        compute  001122334455
        out      ..aaaaabb
        in''')
    # b is whole at 9, within position 4
    assert (shown.stalls, shown.memory) == ([], ([0, 5, 7, 7, 2, 0], 7))


def test_maps_that_leave_together_leave_in_the_order_of_their_ids(run):
    shown = run([1, 3], [], {'a': (1, 0, 0, [], RETAINED), 'b': (2, 0, 0, [], RETAINED)})
    assert shown.is_drawn('''
        seconds  0...
        compute  0111
        out      .abb
        in''')


def test_a_later_leave_is_obeyed(run):
    # a: its last forward use is in call 0, but it is to leave after call 2
    shown = run([1, 1, 1], [4, 1], {'a': (2, 0, 0, [4])}, leaves={'a': 2}, begin={'a': 4})
    assert shown.is_drawn('''
        seconds  0....5..
        compute  01233334
        out      ...aa
        in''')
    # it is whole at 5, but nobody looks before position 4 wants it back: it stays
    assert (shown.stalls, shown.memory) == ([], ([0, 2, 2, 2, 2], 2))


def test_what_backward_never_reads_does_not_come_back(run):
    shown = run([1, 3], [1, 1], {'a': (2, 0, 0, [], RETAINED)})
    assert shown.is_drawn('''
        seconds  0....5
        compute  011123
        out      .aa
        in''')
    assert (shown.stalls, shown.memory) == ([], ([0, 2, 0, 0], 2))


def test_the_iteration_ends_with_its_last_computation_whatever_still_leaves(run):
    shown = run([1, 1], [1], {'a': (9, 0, 0, [], RETAINED)})
    assert shown.is_drawn('''
        seconds  0....5....
        compute  012
        out      .aaaaaaaaa
        in''')
    assert shown.timeline.seconds == 3


# --- memory -------------------------------------------------------------------------------------------------------


def test_memory_is_free_only_when_the_copy_is_whole_and_at_the_edge_of_a_computation(run):
    # a is whole at 3: position 1 has it to its end, at 5, position 2 does not
    shown = run([1, 4, 1], [1], {'a': (2, 0, 0, [], RETAINED)})
    assert shown.is_drawn('''
        seconds  0....5.
        compute  0111123
        out      .aa
        in''')
    assert shown.memory == ([0, 2, 0, 0], 2)


def test_a_copy_that_ends_with_a_computation_has_freed_its_memory_for_the_next(run):
    # a is whole at 3, when position 2 begins, which needs all of the budget
    shown = run([1, 2, 1], [1], {'a': (2, 0, 0, [], RETAINED)}, allocates={2: 5}, budget=5)
    assert shown.is_drawn('''
        seconds  0....
        compute  01123
        out      .aa
        in''')
    assert (shown.stalls, shown.memory) == ([], ([0, 2, 5, 0], 5))


def test_an_allocation_waits_for_the_oldest_swap_out(run):
    # position 1 allocates 6 of 8, a is 4
    shown = run([1, 1, 1], [1], {'a': (4, 0, 0, [], RETAINED)}, allocates={0: 4, 1: 6}, budget=8)
    assert shown.is_drawn('''
        seconds  0....5..
        compute  0....123
        out      .aaaa
        in''')
    assert (shown.stalls, shown.memory) == ([(1, 'a', 4, 'memory')], ([4, 6, 0, 0], 6))


def test_an_allocation_that_just_fits_does_not_wait(run):
    shown = run([1, 1, 1], [1], {'a': (4, 0, 0, [], RETAINED)}, allocates={0: 4, 1: 4}, budget=8)
    assert shown.is_drawn('''
        seconds  0....
        compute  0123
        out      .aaaa
        in''')
    assert (shown.stalls, shown.memory) == ([], ([4, 8, 4, 4], 8))


def test_an_allocation_waits_for_as_many_swap_outs_as_it_needs_and_each_is_a_stall(run):
    # position 2 allocates 6 of 8: it waits for a and b, and leaves c alone
    maps = {'a': (2, 0, 0, [], RETAINED), 'b': (3, 0, 0, [], RETAINED), 'c': (2, 1, 1, [], RETAINED)}
    shown = run([1, 1, 1], [1], maps, allocates={2: 6}, budget=8)
    assert shown.is_drawn('''
        seconds  0....5..
        compute  01....23
        out      .aabbbcc
        in''')
    assert shown.stalls == [(2, 'a', 1, 'memory'), (2, 'b', 3, 'memory')]
    assert shown.memory == ([0, 5, 8, 2], 8)


def test_a_workspace_counts_while_its_computation_runs(run):
    shown = run([1, 1], [1, 1], {'a': (3, 0, 1, [3])}, keep='a', allocates={0: 4, 1: 7, 2: 1}, standing=(10, 20))
    assert shown.memory == ([14, 20, 24, 23], 24)


def test_what_is_kept_is_freed_after_its_last_backward_use(run):
    shown = run([1, 1], [1, 1, 1], {'a': (4, 0, 1, [2, 3]), 'b': (2, 1, 1, [2])}, keep='ab')
    assert shown.is_drawn('''
        seconds  0....
        compute  01234
        out
        in''')
    assert (shown.stalls, shown.memory) == ([], ([0, 4, 6, 4, 0], 6))


def test_what_nobody_retains_dies_after_its_last_forward_use(run):
    shown = run([1, 1, 1], [1], {'a': (4, 0, 1, [])})
    assert shown.memory == ([0, 4, 0, 0], 4)


def test_a_schedule_that_cannot_fit_is_simulated(run):
    # nothing is leaving that could be waited for
    shown = run([1, 1], [1], {'a': (9, 0, 0, [2])}, keep='a', budget=8)
    assert (shown.stalls, shown.memory) == ([], ([0, 9, 9], 9))


# --- swap-ins -----------------------------------------------------------------------------------------------------


def test_a_swap_in_starts_with_the_computation_that_its_plan_says(run):
    shown = run([1, 3], [2, 2, 2], {'a': (2, 0, 0, [4])}, begin={'a': 3})
    assert shown.is_drawn('''
        seconds  0....5....
        compute  0111223344
        out      .aa
        in       ......aa''')
    assert (shown.stalls, shown.memory) == ([], ([0, 2, 0, 2, 2], 2))


def test_a_computation_waits_for_its_swap_in(run):
    # a comes while position 3 runs, and for three seconds more
    shown = run([1, 5], [2, 2, 2], {'a': (5, 0, 0, [4])}, begin={'a': 3})
    assert shown.is_drawn('''
        seconds  0....5....0....
        compute  0111112233...44
        out      .aaaaa
        in       ........aaaaa''')
    assert (shown.stalls, shown.memory) == ([(4, 'a', 3, 'swap-in')], ([0, 5, 0, 5, 5], 5))


def test_memory_that_became_free_while_a_computation_waited_for_its_swap_in_is_free_when_it_begins(run):
    # b is whole at 8, position 3 begins at 9
    shown = run([1, 4, 1], [1], {'a': (3, 0, 0, [3]), 'b': (2, 2, 2, [], RETAINED)})
    assert shown.is_drawn('''
        seconds  0....5....
        compute  011112...3
        out      .aaa..bb
        in       ......aaa''')
    assert (shown.stalls, shown.memory) == ([(3, 'a', 3, 'swap-in')], ([0, 3, 0, 3], 3))


def test_a_swap_in_without_memory_tries_again_at_later_edges(run):
    # a may start with position 3, but b is still there; b is whole at 8, which is noticed when position 5 begins, after
    # what began there; so a starts with position 6
    maps = {'a': (3, 0, 0, [7]), 'b': (3, 2, 2, [], RETAINED)}
    shown = run([1, 3, 1], [2, 1, 1, 1, 1], maps, begin={'a': 3}, budget=5)
    assert shown.is_drawn('''
        seconds  0....5....0..
        compute  0111233456..7
        out      .aaa.bbb
        in       .........aaa''')
    assert (shown.stalls, shown.memory) == ([(7, 'a', 2, 'swap-in')], ([0, 3, 0, 3, 3, 0, 3, 3], 3))


def test_a_swap_in_without_memory_on_its_way_comes_at_its_use(run):
    # a may start with position 3, but positions 3 and 4 leave no room for it
    shown = run([1, 3, 1], [1, 1, 1], {'a': (3, 0, 0, [5])}, begin={'a': 3}, allocates={3: 3, 4: 3}, budget=5)
    assert shown.is_drawn('''
        seconds  0....5....0
        compute  0111234...5
        out      .aaa
        in       .......aaa''')
    assert (shown.stalls, shown.memory) == ([(5, 'a', 3, 'swap-in')], ([0, 3, 0, 3, 3, 3], 3))


def test_a_swap_in_at_its_use_waits_for_memory_first(run):
    # position 3 reads a and allocates 2 of 8; b has to go
    shown = run([1, 3, 1], [1], {'a': (3, 0, 0, [3]), 'b': (4, 2, 2, [], RETAINED)}, allocates={3: 2}, budget=8)
    assert shown.is_drawn('''
        seconds  0....5....0..
        compute  01112.......3
        out      .aaa.bbbb
        in       .........aaa''')
    assert shown.stalls == [(3, 'b', 4, 'memory'), (3, 'a', 3, 'swap-in')]
    assert shown.memory == ([0, 3, 0, 5], 5)


def test_swap_ins_run_one_after_the_other_in_the_order_of_their_uses(run):
    # all may start with position 3
    shown = run([1, 6, 1], [2, 2, 3, 1], {'a': (1, 0, 0, [6]), 'b': (3, 0, 0, [4]), 'c': (2, 0, 0, [5])},
                begin={'a': 3, 'b': 3, 'c': 3})
    assert shown.is_drawn('''
        seconds  0....5....0....5.
        compute  0111111233.445556
        out      .abbbcc
        in       ........bbbcca''')
    assert shown.stalls == [(4, 'b', 1, 'swap-in')]


def test_a_swap_in_never_overtakes_one_that_has_no_memory_yet(run):
    # beside position 3 there is room for b, but not for a, which is needed first
    shown = run([1, 5, 1], [2, 2, 1], {'a': (4, 0, 0, [4]), 'b': (1, 0, 0, [5])}, begin={'a': 3, 'b': 3},
                allocates={3: 3}, budget=6)
    assert shown.is_drawn('''
        seconds  0....5....0....5
        compute  011111233....445
        out      .aaaab
        in       .........aaaab''')
    assert (shown.stalls, shown.memory) == ([(4, 'a', 4, 'swap-in')], ([0, 5, 0, 3, 5, 1], 5))


def test_both_directions_run_at_the_same_time(run):
    shown = run([1, 3, 1], [2, 2, 1], {'a': (2, 0, 0, [4]), 'b': (6, 2, 2, [5])}, begin={'a': 3, 'b': 5})
    assert shown.is_drawn('''
        seconds  0....5....0
        compute  0111233445
        out      .aa..bbbbbb
        in       .....aa''')
    assert (shown.stalls, shown.memory) == ([], ([0, 2, 0, 8, 8, 6], 8))


def test_a_map_that_comes_counts_once_when_it_is_read(run):
    # position 4 reads a, which came with position 3: b has room beside it
    shown = run([1, 4, 1], [2, 3, 1], {'a': (2, 0, 0, [4]), 'b': (2, 0, 0, [5])}, begin={'a': 3, 'b': 4}, budget=4)
    assert shown.is_drawn('''
        seconds  0....5....0.
        compute  011112334445
        out      .aabb
        in       ......aabb''')
    assert (shown.stalls, shown.memory) == ([], ([0, 4, 0, 2, 4, 2], 4))


# --- maps that are wanted back while they leave -------------------------------------------------------------------


@pytest.mark.parametrize('begin', [2, 3])
def test_a_map_that_is_wanted_back_while_it_leaves_stays_and_counts_once(run, begin):
    # with position 2 its swap-in is due, and position 3 reads it, all before it is whole
    shown = run([1, 1], [2, 2], {'a': (5, 0, 0, [3])}, begin={'a': begin}, budget=5)
    assert shown.is_drawn('''
        seconds  0....5
        compute  012233
        out      .aaaaa
        in''')
    assert (shown.stalls, shown.memory) == ([], ([0, 5, 5, 5], 5))


def test_a_map_that_was_wanted_back_in_time_stays_when_its_copy_is_whole(run):
    # a is whole at 4; position 4, at 6, finds it there
    shown = run([1, 1], [3, 1, 1], {'a': (3, 0, 0, [4])}, begin={'a': 2}, budget=3)
    assert shown.is_drawn('''
        seconds  0....5.
        compute  0122234
        out      .aaa
        in''')
    assert (shown.stalls, shown.memory) == ([], ([0, 3, 3, 3, 3], 3))


def test_a_map_whose_copy_became_whole_in_the_computation_before_stays(run):
    # a is whole at 3, within position 2, but what begins with position 3 is issued before that is noticed
    shown = run([1, 1], [3, 1], {'a': (2, 0, 0, [3])}, begin={'a': 3})
    assert shown.is_drawn('''
        seconds  0....5
        compute  012223
        out      .aa
        in''')
    assert (shown.stalls, shown.memory) == ([], ([0, 2, 2, 2], 2))


def test_a_map_that_stays_is_not_let_go_while_its_computation_waits_for_another(run):
    # position 3 reads a, which is away, and b, which is leaving; together they are all of the budget
    shown = run([1, 7, 1], [1], {'a': (6, 0, 0, [3]), 'b': (4, 2, 2, [3])}, budget=10)
    assert shown.is_drawn('''
        seconds  0....5....0....5
        compute  011111112......3
        out      .aaaaaa..bbbb
        in       .........aaaaaa''')
    assert (shown.stalls, shown.memory) == ([(3, 'a', 6, 'swap-in')], ([0, 6, 0, 10], 10))


def test_an_allocation_waits_for_the_oldest_swap_out_even_if_its_map_stays(run):
    # position 2 reads a, which stays, and allocates 3 of 8: b has to go, and is copied after a
    shown = run([1, 1], [1], {'a': (5, 0, 0, [2]), 'b': (2, 1, 1, [], RETAINED)}, allocates={2: 3}, budget=8)
    assert shown.is_drawn('''
        seconds  0....5...
        compute  01......2
        out      .aaaaabb
        in''')
    assert shown.stalls == [(2, 'a', 4, 'memory'), (2, 'b', 2, 'memory')]
    assert shown.memory == ([0, 5, 8], 8)


def test_a_map_that_stayed_is_freed_after_its_last_use_but_not_before_its_copy_is_whole(run):
    # position 2 is the only one that reads a; position 4 allocates 5 of 8
    shown = run([1, 1], [1, 1, 1], {'a': (6, 0, 0, [2])}, allocates={4: 5}, budget=8)
    assert shown.is_drawn('''
        seconds  0....5..
        compute  0123...4
        out      .aaaaaa
        in''')
    assert (shown.stalls, shown.memory) == ([(4, 'a', 3, 'memory')], ([0, 6, 6, 6, 5], 6))


def test_a_map_that_somebody_holds_after_its_last_use_counts_once(run):
    shown = run([1, 1], [1, 1, 1], {'a': (6, 0, 0, [2], {'held': True})}, budget=6)
    assert (shown.stalls, shown.memory) == ([], ([0, 6, 6, 6, 6], 6))
