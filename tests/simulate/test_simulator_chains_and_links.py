"""Recomputation, links, copies that are waited for, and the value that a simulation gives, as drawn timelines."""
from chainer_ooc.simulate.timeline import Cause, Stall, Stream, Task, Timeline
from support.planning.literal_iterations import make_problem, run_problem

RETAINED = {'retained': True}


# --- recomputation ------------------------------------------------------------------------------------------------
#
# call   0 ----> 1 ----> 2        a and b are read by the next call; step 3 reads c, 4 reads b, 5 reads a
#        a (2)   b (2)   c (2)    calls take 1, 2 and 3 seconds, steps 1 second
NET = {'a': (2, 0, 1, [5]), 'b': (2, 1, 2, [4]), 'c': (2, 2, 2, [3])}
READS = {1: 'a', 2: 'b'}


def test_what_runs_again_runs_before_its_step(run):
    # position 4: call 1 again for two seconds, then the step
    shown = run([1, 2, 3], [1, 1, 1], NET, keep='ac', again='b', reads=READS)
    assert shown.is_drawn('''
        seconds  0....5....0
        compute  01122234445
        out
        in''')
    assert (shown.stalls, shown.memory) == ([], ([0, 2, 4, 4, 4, 2], 4))
    assert [task.recomputed_seconds for task in shown.timeline.tasks] == [0, 0, 0, 0, 2, 0]


def test_recomputation_recurses_and_a_shared_prefix_runs_once(run):
    # step 3 wants c: calls 1 and 2 run again; b stays for step 4
    shown = run([1, 2, 3], [1, 1, 1], NET, keep='a', again='bc', reads=READS)
    assert shown.is_drawn('''
        seconds  0....5....0...
        compute  01122233333345
        out
        in''')
    assert (shown.stalls, shown.memory) == ([], ([0, 2, 4, 6, 4, 2], 6))
    assert [task.recomputed_seconds for task in shown.timeline.tasks] == [0, 0, 0, 5, 0, 0]


def test_a_prefix_that_is_not_shared_runs_again(run):
    # step 3: calls 1 and 2; step 4: call 1 once more
    shown = run([1, 2, 3], [1, 1, 1], NET, keep='a', again='bc', reads=READS, shares_chains=False)
    assert shown.is_drawn('''
        seconds  0....5....0....5
        compute  0112223333334445
        out
        in''')
    assert [task.recomputed_seconds for task in shown.timeline.tasks] == [0, 0, 0, 5, 2, 0]


def test_a_prefix_is_shared_only_if_memory_allows_it(run):
    shown = run([1, 2, 3], [1, 1, 1], NET, keep='a', again='bc', reads=READS, allocates={3: 3}, budget=7)
    assert [task.recomputed_seconds for task in shown.timeline.tasks] == [0, 0, 0, 5, 2, 0]
    assert shown.memory == ([0, 2, 4, 7, 4, 2], 7)
    shown = run([1, 2, 3], [1, 1, 1], NET, keep='a', again='bc', reads=READS, allocates={3: 3}, budget=9)
    assert [task.recomputed_seconds for task in shown.timeline.tasks] == [0, 0, 0, 5, 0, 0]
    assert shown.memory == ([0, 2, 4, 9, 4, 2], 9)


def test_what_a_chain_allocates_counts_at_its_step_if_it_is_more_than_the_steps_own(run):
    # call 1 allocates 5, b among it: at position 4 beside a; step 4 itself allocates 1, or 8, beside a and b
    shown = run([1, 2, 3], [1, 1, 1], NET, keep='ac', again='b', reads=READS, allocates={1: 5, 4: 1})
    assert shown.memory == ([0, 7, 4, 4, 7, 2], 7)
    shown = run([1, 2, 3], [1, 1, 1], NET, keep='ac', again='b', reads=READS, allocates={1: 5, 4: 8})
    assert shown.memory == ([0, 7, 4, 4, 12, 2], 12)


def test_an_allocation_of_a_chain_waits_for_memory(run):
    # position 4 needs a and the 4 that call 1 allocates, 6 of 10; d, which is 5, has to go first
    net = {**NET, 'd': (5, 2, 2, [], RETAINED)}
    shown = run([1, 2, 3], [1, 1, 1], net, keep='ac', again='b', reads=READS, allocates={1: 4}, budget=10)
    assert shown.is_drawn('''
        seconds  0....5....0....
        compute  0112223....4445
        out      ......ddddd
        in''')
    assert (shown.stalls, shown.memory) == ([(4, 'd', 4, 'memory')], ([0, 6, 4, 9, 6, 2], 9))


def test_a_chain_waits_for_the_map_that_it_starts_from(run):
    # step 4 wants b, for which call 1 reads a: a comes for the chain, before step 5 reads it
    shown = run([1, 2, 3], [1, 1, 1], NET, keep='c', again='b', reads=READS, begin={'a': 4})
    assert shown.is_drawn('''
        seconds  0....5....0..
        compute  0112223..4445
        out      ...aa
        in       .......aa''')
    assert (shown.stalls, shown.memory) == ([(4, 'a', 2, 'swap-in')], ([0, 2, 4, 2, 4, 2], 4))


# --- links --------------------------------------------------------------------------------------------------------


def test_each_direction_has_its_own_bandwidth_and_each_copy_its_latency(run):
    # a is 8 bytes: 8/4 seconds out, 8/2 in, and one second each
    shown = run([1, 3], [1, 1], {'a': (8, 0, 0, [3])}, out=4, back=2, latency=1, begin={'a': 3})
    assert shown.is_drawn('''
        seconds  0....5....0
        compute  01112.....3
        out      .aaa
        in       .....aaaaa''')
    assert shown.stalls == [(3, 'a', 5, 'swap-in')]


def test_each_copy_of_a_queue_has_its_latency(run):
    shown = run([1, 1], [1], {'a': (1, 0, 0, [], RETAINED), 'b': (2, 0, 0, [], RETAINED)}, latency=2)
    assert shown.is_drawn('''
        seconds  0....5..
        compute  012
        out      .aaabbbb
        in''')


def test_without_a_bandwidth_copies_take_no_time_beside_their_latency(run):
    shown = run([1, 1], [1, 1], {'a': (4, 0, 0, [3])}, out=0, back=0, begin={'a': 3})
    assert shown.timeline.tasks == (
        Task(Stream.COMPUTE, 0, 0, 1), Task(Stream.COPY_OUT, 0, 1, 1), Task(Stream.COMPUTE, 1, 1, 2),
        Task(Stream.COMPUTE, 2, 2, 3), Task(Stream.COPY_IN, 0, 3, 3), Task(Stream.COMPUTE, 3, 3, 4))
    assert (shown.stalls, shown.memory) == ([], ([0, 0, 0, 4], 4))
    shown = run([1, 3], [1, 1], {'a': (4, 0, 0, [3])}, out=0, back=0, latency=2, begin={'a': 3})
    assert shown.is_drawn('''
        seconds  0....5..
        compute  01112..3
        out      .aa
        in       .....aa''')


def test_computations_beside_a_copy_take_longer(run):
    # call 1 does 2 of its 3 seconds at half the speed, while a leaves; step 3 all of its 2, while a comes
    shown = run([1, 3, 1], [2, 1], {'a': (4, 0, 0, [4])}, slowdown=1.0)
    assert shown.is_drawn('''
        seconds  0....5....0.
        compute  011111233334
        out      .aaaa
        in       .......aaaa''')
    assert shown.stalls == []


def test_after_a_wait_for_the_copy_a_computation_has_its_usual_speed(run):
    shown = run([1, 1], [1, 1], {'a': (4, 0, 0, [3])}, slowdown=1.0, budget=7, allocates={2: 4})
    assert shown.is_drawn('''
        seconds  0....5....0
        compute  011..2....3
        out      .aaaa
        in       ......aaaa''')
    assert shown.stalls == [(2, 'a', 2.0, 'memory'), (3, 'a', 4.0, 'swap-in')]


def test_copies_in_both_directions_cost_what_one_does(run):
    # step 3 computes for 1 second at half the speed while b leaves and a comes
    shown = run([4, 3, 1], [1, 1, 1], {'a': (2, 0, 0, [4]), 'b': (4, 1, 1, [5])}, slowdown=1.0)
    assert shown.is_drawn('''
        seconds  0....5....0...
        compute  00001111223345
        out      ....aa..bbbb
        in       ..........aa''')


def test_calls_that_run_again_are_slower_beside_copies_too(run):
    # step 2 runs call 0 again and computes, 2 seconds at half the speed, while b leaves
    shown = run([1, 1], [1, 1], {'a': (1, 0, 1, [2]), 'b': (4, 1, 1, [3])}, again='a', slowdown=1.0)
    assert shown.is_drawn('''
        seconds  0....5.
        compute  0122223
        out      ..bbbb
        in''')
    assert [task.recomputed_seconds for task in shown.timeline.tasks] == [0, 0, 0, 1, 0]


# --- copies that are waited for -----------------------------------------------------------------------------------


def test_synchronous_swap_outs_are_waited_for_before_the_next_call(run):
    maps = {'a': (3, 0, 0, [], RETAINED), 'b': (1, 1, 1, [], RETAINED), 'c': (1, 1, 1, [], RETAINED)}
    shown = run([1, 1, 1], [1], maps, synchronous=True)
    assert shown.is_drawn('''
        seconds  0....5...
        compute  0...1..23
        out      .aaa.bc
        in''')
    # the last swap-out of a call is named
    assert shown.stalls == [(1, 'a', 3, 'swap-out'), (2, 'c', 2, 'swap-out')]
    assert shown.memory == ([0, 0, 0, 0], 0)


def test_a_synchronous_swap_in_runs_beside_the_step_that_it_began_with_and_is_waited_for_at_its_end(run):
    # a begins with position 3 and is read by position 5
    shown = run([1, 1], [1, 1, 1, 1], {'a': (3, 0, 0, [5])}, begin={'a': 3}, synchronous=True)
    assert shown.is_drawn('''
        seconds  0....5....0
        compute  0...123..45
        out      .aaa
        in       ......aaa''')
    assert shown.stalls == [(1, 'a', 3, 'swap-out'), (4, 'a', 2, 'swap-in')]


def test_a_synchronous_swap_in_for_the_next_step_is_waited_for_once(run):
    shown = run([1, 1], [1, 1], {'a': (2, 0, 0, [3])}, begin={'a': 2}, synchronous=True)
    assert shown.is_drawn('''
        seconds  0....5.
        compute  0..12.3
        out      .aa
        in       ....aa''')
    assert shown.stalls == [(1, 'a', 2, 'swap-out'), (3, 'a', 1, 'swap-in')]


def test_after_the_last_computation_nothing_is_waited_for(run):
    shown = run([1, 1], [], {'a': (3, 1, 1, [], RETAINED)}, synchronous=True)
    assert (shown.timeline.seconds, shown.stalls) == (2, [])


# --- the value ----------------------------------------------------------------------------------------------------


def test_a_timeline_has_all_tasks_in_the_order_of_their_issue_and_all_stalls():
    problem = make_problem([1, 3], [1, 1], {'a': (2, 0, 0, [3])}, budget=10)
    assert run_problem(problem, begin={'a': 3}) == Timeline(
        seconds=8.0, peak_bytes=2,
        tasks=(Task(Stream.COMPUTE, 0, 0.0, 1.0), Task(Stream.COPY_OUT, 0, 1.0, 3.0), Task(Stream.COMPUTE, 1, 1.0, 4.0),
               Task(Stream.COMPUTE, 2, 4.0, 5.0), Task(Stream.COPY_IN, 0, 5.0, 7.0), Task(Stream.COMPUTE, 3, 7.0, 8.0)),
        stalls=(Stall(3, 0, 2.0, Cause.SWAP_IN),), near_bytes=(0, 2, 0, 2))


def test_an_empty_iteration_takes_no_time():
    assert run_problem(make_problem([], [], {})) == Timeline(0.0, 0, (), (), ())


def test_an_iteration_without_a_call_or_without_a_step_has_a_timeline(run):
    assert run([], [1, 2], {}).is_drawn('''
        seconds  0..
        compute  011
        out
        in''')
    assert run([1, 2], [], {'a': (1, 0, 0, [], RETAINED)}).is_drawn('''
        seconds  0..
        compute  011
        out      .a
        in''')


def test_ten_runs_give_one_timeline():
    runs = [run_problem(make_problem([1, 2, 3], [1, 1, 1], NET, reads=READS, allocates={1: 4}, budget=6), again='b')
            for _ in range(10)]
    assert all(each == runs[0] for each in runs)
    assert runs[0].stall_seconds == sum(each.seconds for each in runs[0].stalls) > 0
