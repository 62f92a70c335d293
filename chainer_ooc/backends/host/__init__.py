"""The host device: near memory is the process's private memory, far memory a spill file (`backends.spill`).

    backend.py                       what execution calls; calls the others
    arrays.py                        NumPy's arrays, and the memory under them
    arena.py, _arena.c               NumPy's memory from pages that stay, and who makes room where the system refuses
    file_backed.py, _file_backed.c   arrays that lie on the spill file while they live
    _contained.c                     what a container leaves, asked where no code of Python's runs
    block.py                         near memory of swap-ins where that is not there
    heap.py                          how glibc keeps what is freed
    meter.py                         what computations allocate
    limits.py, groups.py             what the process can still get: of the system, of a container
    headroom.py, guard.py            budgets, room, and MemoryError where a process would be killed
    measure.py                       how fast copies are, and what they cost computations
    onednn.py                        which oneDNN there is
"""

from chainer_ooc.backends.host.backend import HostBackend

__all__ = ['HostBackend']
