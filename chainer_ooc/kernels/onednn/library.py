"""oneDNN's C interface through ctypes: its functions, its errors as exceptions, and what is made with it once.

The interface is that of version 3, whose numbers and signatures are stable. Calls let go of the interpreter's lock, so
that swap threads go on meanwhile.

The library computes in OpenMP threads, as many as OpenMP says when a primitive is made.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable
from ctypes import c_int, c_int64, c_size_t, c_void_p
from typing import Any, ParamSpec, TypeVar

from chainer_ooc.backends.host import onednn as presence

_UNIMPLEMENTED, _LAST_IMPLEMENTATION_REACHED = 3, 4
_STATUSES = ('success', 'out of memory', 'invalid arguments', 'unimplemented', 'last implementation reached',
             'runtime error', 'not required')
_CPU = 1  # a kind of engine
_IN_ORDER = 1  # a flag of streams
_USER_SCRATCHPAD = 1  # a scratchpad mode
_IMPLEMENTATION = 8  # a query
#: What handles are of, each before those whose names it contains.
_KINDS = ('memory_desc', 'memory', 'post_ops', 'primitive_desc', 'primitive_attr', 'primitive')

Given = ParamSpec('Given')
Computation = TypeVar('Computation')

#: What forgets the computations that were made, of each function that makes them.
_forget: list[Callable[[], None]] = []


class OneDnnError(RuntimeError):
    """A call of oneDNN that failed."""


class UnsupportedError(OneDnnError):
    """oneDNN has no implementation of what was asked for."""


class Handle(c_void_p):
    """Something that oneDNN has made: destroyed when nothing refers to this, but not as the interpreter ends."""

    def __init__(self, library: Library, kind: str) -> None:
        super().__init__()
        self._library, self._kind = library, kind

    def __del__(self) -> None:
        if self.value and not sys.is_finalizing():
            self._library.call(f'{self._kind}_destroy', self)


class Library:
    """The library, a shared object at `path`, with an engine for the CPU.

    Raises:
        OSError: it cannot be loaded.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._functions = ctypes.CDLL(path)
        self._functions.dnnl_memory_desc_get_size.restype = c_size_t
        self._functions.dnnl_primitive_desc_query_md.restype = c_void_p
        self.engine, self.stream = c_void_p(), c_void_p()
        self.call('engine_create', ctypes.byref(self.engine), c_int(_CPU), c_size_t(0))
        self.call('stream_create', ctypes.byref(self.stream), self.engine, c_int(_IN_ORDER))
        self.attributes = self.new_attributes()

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function that returns a status.

        Raises:
            UnsupportedError: there is no implementation.
            MemoryError: oneDNN cannot allocate.
            OneDnnError: the call failed otherwise.
        """
        status = getattr(self._functions, f'dnnl_{name}')(*arguments)
        if not status:
            return
        said = _STATUSES[status] if status < len(_STATUSES) else f'status {status}'
        if said == 'out of memory':
            raise MemoryError(f'oneDNN cannot allocate memory (dnnl_{name})')
        error = UnsupportedError if status in (_UNIMPLEMENTED, _LAST_IMPLEMENTATION_REACHED) else OneDnnError
        raise error(f'oneDNN failed: {said} (dnnl_{name}, {self.path})')

    def created(self, name: str, *arguments: Any) -> Handle:
        """Calls a function that makes something, and returns its handle; raises as `call` does."""
        handle = Handle(self, next(kind for kind in _KINDS if kind in name))
        self.call(name, ctypes.byref(handle), *arguments)
        return handle

    def new_attributes(self) -> Handle:
        """Makes attributes of primitives, under which the caller gives scratch."""
        attributes = self.created('primitive_attr_create')
        self.call('primitive_attr_set_scratchpad_mode', attributes, c_int(_USER_SCRATCHPAD))
        return attributes

    def queried_descriptor(self, primitive_descriptor: c_void_p, what: int) -> c_void_p | None:
        """Returns a memory descriptor, which lives as long as the primitive descriptor; None if there is none."""
        found = self._functions.dnnl_primitive_desc_query_md(primitive_descriptor, c_int(what), c_int(0))
        return c_void_p(found) if found else None

    def implementation(self, primitive_descriptor: c_void_p) -> str:
        """Returns the name of the code that is to run: 'jit:...', or 'ref:...' for the slow one."""
        name = ctypes.c_char_p()
        self.call('primitive_desc_query', primitive_descriptor, c_int(_IMPLEMENTATION), c_int(0), ctypes.byref(name))
        return (name.value or b'').decode()

    def nbytes(self, descriptor: c_void_p) -> int:
        """Returns the size of what a memory descriptor describes."""
        return int(self._functions.dnnl_memory_desc_get_size(descriptor))

    def equal(self, one: c_void_p, other: c_void_p) -> bool:
        """Whether two memory descriptors describe the same layout."""
        return bool(self._functions.dnnl_memory_desc_equal(one, other))

    def threads(self) -> int | None:
        """In how many threads primitives that are made now compute; None where they are not OpenMP's."""
        count: Callable[[], int] | None = getattr(self._functions, 'omp_get_max_threads', None)
        return None if count is None else count()

    def compute_in_one_thread(self) -> None:
        """Has primitives that are made from now on use the calling thread alone."""
        set_threads: Callable[[int], None] | None = getattr(self._functions, 'omp_set_num_threads', None)
        if set_threads is not None:
            set_threads(1)


@functools.cache
def load() -> Library | None:
    """Returns the library, or None where it cannot be loaded."""
    try:
        return find()
    except OSError:
        return None


def find() -> Library:
    """Loads the library.

    Raises:
        OSError: it is not installed, or cannot be loaded; says how to get it.
    """
    said = []
    for path, _ in presence.places():
        try:
            return Library(path)
        except (OSError, AttributeError, OneDnnError) as error:  # another library of that name, or a broken one
            said.append(str(error))
    raise OSError(f'oneDNN cannot be loaded ({"; ".join(said)}): {presence.ADVICE}')


def dimensions(values: Any) -> ctypes.Array[c_int64]:
    """Numbers as oneDNN takes them: an array of twelve."""
    return (c_int64 * 12)(*values)


def made_once(most: int) -> Callable[[Callable[Given, Computation]], Callable[Given, Computation]]:
    """Has a function that makes computations keep so many, and what it could not make: that is raised again.

    A forked child lacks the threads that its parent's computations wait for: it has none at first.
    """
    def keeping(make: Callable[Given, Computation]) -> Callable[Given, Computation]:
        @functools.lru_cache(most)
        def computation_or_refusal(*args: Given.args, **kwargs: Given.kwargs) -> tuple[Computation | None, str]:
            try:
                return make(*args, **kwargs), ''
            except UnsupportedError as error:  # its text alone: a traceback would keep arrays
                return None, str(error)

        @functools.wraps(make)
        def made(*args: Given.args, **kwargs: Given.kwargs) -> Computation:
            computation, refusal = computation_or_refusal(*args, **kwargs)  # type: ignore[arg-type]  # hashable
            if computation is None:
                raise UnsupportedError(refusal)
            return computation

        vars(made).update(cache_info=computation_or_refusal.cache_info, cache_clear=computation_or_refusal.cache_clear)
        _forget.append(computation_or_refusal.cache_clear)
        return made
    return keeping


def _forget_in_child() -> None:
    library = load() if load.cache_info().currsize else None
    if library is not None:
        library.compute_in_one_thread()
        for each in _forget:
            each()


os.register_at_fork(after_in_child=_forget_in_child)
