"""Patch 0042: the kernels that pack parameters for an allreduce, run as C++ on elements beyond 2**31."""
import re
import shutil
import subprocess

import pytest

from chainer_ooc import fork
from chainer_ooc.fork import series

PATH = 'chainermn/communicators/_memory_utility.py'

#: CUDA's words, and one thread of a grid: that of element 2**31 + 130, which is the second one of the second parameter.
PROGRAM = r"""
#include <cassert>
#include <cstdio>
#define __global__
typedef unsigned short half;
static struct { unsigned x; } threadIdx, blockIdx, blockDim;
%s
int main() {
    const long long element = (1LL << 31) + 130, first = element - 1;
    float shared[1] = {5}, own[2] = {1, 3};
    long long offsets[3] = {0, first, first + 2};
    unsigned long addresses[2] = {0, (unsigned long) own};
    int dtypes[2] = {7, 7};
    blockDim.x = 128; threadIdx.x = element %% 128; blockIdx.x = element / 128;
    void *buffer = (void *) ((unsigned long) shared - 4 * element);
    cupy_batched_pack_params(buffer, 7, first + 2, addresses, dtypes, offsets, 2);
    printf("%%g ", shared[0]);
    shared[0] = 8;
    cupy_batched_unpack_params(buffer, 7, first + 2, addresses, dtypes, offsets, 2);
    printf("%%g %%g\n", own[0], own[1]);
}
"""


def test_elements_beyond_32_bits_are_packed_and_unpacked_where_they_are(tmp_path):
    compiler = shutil.which('c++') or pytest.skip('needs a compiler of C++')
    text = series.load().patched(PATH, fork.check())
    kernels = [each.replace('#include <cupy/carray.cuh>', '')
               for each in re.findall(r"raw\(r'''(.*?)'''", text, re.DOTALL)]
    assert len(kernels) == 2
    source = tmp_path / 'kernels.cpp'
    defines = '\n'.join(sorted(set(re.findall(r'#define .*', '\n'.join(kernels)))))
    bodies = re.sub(r'#define .*', '', '\n'.join(kernels))
    source.write_text(PROGRAM % f'{defines}\n{bodies}')
    subprocess.run([compiler, '-w', '-o', tmp_path / 'kernels', source], check=True)
    done = subprocess.run([tmp_path / 'kernels'], capture_output=True, text=True, check=True)
    assert done.stdout == '3 1 8\n'


def test_the_table_of_offsets_has_64_bits():
    assert 'params_size_csum = np.empty(n_params+1, dtype=np.int64)' in series.load().patched(PATH, fork.check())
