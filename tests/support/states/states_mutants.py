"""Small faults, planted in the core one at a time: an entry of the table, or a line of a method that is another."""
import contextlib
import inspect
import sys
import textwrap

from chainer_ooc.execute.functions import recipe
from chainer_ooc.execute.memory import recomputation, residency, transit
from chainer_ooc.execute.memory.mapped import Mapped
from chainer_ooc.execute.memory.residency import Residency
from chainer_ooc.execute.memory.transit import CopyIn, Transit
from chainer_ooc.execute.storage.account import Account, _Block
from chainer_ooc.execute.storage.held import Held
from chainer_ooc.execute.storage.slots import NodeSlot, VariableSlot, Watched
from chainer_ooc.execute.storage.states import TRANSITIONS
from chainer_ooc.execute.storage.storage import Storage
from support.states.states_world import Reader

#: What is changed, the line, and what it is instead.
LINES = {
    # fault 1: a storage is another session's, and whoever reads it asks his own
    'a read goes to the reader\'s own memory': (
        Storage.fetch, 'self.memory.fetch(', 'READER.of(self).fetch('),
    'a chain reads its inputs through its own memory': (
        recomputation._run, 'each.memory.fetch(each, exposed=False)', 'memory.fetch(each, exposed=False)'),
    'a chain counts what it makes in its own memory': (
        recomputation._take_up, 'storage.memory.restore(', 'READER.of(storage).restore('),
    # fault 2: what the program writes reaches what is made again; without `make_last` the machine sees maps that could
    # be lost, as nobody can tell there that they need not be: `test_what_programs_read` has that
    'recipes trust what the program has read': (residency.expose, 'recipe.distrust(storage, block)', 'pass'),
    'Variables are not watched': (VariableSlot.watch, 'if self.is_copied() or', 'if True or'),
    'Variables that come later are not watched': (
        Storage.add_node, 'self.watch(', '_ = ('),
    'nodes are not watched': (NodeSlot.watch, 'node._ooc = away', 'pass'),
    'a node is read as the program likes': (Storage.is_guarded, 'only_reads() or', 'True or'),
    'inputs that the program holds have no checksum': (
        recipe._given, 'is_open = storage.is_held_elsewhere()', 'is_open = False'),
    'a batch has no checksum': (
        recipe._given, 'if is_open else None', 'if is_open and storage is not None else None'),
    'a checksum is not looked at': (transit._refuse_if, 'if changed:', 'if False:'),
    # what was spare is made again by what the graph says
    'a seal is not looked at': (recomputation._take_up, 'if storage.seal is not None and', 'if False and'),
    # leave
    'leave forgets the copy': (Storage.leave, 'self.copy, self.recipe,', '_, self.recipe,'),
    'leave lets go of the block': (Storage.leave, 'self.block, self.transfer = block,', '_, self.transfer = block,'),
    'what is held leaves': (Residency.can_leave, 'not storage.is_held_elsewhere()', 'True'),
    'what leaves is seen off by nobody': (Residency.swap_out, 'self.leaving.append(storage)', 'pass'),
    # go, stay
    'what is recalled no more keeps its slots': (Storage.recall, 'self._empty()', 'pass'),
    'what is recalled no more leaves its copies': (Storage.recall, '(wanted or self.exposed)', 'wanted'),
    'what nobody else keeps is in no Variable': (
        Storage.refill, 'self.copy is None and self.recipe is None', 'False'),
    'stay is not waited for': (Transit.finish_swap_out, 'self._wait(storage, Cause.SWAP_OUT)', 'pass'),
    'a failed swap-out counts as a copy': (Transit.finish_swap_out, 'storage.drop_copy()  #', 'pass  #'),
    'what is exposed leaves all the same': (
        CopyIn.left, 'storage.has_true_copy() and not storage.recalled', 'not storage.recalled'),
    # let go
    'an exposed block is let go': (Storage.has_true_copy, '(self.mapped or not self.exposed)', 'True'),
    'let go empties no slot': (Storage.free, 'self._empty()', 'pass'),
    'let go loses the copy': (Storage.free, 'self._empty()', 'self._empty(); self.drop_copy()'),
    # lose
    'lose forgets the recipe': (Storage.free, 'self._empty()', 'self._empty(); self.recipe = None'),
    'what nothing gives again is let go': (
        Residency.drop, 'storage.recipe is not None', 'storage.copy is None'),
    # spare, use again, yield
    'what is spare is held by nobody': (Storage.spare, 'self.block = root', 'pass'),
    'what is spare keeps its slots': (Storage.spare, 'self._empty()', 'pass'),
    'what yields stays': (Storage.yield_room, 'self.block = None', 'pass'),
    'what is spare counts': (Residency.keep_spare, "self.book(storage, 'spare')", 'pass'),
    'what is used again does not count': (Residency._notice, "self.book(storage, 'maps')", 'pass'),
    'what yields and is held does not count': (
        Residency._oldest_spare_yields, "self.book(storage, 'maps')", 'pass'),
    'what is exposed is given up': (Storage.expose, 'self.exposed, self.recipe = True, None', 'self.exposed = True'),
    # come, arrive, turn back
    'arrive waits for nothing': (Transit.arrive, 'self._wait(storage, Cause.SWAP_IN)', 'pass'),
    'turn back keeps the root': (Storage.turn_back, 'self.transfer, self.root = None, None, NOBODY',
                                 'self.transfer, _ = None, None, NOBODY'),
    'turn back keeps the block': (
        Storage.turn_back, 'self.block, self.transfer, self.root = None,', '_, self.transfer, self.root = None,'),
    'a failed swap-in counts as arrived': (Transit.arrive, 'if transfer.done:', 'if False:'),
    'who died unseen is not noticed': (
        Storage.notice, 'elif root is None and self.state is State.RESIDENT:', 'elif False:'),
    # expose, enclose
    'enclose keeps the copy of before': (Storage.enclose, 'self.drop_copy()', 'pass'),
    'a copy is given back and kept': (Storage.drop_copy, 'copy, self.copy = self.copy, None', 'copy = self.copy'),
    # slots
    'what comes back is watched no more': (Held._fill, 'if not is_watched:', 'if True:'),
    'Variables get nothing': (Held._fill, 'and not in_variables:', ':'),
    'the program\'s read is a function\'s': (Storage.fetch, 'exposed=not only_reads()', 'exposed=False'),
    'a copy of a Variable reads unseen': (VariableSlot.is_copied, 'type(self._data()) is list and', 'False and'),
    'a new array is taken for the old': (Watched.__setitem__, 'self.away = None', 'pass'),
    'nobody else is looked for': (Held.is_held_elsewhere, 'return not held or any(', 'return not held or all('),
    # the account
    'a block that dies is not booked': (_Block.look, "return 'gone'", 'return self.kind'),
    'what is mapped counts': (_Block.move, '0 if storage.mapped else storage.counted_bytes', 'storage.counted_bytes'),
    'what moves counts twice': (_Block.move, 'self.add(-1)', 'pass'),
    'the program\'s own counts': (Account.book, "block.kind != 'program'", "kind != 'program'"),
    'what was the program\'s own does not count again': (Account.count_again, "block.move('maps', storage)", 'pass'),
    'what is held when what was spare dies does not count': (
        Account.count, '_Ref(storage, note_death)', '_Ref(storage)'),
    # the rest
    'a mapping is let go while it leaves': (Mapped.left, 'storage.exposed or storage.copy is None or', 'False or'),
}


@contextlib.contextmanager
def line(name):
    """Plants one of `LINES`."""
    function, before, after = LINES[name]
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(before) == 1, f'{name}: the line is there {source.count(before)} times'
    module = sys.modules[function.__module__]
    owner = module
    for part in function.__qualname__.split('.')[:-1]:
        owner = getattr(owner, part)
    found = {}
    vars(module)['READER'] = Reader
    lines = 'from __future__ import annotations\n' + source.replace(before, after)
    exec(compile(lines, f'<{name}>', 'exec'), vars(module), found)
    setattr(owner, function.__name__, found[function.__name__])
    try:
        yield
    finally:
        setattr(owner, function.__name__, function)
        del vars(module)['READER']


@contextlib.contextmanager
def entry(key, target):
    """Has an entry of the table lead somewhere else, or nowhere."""
    before = TRANSITIONS.pop(key)
    if target is not None:
        TRANSITIONS[key] = target
    try:
        yield
    finally:
        TRANSITIONS[key] = before

