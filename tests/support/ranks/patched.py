"""What the patches of ChainerMN mend, rank by rank: left are the results of each."""
import types

import chainer_ooc  # noqa: F401  before chainer

# isort: split
import chainer
import chainermn
import numpy as np
from chainermn.communicators import _memory_utility

from support.ranks.launch import leave


def iterate(comm, size):
    """What a multi-node iterator over so many numbers has: its length, the first batches, its positions."""
    iterator = None
    if comm.rank == 0:
        iterator = chainer.iterators.SerialIterator(np.arange(size, dtype='f'), 3, repeat=False, shuffle=False)
    iterator = chainermn.iterators.create_multi_node_iterator(iterator, comm)
    batches = [list(next(iterator)) for _ in range(2)]
    return batches, iterator.current_position, iterator.epoch_detail


def positions(comm):
    """A position that float32 cannot have, as it comes from rank 0."""
    from chainermn.iterators.multi_node_iterator import _build_ctrl_msg, _parse_ctrl_msg

    return _parse_ctrl_msg(comm.bcast(_build_ctrl_msg(False, True, False, False, 2**24 + 1)))[-1]


def exchange(comm):
    """Each collective, and a message, of float16."""
    mine = np.array([1.5, -0.25, 3], 'e') * (comm.rank + 1)
    after = (comm.rank + 1) % comm.size
    before = (comm.rank - 1) % comm.size
    if comm.rank % 2:
        got = comm.recv(before, 1)
        comm.send((mine, 2 * mine), after, 1)
    else:
        comm.send((mine, 2 * mine), after, 1)
        got = comm.recv(before, 1)
    return {'allgather': comm.allgather(mine), 'bcast': comm.bcast(mine), 'gather': comm.gather(mine),
            'alltoall': comm.alltoall(tuple(mine + each for each in range(comm.size))),
            'scatter': comm.scatter(tuple(mine + each for each in range(comm.size))),
            'allreduce': comm.allreduce(mine), 'recv': got}


def unpack():
    """Gradients of float16 from a buffer of float32, as on a GPU."""
    class Buffer:
        def to_device(self, into, nbytes, offset, stream):
            into[...] = np.arange(into.size) + offset // 4

    parameters = [chainer.Parameter(np.zeros(size, 'e')) for size in (2, 3)]
    _memory_utility.unpack_params(parameters, 'grad', Buffer(), np.float32, zero_fill=True)
    return [each.grad for each in parameters]


def observed(comm):
    """The mean over ranks of an observation that is a Variable, as losses are, for two iterations."""
    trainer = types.SimpleNamespace(observation={}, updater=types.SimpleNamespace(iteration=0))
    aggregator = chainermn.extensions.ObservationAggregator(
        comm, 'main/loss', 'mean', comm_trigger=lambda trainer: trainer.updater.iteration == 2)
    for value in (1, 3):
        trainer.updater.iteration += 1
        trainer.observation['main/loss'] = chainer.Variable(np.array(value + comm.rank, 'f'))
        aggregator(trainer)
    return chainer.as_array(trainer.observation['mean'])


comm = chainermn.create_communicator('naive')
leave({'iterator': iterate(comm, 7), 'position': positions(comm), 'float16': exchange(comm), 'unpacked': unpack(),
       'observed': observed(comm)})
