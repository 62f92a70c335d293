"""What an iteration changes is put back: objects one level deep, and the contents of arrays."""
import functools
import weakref

import chainer_ooc  # noqa: F401  before chainer

# isort: split
import chainer
import chainer.links as L
import numpy as np
import pytest

from chainer_ooc.errors import ProfileError
from chainer_ooc.profiling import reach, untouched


def test_lists_sets_and_dicts_are_as_they_were():
    class Thing:
        pass
    thing = Thing()
    thing.list, thing.set, thing.dict, thing.array = [1], {2}, {3: np.ones(2)}, np.zeros(2)
    found = thing.list, thing.set, thing.dict, thing.array, thing.dict[3]
    with untouched.untouched({"thing": thing}):
        thing.list.append(4)
        thing.set.clear()
        thing.dict[3] += 1
        thing.dict[5] = 6
        thing.array, thing.more = None, 1
        found[3][:] = 9
    assert vars(thing) == {'list': [1], 'set': {2}, 'dict': thing.dict, 'array': found[3]}
    assert (thing.dict == {3: found[4]}) and found[4].tolist() == [1, 1] and found[3].tolist() == [0, 0]


def test_generators_of_a_link_go_on_where_they_stood():
    link = chainer.Chain()
    link.new, link.old = np.random.default_rng(3), np.random.RandomState(3)
    with untouched.untouched({"link": link}):
        inside = link.new.random(), link.old.rand(), np.random.rand()
    assert (link.new.random(), link.old.rand(), np.random.rand()) == inside


def test_what_generators_have_given_away_is_put_back():
    link = chainer.Chain()
    link.numbers, link.seeds = np.random.default_rng(3), np.random.SeedSequence(4)

    def children():
        return link.numbers.spawn(1)[0].random(), link.seeds.spawn(1)[0].generate_state(1).tolist()
    children()
    with untouched.untouched({"link": link}):
        inside = children()
    assert children() == inside


def test_weak_dictionaries_and_what_read_only_views_show_are_put_back():
    link = chainer.Chain()
    link.key, link.table = chainer.Chain(), np.zeros(3)
    link.counts, link.view = weakref.WeakKeyDictionary({link.key: 1}), np.broadcast_to(link.table, (2, 3))
    del link.table
    with untouched.untouched({"link": link}):
        link.counts[link.key] += 1
        link.view.base[...] += 1
    assert link.counts[link.key] == 1 and not link.view.any()


def test_arrays_that_were_resized_or_made_read_only_are_as_they_were():
    link = chainer.Chain()
    link.grows, link.table = np.arange(3), np.zeros(3)
    with untouched.untouched({"link": link}):
        link.grows.resize(5, refcheck=False)
        link.table[:] = 1
        link.table.flags.writeable = False
    assert link.grows.tolist() == [0, 1, 2] and not link.table.any() and link.table.flags.writeable


def test_where_one_thing_cannot_be_put_back_all_others_are():
    link = chainer.Chain()
    link.buffer, link.after = buffer, after = bytearray(4), [1]
    views = []

    def grow():
        with untouched.untouched({"link": link}):
            buffer.extend(b'more')
            after.append(2)
            views.append(memoryview(buffer))  # while it lives the buffer cannot shrink
    with pytest.raises(ProfileError, match=r'changed link\.buffer in a way that cannot be undone'):
        grow()
    assert after == [1]


def test_a_copy_in_float32_of_a_parameter_is_put_back_too():
    with chainer.using_config('dtype', np.dtype('e')):
        link = L.Linear(2, 2)
    optimizer = chainer.optimizers.MomentumSGD(0.1)
    optimizer.use_fp32_update()
    optimizer.setup(link)

    def update():
        link.W.grad, link.b.grad = np.ones((2, 2), 'e'), np.ones(2, 'e')
        optimizer.update()
    update()
    before = link.W.update_rule._fp32_param.array.copy(), link.W.array.copy()
    with untouched.untouched({"link": link, "optimizer": optimizer}):
        update()
    assert (link.W.update_rule._fp32_param.array == before[0]).all() and (link.W.array == before[1]).all()
    assert optimizer.t == 1


def test_links_are_found_where_a_training_has_them():
    one, two, three, four = (chainer.Chain() for _ in range(4))

    class Owner:
        def __init__(self):
            self.link, self.several, self.function = one, [two], lambda: three

        def method(self):
            return four
    owner = Owner()
    assert set(reach.links_of(owner)) == {one, two, three}
    assert reach.links_of(one) == [one]
    assert reach.links_of(one.cleargrads) == [one]
    assert set(reach.links_of(functools.partial(max, one, key=two))) == {one, two}
    assert set(reach.links_of(owner.method)) == {one, two, three, four}
    assert reach.links_of(7) == []
