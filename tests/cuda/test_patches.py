"""The patches 0016 to 0022, as far as they can be seen without a GPU; 0016 and 0018 are in test_chainer_with_cupy.

Kernels and names are read from the patched sources. A GPU's functions are run on arrays of NumPy, where that promotes
as CuPy does.
"""
import re
from pathlib import Path

import chainer_ooc  # noqa: F401  before chainer

# isort: split
import chainer
import chainer.functions as F
import numpy as np
import pytest
from chainer.backends import cuda
from chainer.functions.math.clip import Clip

from chainer_ooc import fork
from chainer_ooc.fork import series

# A kernel for float32 alone, whose products need no cast.
FLOAT32_ALONE = 'chainer/functions/array/resize_images.py'


@pytest.fixture(scope='module')
def sources():
    """Path -> text of all files of chainer, patched."""
    loaded, site = series.load(), fork.check()
    texts = {str(file.relative_to(site)): file.read_text(encoding='utf-8') for file in (site / 'chainer').rglob('*.py')}
    return {**texts, **{path: loaded.patched(path, site) for path in loaded.diffs}}


def found(sources, pattern):
    return [path for path, text in sorted(sources.items()) if re.search(pattern, text)]


def test_0017_nobody_calls_what_cupy_deprecates(sources):
    assert found(sources, r'cupyx\.scatter_add\(|= *cuda\.cupyx\.scatter_add|\bgx\.scatter_add') == []
    assert len(found(sources, r'(cuda\.cupy|\bxp)\.add\.at\b')) == 5


def test_0017_get_item_adds_at_its_indices_in_backward():
    x = chainer.Variable(np.zeros((2, 3), 'f'))
    F.sum(x[[0, 0, 1]]).backward()
    assert x.grad.tolist() == [[2, 2, 2], [1, 1, 1]]


def test_0019_nvtx_is_asked_for_without_a_deprecated_name(sources):
    assert found(sources, r'nvtx_enabled') == []


def test_0020_products_are_cast_before_they_are_added(sources):
    assert found(sources, r'atomicAdd\(&[^;]*, [^T;][^;()]* \* [^;]*\);') == [FLOAT32_ALONE]


@pytest.mark.skipif(int(np.__version__.split('.')[0]) < 2, reason='NumPy 1 promotes by value')
@pytest.mark.parametrize('shape', [(), (3,)])
def test_0021_clip_keeps_the_dtype_on_a_gpu(monkeypatch, shape):
    monkeypatch.setattr(cuda, 'cupy', np)
    y, = Clip(np.float32(-.75), np.float32(1.5)).forward_gpu((np.ones(shape, np.float16),))
    assert y.dtype == np.float16


def test_0022_kernels_that_name_float16_include_its_header(sources):
    named = {path: text for path, text in sources.items() if 'reinterpret_cast<float16' in text}
    assert list(named) == ['chainer/training/updaters/multiprocess_parallel_updater.py']
    assert all(text.count('preamble=_float16_preamble()') == text.count('loop_prep=') == 2 for text in named.values())


def test_0022_cupy_has_the_header_where_it_is_included():
    cupy = pytest.importorskip('cupy', reason='the wheel of CuPy is not installed')
    header = Path(cupy.__file__).parent / '_core' / 'include' / 'cupy' / 'float16.cuh'
    assert header.exists() == (int(cupy.__version__.split('.')[0]) >= 14)
