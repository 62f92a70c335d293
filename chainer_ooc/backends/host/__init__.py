"""The host device: near memory is the process's private memory, far memory a spill file.

    backend.py        what execution asks for; hands it to the others
    near memory       block.py, kept_blocks.py, heap.py; meter.py counts it
    far memory        spill_file.py, extents.py, mapping.py, write_back.py; filesystem.py knows the folder
    copies            swap_thread.py, transfer.py; measure.py times them
    limits            limits.py (all of them), groups.py (containers), headroom.py (budgets, and room for the next
                      computation), guard.py (an error in place of a kill)
    the machine       arrays.py, over its memory
"""

from chainer_ooc.backends.host.backend import HostBackend

__all__ = ['HostBackend']
