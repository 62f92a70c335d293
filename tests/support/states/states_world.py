"""Two sessions' memories, a graph that spans them, a program that reads and writes, and plain Chainer beside them.

Whatever the program or a function does is done twice: to the graph whose arrays are moved, and to its *twin*, a graph
of plain Chainer. Both have to hold the same bytes at all times. What the manager does is done once. Each operation
takes two small numbers, which say what it is done to, so that anything may draw them; `test_states.py` has a state
machine do it.

An array may be looked at without being brought back (`peek`). So the bytes of all that is in place are compared after
each operation, without changing what the next one finds.
"""
import contextlib
import copy
import inspect
import os
import random
import sys
import tempfile
import threading
import warnings
import weakref

import chainer
import numpy as np
from chainer import _ooc

from chainer_ooc.backends import arrays
from chainer_ooc.backends.host import HostBackend
from chainer_ooc.errors import LostMapError
from chainer_ooc.execute.functions import prototype, recipe
from chainer_ooc.execute.functions.prototype import may_write_inputs, prepare
from chainer_ooc.execute.functions.recipe import write_recipe
from chainer_ooc.execute.memory.mapped import MAPPED
from chainer_ooc.execute.memory.residency import Residency
from chainer_ooc.execute.memory.transit import COPY_IN, Context
from chainer_ooc.execute.recording.registration import retained
from chainer_ooc.execute.storage import storage as storages
from chainer_ooc.execute.storage.account import Account, _block_of, find
from chainer_ooc.execute.storage.computing import computing, forget_computations
from chainer_ooc.execute.storage.reentry import LOCK
from chainer_ooc.execute.storage.slots import hidden_slots
from chainer_ooc.execute.storage.states import State
from chainer_ooc.execute.storage.storage import Storage, Token
from chainer_ooc.execute.tally import Tally
from support.chaos import ChaosBackend
from support.states.states_functions import FUNCTIONS, Overwrite

#: What may become of a storage, written down once more: the table itself may be what is wrong.
LEGAL = {
    'leave': {('RESIDENT', 'LEAVING')}, 'go': {('LEAVING', 'AWAY')}, 'stay': {('LEAVING', 'RESIDENT')},
    'free': {('RESIDENT', 'AWAY')}, 'lose': {('RESIDENT', 'LOST')}, 'spare': {('RESIDENT', 'SPARE')},
    'use again': {('SPARE', 'RESIDENT')},
    'yield': {('SPARE', 'LOST')}, 'come': {('AWAY', 'ARRIVING')}, 'arrive': {('ARRIVING', 'RESIDENT')},
    'turn back': {('ARRIVING', 'AWAY')}, 'show': {('AWAY', 'RESIDENT')}, 'make': {('LOST', 'RESIDENT')},
    'take up': {('AWAY', 'RESIDENT'), ('LOST', 'RESIDENT')}}
#: Is told of all that is read from now on.
MANAGER = _ooc.manager
#: Modules in which an interrupt may come.
CORE = os.path.dirname(storages.__file__)
#: Budgets that an iteration may have.
BUDGETS = (None, None, 0, 400, 1000, 3000)


class DifferenceError(AssertionError):
    """Something is not as it is in plain Chainer."""


class Call:
    """A function that has run, and its twin; both know their graphs."""

    def __init__(self, function, plain):
        self.function, self.plain, self.finished = function, plain, False


class Reader:
    """The session whose thread reads, for those who ask that instead of whose a storage is."""

    memory = None

    @classmethod
    def of(cls, storage):
        return cls.memory or storage.memory


class Watch:
    """Sees the storages that come into being, their changes and the copies that are released."""

    def __init__(self):
        self.born, self.last, self.released = [], weakref.WeakKeyDictionary(), {}
        self.yielded = weakref.WeakSet()
        self._undo = contextlib.ExitStack()

    def __enter__(self):
        init, go = Storage.__init__, Storage._go
        free, go_away, spare = Storage.free, Storage.go, Storage.spare

        def see_birth(storage, *args):
            init(storage, *args)
            self.born.append(weakref.ref(storage))

        def see_change(storage, event):
            before = storage.state.name
            try:
                go(storage, event)
            finally:  # an interrupt may come as it returns
                self.last[storage] = storage.state
                if event == 'yield':
                    self.yielded.add(storage)
            if (before, storage.state.name) not in LEGAL[event]:
                raise DifferenceError(f'{event}: {before} -> {storage.state.name}')

        def see_release(release):
            def run(backend, copy_):
                if copy_.__class__.__name__ != 'FarCopy' and id(copy_) in self.released:
                    raise DifferenceError('a copy is released twice')
                self.released[id(copy_)] = copy_
                release(backend, copy_)
            return run

        def see_slots(empty):
            def run(storage):
                empty(storage)
                if storage.is_retained():
                    raise DifferenceError('slots still have what they have given up')
            return run

        for owner, name, value in ((Storage, '__init__', see_birth), (Storage, '_go', see_change),
                                   (Storage, 'free', see_slots(free)),
                                   (Storage, 'go', see_slots(go_away)), (Storage, 'spare', see_slots(spare)),
                                   *((kind, 'release', see_release(kind.release))
                                     for kind in (ChaosBackend, HostBackend))):
            self._undo.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        return self

    def __exit__(self, *error):
        self._undo.close()

    def alive(self):
        """The storages that exist, in the order of their births."""
        return [storage for ref in self.born if (storage := ref()) is not None]


class World:
    """See the module. Operations are the methods named in `OPERATIONS`."""

    def __init__(self, seed=0, host=(), copied_bytes=64):
        self._undo = contextlib.ExitStack()
        for module in (prototype, recipe):
            self._undo.callback(setattr, module, 'COPIED_BYTES', module.COPIED_BYTES)
            module.COPIED_BYTES = copied_bytes
        kind = prototype.Prototype  # a checksum of what functions give would hide other faults
        self._undo.callback(setattr, kind, 'declared', kind.declared)
        kind.declared = ()
        self._undo.callback(setattr, Reader, 'memory', None)
        self.watch = self._undo.enter_context(Watch())
        self.backends = [self._backend(seed + number, number in host) for number in range(2)]
        self.memories = [Residency(each) for each in self.backends]
        for memory in self.memories:
            memory.enter(Context(Tally(memory.backend)))
        self.random = np.random.RandomState(seed)
        self.calls, self.shown, self.raws, self.owned = [], [], [], {}
        self.blocks, self.parents, self.open, self.losable = {}, {}, set(), set()
        self.block_of = weakref.WeakKeyDictionary()
        self.armed = self.maps = 0
        self.was_interrupted = False
        self.token = Token()

    def _backend(self, seed, on_host):
        if not on_host:
            return ChaosBackend(seed)
        folder = self._undo.enter_context(tempfile.TemporaryDirectory())
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')  # the folder for temporary files may be a RAM disk
            return HostBackend(folder)

    # --- the program -----------------------------------------------------------------------------------------------

    def batch(self, i, j):
        """The program makes an array and a Variable of it; it may go on holding the array."""
        array = self.random.uniform(-1, 1, (6, 8)).astype('f4')
        plain = array.copy()
        self.shown.append((chainer.Variable(array), chainer.Variable(plain)))
        if j % 3 == 0:
            self.raws.append((array, plain))

    def apply(self, i, j):
        """Runs a function, in one of the sessions, and writes its recipe."""
        make, count = FUNCTIONS[j % len(FUNCTIONS)]
        given = [self._pick(self.shown, i + number * (j // 16)) for number in range(count)]
        memory = self._memory(j // 2)
        if None in given or memory is None or len({each[1].shape for each in given}) > 1:
            return
        if any(each[1].array.ndim == 0 or len(each[1].array) < 2 for each in given):
            return
        function, plain = make(), make()
        inputs, outputs, twins = [each[0] for each in given], (), ()
        is_foreign = may_write_inputs(function)
        with self._troubles(*(each[1].array for each in given)), computing(is_foreign):
            with LOCK, computing():
                self._before_call(memory, function, inputs)
                prototype = prepare(function)
            outputs = function.apply(inputs)
            twins = plain.apply([each[1] for each in given])
            if may_write_inputs(function):
                self.losable |= self.open & {self._block(each[1].array) for each in given}
            self._note_parents(twins, [each[1] for each in given], plain)
            call, made = Call(function, plain), list(zip(outputs, twins, strict=True))
            with LOCK, computing():
                self._after_call(memory, call, given, made, prototype)
            self.calls.append(call)
            self.shown += made

    def _before_call(self, memory, function, inputs):
        found = [find(each.array) for each in inputs]
        memory.pin(each for each in found if each is not None)
        if may_write_inputs(function):
            for storage in memory.pinned:
                storage.memory.open(storage)
        with self._troubles():
            memory.make_room(100)

    def _after_call(self, memory, call, given, made, prototype):
        """As `Register.call` and `Iteration.after_call` do."""
        function = call.function
        for (variable, plain), node in zip(given, function.inputs, strict=True):
            self._see(memory, variable.array, plain.array, True).add_node(node)
        born = len(self.watch.born)
        for variable, plain in made:
            self._see(memory, variable.array, plain.array, False).add_node(variable.node)
        for slot, plain in zip(hidden_slots(function), hidden_slots(call.plain), strict=True):
            self._see(memory, slot.get(), plain.get(), False).add_slots(slot)
        for storage in retained(function):
            storage.retain()
        if prototype is not None:
            recipe = write_recipe(prototype, function, [each[0] for each in given], [each[0] for each in made], 100,
                                  lambda storage: storage.can_return())
            new = [ref() for ref in self.watch.born[born:]]
            for product in recipe.products:
                storage = product.storage()
                if storage is not None and storage.recipe is None and storage in new:
                    storage.remember(recipe)
                    storage.watch()
        memory.pin()

    def _see(self, memory, array, plain, from_outside):
        storage = memory.register(array, arrays.root_of(array), self.token, self.maps, from_outside)
        self.block_of[storage] = self._block(plain)
        self.maps += 1
        if id(storage) in self.owned:
            storage.memory.count_again(storage)
            del self.owned[id(storage)]
        storage.memory.touch(storage)
        return storage

    def _note_parents(self, outputs, inputs, plain):
        """Remembers in the twin what was made from what, and which inputs the program can write to unnoticed."""
        made = [each.array for each in outputs]
        made += [slot.get() for slot in hidden_slots(plain)]
        parents = {self._block(each.array) for each in inputs}
        for array in made:
            block = self._block(array)
            self.parents.setdefault(block, set()).update(parents - {block})
        self.open |= parents

    def _block(self, plain):
        """Names a block of the twin; the block lives as long as this."""
        while plain.base is not None:
            plain = plain.base
        self.blocks[id(plain)] = plain
        return id(plain)

    def read(self, i, j):
        """The program reads a Variable."""
        pair = self._pick(self.shown, i)
        if pair is not None:
            with self._troubles(pair[1].array):
                self._compare(pair[0].array, pair[1].array, 'a Variable')

    def write(self, i, j):
        """The program writes through a Variable."""
        pair = self._pick(self.shown, i)
        if pair is not None:
            with self._troubles(pair[1].array):
                self._write(pair[0].array, pair[1].array, j)

    def hold(self, i, j):
        """The program holds on to the array of a Variable, or to a view of it."""
        pair = self._pick(self.shown, i)
        if pair is not None:
            part = (slice(None), slice(1, None), slice(None, None, -1))[j % 3]
            with self._troubles(pair[1].array):
                self.raws.append((pair[0].array[part], pair[1].array[part]))

    def write_held(self, i, j):
        """The program writes to an array that it holds."""
        pair = self._pick(self.raws, i)
        if pair is not None:
            self._write(*pair, j)

    def write_inside(self, i, j):
        """The program writes to what a function retains, which it reaches through the graph."""
        call = self._pick(self.calls, i)
        slots = [] if call is None else [get for what, get in _retained_slots(call.plain) if what != 'a hidden array']
        if slots:
            get = self._pick(slots, j)
            with self._troubles(*self._retained_twins(call)):  # all of them are brought back
                self._write(get(call.function), get(call.plain), j)

    def _write(self, array, plain, j):
        if self._block(plain) in self.open:  # somebody might notice by a checksum, and refuse
            self.losable.add(self._block(plain))
        for each in (array, plain):
            np.subtract(np.float32(j / 8), each, out=each)

    def free(self, i, j):
        """The program lets go of an array."""
        if self.raws:
            self.raws.pop(i % len(self.raws))

    def hide(self, i, j):
        """The program lets go of a Variable."""
        if len(self.shown) > 1:
            self.shown.pop(i % len(self.shown))

    def duplicate(self, i, j):
        """The program copies a Variable, or makes another for the same array."""
        pair = self._pick(self.shown, i)
        if pair is not None:
            make = (copy.copy, lambda each: chainer.Variable(each.array), copy.copy)[j % 3]
            with self._troubles(pair[1].array):
                self.shown.append((make(pair[0]), make(pair[1])))

    def outlive(self, i, j):
        """A map's iteration ends, and its graph goes, while a copy of its Variable lives."""
        pair = self._pick(self.shown, i)
        if pair is None or pair[1].creator_node is None:
            return
        self.duplicate(i, 0)
        storage = next((each for each, block in self.block_of.items() if block == self._block(pair[1].array)), None)
        if storage is not None and not storage.memory.closed:
            with LOCK:
                storage.memory.drop(storage, may_lose=False)
        self.shown = [each for each in self.shown if each[1] is not pair[1]]
        self.calls = [each for each in self.calls if each.plain is not pair[1].creator_node]
        del pair, storage
        self.abandon_dead(0, 0)
        self.abandon_dead(1, 0)

    def replace(self, i, j):
        """The program puts another array into a Variable."""
        pair = self._pick(self.shown, i)
        if pair is not None:
            fresh = self.random.uniform(-1, 1, pair[1].shape).astype('f4')
            self.losable.add(self._block(pair[1].array))  # a node that retained it has the new one from now on
            pair[0].array, pair[1].array = fresh, fresh.copy()

    # --- Chainer's backward ----------------------------------------------------------------------------------------

    def step(self, i, j):
        """Backward reads what a function retains, as a session has it do; at times for the last time."""
        call = self._pick(self.calls, i)
        memory = self._memory(j)
        if call is None or memory is None:
            return
        with self._troubles(*self._retained_twins(call)), computing():
            with LOCK:
                needed = retained(call.function)
                memory.pin(needed)
                for storage in needed:
                    if storage.state is not State.RESIDENT:
                        storage.memory.fetch(storage, exposed=False)
            self._look_at(call)
            if j % 3 == 0 and not call.finished:
                call.finished = True
                with LOCK:
                    for storage in needed:
                        if storage.note_backward():
                            storage.memory.drop(storage, may_lose=False)
                        storage.memory.touch(storage)
        memory.pin()

    def look(self, i, j):
        """Chainer reads what a function retains, of which nobody has told the manager (P1)."""
        call = self._pick(self.calls, i)
        if call is not None:
            with self._troubles(*self._retained_twins(call)), computing():
                self._look_at(call)

    def _look_at(self, call):
        for what, get in _retained_slots(call.plain):
            self._compare(get(call.function), get(call.plain), what)

    def _retained_twins(self, call):
        return [get(call.plain) for _, get in _retained_slots(call.plain)]

    def forget(self, i, j):
        """A function and what only it holds goes, as the graph does after backward."""
        if self.calls:
            self.calls.pop(i % len(self.calls))

    # --- the manager -----------------------------------------------------------------------------------------------

    def swap_out(self, i, j):
        storage = self._storage(i)
        if storage is not None:
            with LOCK:
                storage.memory.swap_out(storage)

    def send_away(self, i, j):
        """Swaps a map out, and waits for it."""
        self.swap_out(i, j)
        for memory in self.memories:
            if not memory.closed:
                with self._troubles(), LOCK:
                    memory.settle()

    def discard(self, i, j):
        storage = self._storage(i)
        if storage is not None:
            with LOCK:
                storage.discard()

    def prefetch(self, i, j):
        storage = self._storage(i)
        if storage is not None:
            with self._troubles(), LOCK:
                storage.memory.prefetch(storage)

    def drop(self, i, j):
        """Drops a map; one that may be lost may be refused once it has yielded, see `_troubles`."""
        storage = self._storage(i)
        if storage is not None:
            with LOCK:
                storage.memory.drop(storage, may_lose=j % 2 == 0)

    def spare(self, i, j):
        """Spare maps yield."""
        memory = self._memory(i)
        if memory is not None:
            with LOCK:
                memory.spare_at_most(memory.bytes_of('spare') - 50 * j)

    def _may_lose(self, storage):
        if storage in self.block_of:
            self.losable.add(self.block_of[storage])

    def reap(self, i, j):
        memory = self._memory(i)
        if memory is not None:
            with self._troubles(), LOCK:
                memory.reap(wait=bool(j % 2))

    def settle(self, i, j):
        memory = self._memory(i)
        if memory is not None:
            with self._troubles(), LOCK:
                memory.settle()

    def make_room(self, i, j):
        memory = self._memory(i)
        if memory is not None:
            with self._troubles(), LOCK:
                memory.make_room(100 * j, thorough=j % 5 == 0)

    def enter(self, i, j):
        """Another iteration begins, or the same goes on in another way."""
        memory = self._memory(i)
        if j // 16 % 2:
            self.token.has_ended = True
            self.token = Token()
        if memory is not None:
            with LOCK:
                memory.enter(Context(Tally(memory.backend), BUDGETS[j % len(BUDGETS)],
                                     far=(COPY_IN, MAPPED)[j // 8 % 2], shares_chains=j % 3 > 0))

    def arrive_all(self, i, j):
        memory = self._memory(i)
        if memory is not None:
            with self._troubles(), LOCK:
                memory.arrive_all()

    def abandon_dead(self, i, j):
        memory = self._memory(i)
        if memory is not None:
            with LOCK:
                memory.abandon_dead()

    def hand_over(self, i, j):
        """A block becomes the program's own."""
        storage = self._storage(i)
        if storage is not None and storage.state is State.RESIDENT and storage.root() is not None:
            with LOCK:
                storage.memory.book(storage, 'program')
            self.owned[id(storage)] = storage.root

    # --- troubles --------------------------------------------------------------------------------------------------

    def fail_a_copy(self, i, j):
        """The device fails once."""
        backend = self.backends[i % 2]
        if isinstance(backend, ChaosBackend) and not backend._closed:
            backend.fail_next(('swap_out', 'swap_in')[j % 2])
            self.armed += 1

    @contextlib.contextmanager
    def _troubles(self, *read):
        """Lets pass what may go wrong: a copy that was made to fail, a map that could be lost or was written to."""
        try:
            yield
        except OSError as error:
            if not self.armed:
                raise
            error.__traceback__ = None  # Python 3.13 keeps it, with the frames and what they have, until a collection
        except LostMapError as error:
            for storage in self.watch.yielded:
                self._may_lose(storage)
            if not any(self._may_be_lost(self._block(each)) for each in read):
                raise
            error.__traceback__ = None

    def _may_be_lost(self, block):
        seen, waiting = set(), [block]
        while waiting:
            each = waiting.pop()
            if each in self.losable:
                return True
            if each not in seen:
                seen.add(each)
                waiting += self.parents.get(each, ())
        return False

    def burst(self, seed, length=10):
        """Many operations at once, which a seed draws: on one thing mostly, on what came last, or on anything."""
        drawn = random.Random(seed)
        latest, focus, faithful = drawn.random() < 0.5, drawn.randrange(64), drawn.choice((0, 0.5, 0.8))
        for name in drawn.choices(list(OPERATIONS), list(OPERATIONS.values()), k=length):
            i = drawn.choice((-1, -1, -2, -3, drawn.randrange(64))) if latest else drawn.randrange(64)
            getattr(self, name)(focus if drawn.random() < faithful else i, drawn.randrange(64))
            self.check()

    def interrupt(self, operation, i, j, moments):
        """Has a KeyboardInterrupt come in the middle of an operation.

        Not of a function that writes to its inputs: it may have written, and its twin has not.
        """
        if operation == self.apply and FUNCTIONS[j % len(FUNCTIONS)][0] is Overwrite:
            return
        if interrupted(lambda: operation(i, j), moments):
            self.was_interrupted = True
            forget_computations()  # as a session does when an exception comes to it
            self.recover()

    def recover(self):
        """As a session does after an exception."""
        with LOCK:
            for memory in self.memories:
                if not memory.closed:
                    memory.pin()
                    memory.finish_swap_outs()
                    memory.mend()
        # What was being counted again may still be the program's, or not any more.
        self.owned = {id(each): each.root for each in self.watch.alive()
                      if (block := _block_of(each)) is not None and block.kind == 'program'}

    def in_a_thread(self, operation, i, j, busy):
        """Has another thread do it, while this one is busy with the other session."""
        failures, begun = [], threading.Event()

        def run():
            begun.set()
            try:
                operation(i, j)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        memory = self._memory(busy)
        with LOCK:
            thread.start()
            begun.wait()
            if memory is not None:
                with self._troubles():
                    memory.make_room(200 * busy)
        thread.join()
        if failures:
            raise failures[0]

    def fork(self, i, j):
        """A child reads all it can; what is away is its parent's."""
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', DeprecationWarning)  # threads copy while it forks, on purpose
            pid = os.fork()
        if not pid:
            status = 9
            try:
                status = self._as_a_child()
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status:
            raise DifferenceError(f'the child says {status}')

    def _as_a_child(self):
        for memory in self.memories:
            memory.leave_to_parent()
        for variable, plain in self.shown:
            data = variable._data
            away = getattr(data, 'away', None) if list.__getitem__(data, 0) is None else None
            must_fail = away is not None and away.storage.state is State.AWAY and away.storage.root() is None
            try:
                array = variable.array
            except OSError:
                if away is None:
                    return 1
                continue
            except LostMapError:
                if away is None:
                    return 2
                continue
            if must_fail and not away.storage.memory.closed:
                return 3
            if not np.array_equal(array, plain.array):
                return 4
        return 0

    def close_one(self, i, j):
        """One session ends."""
        if not any(memory.closed for memory in self.memories):
            with LOCK:
                self._quiet()
                self._close(self.memories[i % 2])

    def _close(self, memory):
        for storage in self.watch.alive():  # what no function waits for any more is not made again
            if storage.state is State.LOST and storage.pending_uses <= 0 and not storage.is_shown():
                self._may_lose(storage)
        memory.close()

    def _quiet(self):
        """Copies that are to fail do not fail any more."""
        for backend in self.backends:
            if isinstance(backend, ChaosBackend):
                backend._doomed = dict.fromkeys(backend._doomed, 0)

    # --- what has to hold ------------------------------------------------------------------------------------------

    def check(self):
        """Compares all that can be looked at without bringing it back, and the accounts."""
        for array, plain in self._in_place():
            self._compare(array, plain, 'what is in place')
        alive = self.watch.alive()
        for storage in alive:
            if storage in self.watch.last and self.watch.last[storage] is not storage.state:
                raise DifferenceError(f'{storage.state} without a transition')
            if storage.state is State.RESIDENT and storage.block is not None and not (
                    storage.memory.closed or self.was_interrupted):
                raise DifferenceError('a storage keeps a block that its slots own')
            if storage.state is State.LOST and storage.block is not None and not storage.memory.closed:
                raise DifferenceError('what is lost is in near memory')
            if storage.state is State.SPARE and storage.root() is None and not self.was_interrupted:
                raise DifferenceError('what is spare is gone')
            if storage.state is State.LEAVING and storage not in storage.memory.leaving:
                raise DifferenceError('a storage leaves, and nobody sees it off')
        for memory in self.memories:
            near_bytes, spare_bytes = memory.bytes_of('maps'), memory.bytes_of('spare')
            spare = [each for each in alive if each.state is State.SPARE and each.memory is memory]
            if not memory.closed and spare_bytes != sum(map(self._counted_bytes, spare)):
                raise DifferenceError(f'the account says that {spare_bytes} bytes are spare')
            counted = sum(self._counted_bytes(each) for each in alive if each.memory is memory) - spare_bytes
            roots = {id(each.root()) for each in alive}
            targets = {id(root): root for root in (arrays.root_of(block) for block, _ in memory._targets)}
            counted += sum(root.nbytes for key, root in targets.items() if key not in roots)  # nobody waits for these
            counted += sum(each.nbytes for each in Account._blocks.values()  # spare once; the program alone holds it
                           if each.account is memory and each.storage() is None and each.root() is not None)
            if not memory.closed and near_bytes != counted:
                raise DifferenceError(f'the account says {near_bytes} bytes, and {counted} are there')
        for backend in self.backends:
            if isinstance(backend, ChaosBackend) and any('source' in each for each in backend.misuses):
                raise DifferenceError(backend.misuses[-1])

    def _counted_bytes(self, storage):
        root = storage.root()
        if root is None or storage.mapped:
            return 0
        owned = self.owned.get(id(storage))
        return 0 if owned is not None and owned() is root else storage.counted_bytes

    def _in_place(self):
        """Pairs of an array that somebody can reach and its twin, without bringing any back."""
        for variable, plain in self.shown:
            array = list.__getitem__(variable._data, 0)
            if array is not None:
                yield array, plain.array
        yield from self.raws
        for call in self.calls:
            for index in call.plain._input_indexes_to_retain or ():
                if call.function.inputs[index]._data is not None:
                    yield call.function.inputs[index]._data, call.plain.inputs[index]._data
            for ours, plain in zip(call.function._retained_output_data or (), call.plain._retained_output_data or (),
                                   strict=True):
                if ours is not None:
                    yield ours, plain
            if 'mask' in call.function.__dict__:
                yield call.function.mask, call.plain.mask

    def _compare(self, array, plain, what):
        if array.shape != plain.shape or array.strides != plain.strides or not np.array_equal(array, plain):
            raise DifferenceError(f'{what} shows {array.ravel()[:3]}, and {plain.ravel()[:3]} in plain Chainer')

    def read_all(self):
        """Reads everything, first as Chainer does."""
        for number in range(len(self.calls)):
            self.look(number, 0)
        for number in range(len(self.shown)):
            self.read(number, 0)

    def end(self):
        """Reads everything, then ends, and looks for what is left."""
        try:
            with LOCK:
                self._quiet()
                for memory in self.memories:
                    if not memory.closed:
                        memory.finish_swap_outs()
            self.read_all()
            self.check()
            with LOCK:
                for memory in self.memories:
                    if not memory.closed:
                        self._close(memory)
            self.read_all()
            self.check()
            self.calls, self.shown, self.raws = [], [], []
            for memory in self.memories:
                memory.pin()
                memory.near_bytes()  # books what has died
            left = self.watch.alive()
            if left:
                raise DifferenceError(f'{len(left)} storages are left')
        finally:
            self.abandon()

    def abandon(self):
        """Gives everything back, whatever its state."""
        for backend in self.backends:
            backend.close()
        for memory in self.memories:
            if not memory.closed:
                memory.closed = True
                super(Residency, memory).close()
        self.calls, self.shown, self.raws = [], [], []
        self._undo.close()

    # --- what is picked --------------------------------------------------------------------------------------------

    @staticmethod
    def _pick(things, index):
        return things[index % len(things)] if things else None

    def _memory(self, index):
        memory = self.memories[index % 2]
        Reader.memory = self.memories[1 - index % 2] if memory.closed else memory
        return Reader.memory

    def _storage(self, index):
        return self._pick(self.watch.alive(), index)


def _retained_slots(plain):
    """Where a function retains an array: names, and how to read it there."""
    for index in plain._input_indexes_to_retain or ():
        yield 'a retained input', lambda function, index=index: function.inputs[index].data
    for index in range(len(plain._retained_output_data or ())):
        yield 'a retained output', lambda function, index=index: function.output_data[
            function._output_indexes_to_retain[index]]
    if 'mask' in plain.__dict__:
        yield 'a hidden array', lambda function: function.mask


def interrupted(act, moments):
    """Has a KeyboardInterrupt come after so many calls and returns in the core, where Python looks for signals.

    Returns whether it came, before `act` had ended.
    """
    left = moments

    def look(frame, event, argument):
        nonlocal left
        code = frame.f_code
        # In `__del__` and what a weak reference calls it is printed and goes no further; a generator that is entered or
        # left by it here skips its `finally`, as no signal has it.
        quiet = code.co_name in ('__del__', '<lambda>') or code.co_flags & inspect.CO_GENERATOR
        if event != 'c_call' and code.co_filename.startswith(CORE) and not quiet:
            left -= 1
            if left < 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(look)
    try:
        act()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


#: What changes the world, and how often: what moves maps is what faults hide in.
OPERATIONS = {
    'batch': 2, 'apply': 8, 'read': 3, 'write': 3, 'write_inside': 2, 'hold': 2, 'write_held': 2, 'free': 2,
    'hide': 2, 'duplicate': 1, 'outlive': 2, 'replace': 1, 'step': 5, 'look': 3, 'forget': 1, 'swap_out': 7,
    'send_away': 5, 'discard': 5, 'prefetch': 4, 'drop': 3, 'spare': 1, 'reap': 2, 'settle': 4, 'make_room': 2,
    'enter': 2, 'arrive_all': 1, 'abandon_dead': 1, 'hand_over': 1, 'fail_a_copy': 1}
