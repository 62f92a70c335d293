"""What the garbage collector must not end before its time.

Of the objects in a cycle that is garbage the collector first ends the weak references and runs all finalizers, in an
order of its own, and only then drops what they refer to. So a finalizer of the program's may use an array whose memory
was said to be free a moment before::

    garbage     trainer <--> graph --> array --> owner of its memory
    collector   1. weak references to the owner are called, and its finalizer
                2. the trainer's finalizer writes the array to a file
                3. the array is dropped, and with it the owner

An object that the collector does not track is no garbage to it. It ends in step 3, when the last reference to it does.
Nobody finds it in a cycle then, so it may refer to nothing that refers to it.

Source: Python's "Garbage Collector Design", and PEP 442 for the order of finalizers.
"""

from __future__ import annotations

import ctypes

#: Has the collector not track an object, which is called once for each block and each copy.
untrack = ctypes.pythonapi.PyObject_GC_UnTrack
untrack.argtypes, untrack.restype = [ctypes.py_object], None
