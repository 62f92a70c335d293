"""CuPy's compiled kernels as one file, to be carried along to the next machine: compiling them takes a minute there.

    --kernels TAR  -->  a folder, which CUPY_CACHE_DIR names meanwhile  -->  OUT/kernels.tar.gz, anew after each part

A file that no machine takes back is of no use: beyond `MOST_BYTES` the largest kernels stay behind.
"""
from __future__ import annotations

import os
import pathlib
import shutil
import tarfile
import tempfile

VARIABLE = 'CUPY_CACHE_DIR'
NAME = 'kernels.tar.gz'
MOST_BYTES = 15_000_000


class Kernels:
    """Where processes that are started within the `with` block keep their kernels.

    Args:
        out: the folder that the file goes to.
        earlier: a file of an earlier run, or None.
    """

    def __init__(self, out: pathlib.Path, earlier: pathlib.Path | None) -> None:
        self._file, self._earlier = out / NAME, earlier
        self._before = os.environ.get(VARIABLE)
        self._folder = pathlib.Path(self._before or tempfile.mkdtemp(prefix='kernels-'))
        self._kept: tuple[int, int] = (0, 0)

    def __enter__(self) -> Kernels:
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._earlier is not None:
            with tarfile.open(self._earlier) as tar:
                tar.extractall(self._folder, filter='data')
            print(f'{sum(1 for each in self._folder.iterdir())} kernels of {self._earlier}', flush=True)
        os.environ[VARIABLE] = str(self._folder)
        return self

    def __exit__(self, *_: object) -> None:
        self.keep()
        if self._before is None:
            del os.environ[VARIABLE]
            shutil.rmtree(self._folder, ignore_errors=True)

    def keep(self) -> None:
        """Writes the file, if there is anything new; the old one is there until the new one is whole."""
        found = sorted((each.stat().st_size, each) for each in self._folder.iterdir() if each.is_file())
        if not found or (len(found), sum(size for size, _ in found)) == self._kept:
            return
        self._kept = len(found), sum(size for size, _ in found)
        new = self._file.with_name(NAME + '.new')
        with new.open('wb') as file, tarfile.open(fileobj=file, mode='w:gz', compresslevel=6) as tar:
            for number, (size, path) in enumerate(found):
                # Flushed, since buffers hide how large the file is: those of Python 3.12 hold 128 KiB.
                tar.fileobj.flush()
                if file.tell() + size > MOST_BYTES:
                    print(f'{len(found) - number} kernels of {len(found)} are left behind: the file would be larger '
                          f'than {MOST_BYTES / 1e6:.0f} MB', flush=True)
                    break
                tar.add(path, path.name)
        os.replace(new, self._file)
