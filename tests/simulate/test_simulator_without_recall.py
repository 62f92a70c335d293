"""Maps that leave to the end before they come back, as in the papers' systems."""


def test_a_map_that_is_wanted_while_it_leaves_leaves_first_and_comes_back_then(run):
    # a: 6 bytes, on its way out from 2 to 8; step 3 wants it at 6
    shown = run([2, 2], [2, 2], {'a': (6, 0, 0, [3])}, recalls=False)
    assert shown.is_drawn('''
        seconds  0....5....0....5
        compute  001122........33
        out      ..aaaaaa
        in       ........aaaaaa''')
    assert shown.stalls == [(3, 'a', 8, 'swap-in')]
    assert shown.memory == ([0, 6, 6, 6], 6)


def test_with_recall_the_same_map_stays(run):
    shown = run([2, 2], [2, 2], {'a': (6, 0, 0, [3])})
    assert shown.is_drawn('''
        seconds  0....5..
        compute  00112233
        out      ..aaaaaa
        in''')


def test_an_early_swap_in_follows_its_swap_out_at_once(run):
    # it is asked for with position 2, at 4, when a has not left before 5
    shown = run([2, 2], [2, 2, 2], {'a': (3, 0, 0, [4])}, begin={'a': 2}, recalls=False)
    assert shown.is_drawn('''
        seconds  0....5....
        compute  0011223344
        out      ..aaa
        in       .....aaa''')
    assert (shown.stalls, shown.memory) == ([], ([0, 3, 3, 3, 3], 3))


def test_swap_ins_keep_their_order_when_the_first_has_not_left(run):
    # b is wanted first and leaves last: a, which left long ago, waits behind it
    shown = run([1, 1], [4, 4, 1], {'a': (1, 0, 0, [4]), 'b': (4, 1, 1, [3])}, begin={'a': 2, 'b': 2}, recalls=False)
    assert shown.is_drawn('''
        seconds  0....5....0....
        compute  012222....33334
        out      .abbbb
        in       ......bbbba''')


def test_the_papers_figure_of_swapping_everything(run):
    # PoocH, figure 7: eight layers, each swap-in starts with the computation of the layer behind it; here three layers,
    # of which the last two are still leaving when backward begins
    maps = {'a': (2, 0, 0, [5]), 'b': (2, 1, 1, [4]), 'c': (2, 2, 2, [3])}
    shown = run([1, 1, 1], [1, 1, 1], maps, begin={'a': 4, 'b': 3, 'c': 3}, recalls=False)
    assert shown.is_drawn('''
        seconds  0....5....0...
        compute  012......3.4.5
        out      .aabbcc
        in       .......ccbbaa''')
