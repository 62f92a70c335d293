"""Maps that are read where they are: their swap-ins take no memory, and a read waits for the swap-out."""
from chainer_ooc.problem import Decision, Starts, Verdict
from chainer_ooc.schedule.schedule import lay_out
from support.planning.literal_iterations import make_problem

KEEP, SWAP = Verdict.KEEP, Verdict.SWAP


def test_a_mapped_map_takes_no_memory_in_backward(run):
    maps = {'a': (2, 0, 0, [3, 4])}
    shown = run([1, 3], [2, 2, 1], maps, begin={'a': 2}, mapped=True)
    assert shown.is_drawn('''
        seconds  0....5...
        compute  011122334
        out      .aa
        in       ....aa''')
    assert (shown.stalls, shown.memory) == ([], ([0, 2, 0, 0, 0], 2))
    assert run([1, 3], [2, 2, 1], maps, begin={'a': 2}).memory == ([0, 2, 2, 2, 2], 2)


def test_a_mapped_map_that_nobody_fetched_is_read_at_its_use(run):
    shown = run([1, 3], [2, 1], {'a': (2, 0, 0, [3])}, begin={'a': 3}, mapped=True)
    assert shown.is_drawn('''
        seconds  0....5...
        compute  011122..3
        out      .aa
        in       ......aa''')
    assert shown.stalls == [(3, 'a', 2, 'swap-in')]


def test_a_mapped_map_needs_no_room_to_come(run):
    # the budget is full with b in positions 2 and 3
    maps = {'a': (4, 0, 0, [4]), 'b': (5, 1, 1, [3])}
    shown = run([1, 5], [2, 2, 1], maps, keep='b', begin={'a': 2}, budget=5, mapped=True)
    assert shown.is_drawn('''
        seconds  0....5....0
        compute  01111122334
        out      .aaaa
        in       ......aaaa''')
    assert (shown.stalls, shown.memory) == ([], ([0, 4, 5, 5, 0], 5))


def test_a_mapped_map_that_is_read_while_it_leaves_is_waited_for(run):
    # both are wanted from position 2 on; a is whole first, so that its swap-in comes first
    maps = {'a': (3, 0, 0, [3]), 'b': (2, 1, 1, [2])}
    shown = run([1, 1], [1, 1], maps, begin={'a': 2, 'b': 2}, mapped=True)
    assert shown.is_drawn('''
        seconds  0....5....0
        compute  01.......23
        out      .aaabb
        in       ....aaabb''')
    assert shown.stalls == [(2, 'a', 2, 'swap-out'), (2, 'b', 2, 'swap-out'), (2, 'b', 3, 'swap-in')]


def test_swap_ins_of_mapped_maps_are_no_part_of_what_a_course_needs():
    problem = make_problem([1, 1], [1, 1, 1], {'a': (7, 0, 1, [4]), 'b': (3, 1, 1, [2])}, budget=7)
    decision = Decision((SWAP, KEEP), Starts(ahead=2, checks_memory=False), mapped=True)
    schedule = lay_out(problem, decision)
    assert (list(schedule.need), schedule.scheduled_bytes, schedule.fits(7)) == ([0, 7, 3, 0, 0], 7, True)
    assert [(each.map, each.start, each.use) for each in schedule.swap_ins] == [(0, 2, 4)]
