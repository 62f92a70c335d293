"""Runs CUDA kernels on the host: the same source, compiled as C++ behind `cuda_on_host.h`.

`RawKernel` has the place of ``cupy.RawKernel`` and takes arrays of NumPy. Beyond running a kernel it finds what a
device would not tell: arguments of another size or kind than the parameters, a barrier that some threads of a block do
not come to, and addresses that are no multiples of what is read at once (SIGILL). `counting` tells how often each
element of a map is read and written.

What differs from a device: threads of a block run one after the other, from barrier to barrier, in their order or, with
`backwards`, from the last to the first; blocks likewise. Nothing can be said of speed.
"""
import atexit
import contextlib
import ctypes
import functools
import pathlib
import re
import shutil
import subprocess
import tempfile

import numpy as np

COMPILER = shutil.which('g++') or shutil.which('c++')

HEADER = pathlib.Path(__file__).with_name('cuda_on_host.h')

# As on the device, no product is fused but those that the source fuses. Shared memory is a static variable of a
# template, which several libraries of one process would else have together.
OPTIONS = ['-std=c++17', '-O0', '-shared', '-fPIC', '-fno-gnu-unique', '-ffp-contract=off', '-fsanitize=alignment',
           '-fsanitize-undefined-trap-on-error']

_launched = []
_counted = _only = None
_backwards = False


class RawKernel:
    """A kernel of a source.

    Args:
        code: the source; its ``#define MAP`` is the type of elements that can be counted.
        name: of the kernel.
        options: of NVRTC; not looked at.
    """

    def __init__(self, code, name, options=()):
        self._name = name
        self._library = _compiled(code)
        self._kinds = ctypes.c_char_p.in_dll(self._library, f'kinds_{name}').value.decode().split()

    def __call__(self, grid, block, arguments):
        assert [_kind(each) for each in arguments] == self._kinds, self._name
        assert 1 <= np.prod(block) <= 1024
        for each in arguments:
            assert not isinstance(each, np.ndarray) or each.flags.c_contiguous
        values = [np.array(each.ctypes.data if isinstance(each, np.ndarray) else each) for each in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(each.ctypes.data for each in values))
        if _counted is not None:
            _counted.note(arguments)
            for number, watch in enumerate(_counted.maps):
                self._library.watch(number, *map(ctypes.c_void_p, watch.addresses()))
        _launched.append(self._name)
        assert len(grid) == 1
        first, last = (0, grid[0]) if _only is None else (_only % grid[0], _only % grid[0] + 1)
        try:
            failure = getattr(self._library, f'launch_{self._name}')(
                pointers, *grid, *(*block, 1)[:2], first, last, _backwards)
        finally:
            self._library.forget()
        assert not failure, f'threads of a block of {self._name} miss a barrier that others wait at'


class Watch:
    """Counts what kernels do with the elements of an array.

    Attributes:
        reads, writes: of each element, in the array's shape.
    """

    def __init__(self, array):
        self.array = array
        self.reads, self.writes = (np.zeros(array.shape, 'u4') for _ in range(2))

    def addresses(self):
        begin = self.array.ctypes.data
        return begin, begin + self.array.nbytes, self.reads.ctypes.data, self.writes.ctypes.data


class Counts:
    """What kernels did with the arrays that they were given.

    Attributes:
        maps: a `Watch` for each array of three axes or more, in the order that they came in.
        most_elements_beside: of the largest other array.
    """

    def __init__(self):
        self.maps, self.most_elements_beside = [], 0

    def note(self, arguments):
        for each in arguments:
            if isinstance(each, np.ndarray) and each.ndim < 3:
                self.most_elements_beside = max(self.most_elements_beside, each.size)
            elif isinstance(each, np.ndarray) and not any(each is watch.array for watch in self.maps):
                self.maps.append(Watch(each))


@contextlib.contextmanager
def counting():
    """Gives `Counts` of all launches."""
    global _counted
    _counted = Counts()
    try:
        yield _counted
    finally:
        _counted = None


@contextlib.contextmanager
def backwards():
    """Blocks, and the threads of each, run from the last to the first."""
    global _backwards
    _backwards = True
    try:
        yield
    finally:
        _backwards = False


@contextlib.contextmanager
def only(block):
    """One block of each launch runs; -1 is the last."""
    global _only
    _only = block
    try:
        yield
    finally:
        _only = None


@contextlib.contextmanager
def launches():
    """Gives a list of the kernels' names, one for each launch."""
    _launched.clear()
    yield _launched


def _kind(argument):
    if isinstance(argument, np.ndarray):
        return 'pointer8'
    kind = {'f': 'float', 'i': 'int', 'u': 'pointer'}[argument.dtype.kind]
    return f'{kind}{argument.dtype.itemsize}'


@functools.cache
def _folder():
    made = tempfile.mkdtemp(prefix='cuda_on_host')
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return pathlib.Path(made)


@functools.cache
def _compiled(code):
    names = re.findall(r'__global__ void (?:__launch_bounds__\(\w+\)\s+)?(\w+)\(', code)
    code = re.sub('#include <cuda_fp16.h>', '', re.sub(r'(#define MAP) (\w+)', r'\1 Watched<\2>', code))
    place = _folder() / str(len(list(_folder().glob('*.cpp'))))
    text = '\n'.join([f'#include "{HEADER}"', code, *(f'KERNEL({name})' for name in names)])
    place.with_suffix('.cpp').write_text(text)
    subprocess.run([COMPILER, *OPTIONS, '-o', place.with_suffix('.so'), place.with_suffix('.cpp')], check=True)
    return ctypes.CDLL(str(place.with_suffix('.so')))
