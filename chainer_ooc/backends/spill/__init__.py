"""Far memory in a file, which the host has behind its memory and CUDA behind pinned memory.

    store.py          the file with its two threads: what a backend asks for
    transfer.py       copies in flight, and their places in the file
    starting.py       threads are started so that no interrupt leaves one blocked
    swap_thread.py    a thread that makes one direction's copies
    extents.py        which parts of the file are free
    spill_file.py     the file: written, read and mapped at offsets
    mapping.py        a part of the file as an array
    write_back.py     what is dirty in the page cache is kept small, where that counts
    filesystem.py     folders: which one by default, what lies under it, what is free
    disk_speed.py     the speed of the disk itself, for doctor
"""
