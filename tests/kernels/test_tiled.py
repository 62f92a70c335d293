"""How calls are cut (P2), and the copies between images and columns, against Chainer's own."""
import chainer_ooc  # noqa: F401  before chainer

# isort: split
import chainer
import chainer.functions as F
import numpy as np
import pytest
from chainer.utils import conv_nd
from hypothesis import given
from hypothesis import strategies as st

from chainer_ooc.kernels.tiled.tiles import Buffer, Tile, even_parts, tiles
from chainer_ooc.kernels.tiled.windows import Windows, gather, scatter, windows_over
from support.examples import examples


@st.composite
def geometries(draw):
    """Size, kernel, stride, pad and dilation of one to three axes, with at least one window, and cover_all."""
    axes = []
    for _ in range(draw(st.integers(1, 3))):
        kernel, dilate, pad = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(0, 3))
        least = max(1, (kernel - 1) * dilate + 1 - 2 * pad)
        axes.append((least + draw(st.integers(0, 4)), kernel, draw(st.integers(1, 3)), pad, dilate))
    return tuple(zip(*axes, strict=True)), draw(st.booleans())


def columns_of(images, windows):
    columns = np.full((*images.shape[:2], *windows.kernel, *windows.out), np.nan)
    gather(images, windows, columns)
    return columns


def test_sixteen_images_of_which_fifteen_fit_are_two_halves():
    assert list(tiles(16, 7, 10, 150)) == [Tile(slice(0, 8), slice(0, 7)), Tile(slice(8, 16), slice(0, 7))]


def test_an_image_that_does_not_fit_is_cut_into_rows():
    rows = [slice(0, 3), slice(3, 5), slice(5, 7)]
    assert list(tiles(2, 7, 70, 39)) == [Tile(slice(image, image + 1), part) for image in (0, 1) for part in rows]


def test_one_row_is_the_least():
    assert list(tiles(1, 2, 70, 0)) == [Tile(slice(0, 1), slice(0, 1)), Tile(slice(0, 1), slice(1, 2))]


def test_what_needs_no_scratch_is_not_cut():
    assert list(tiles(5, 4, 0, -1)) == [Tile(slice(0, 5), slice(0, 4))]


@given(st.integers(0, 50), st.integers(1, 20), st.integers(0, 1000), st.integers(-10, 3000),
       st.none() | st.integers(1, 9))
def test_tiles_cover_everything_once_and_fit(images, rows, image_bytes, workspace_bytes, most_images):
    seen = np.zeros((images, rows), int)
    for tile in tiles(images, rows, image_bytes, workspace_bytes, most_images):
        seen[tile.images, tile.rows] += 1
        height = tile.rows.stop - tile.rows.start
        scratch_bytes = len(tile) * (image_bytes if height == rows else -(-image_bytes // rows) * height)
        assert scratch_bytes <= max(0, workspace_bytes) or (len(tile) == height == 1)
        assert most_images is None or len(tile) <= most_images
    assert (seen == 1).all()


@given(st.integers(0, 100), st.integers(-2, 30))
def test_even_parts_differ_by_one_at_most(total, most):
    lengths = [part.stop - part.start for part in even_parts(total, most)]
    assert sum(lengths) == total
    assert lengths == sorted(lengths, reverse=True)
    assert not lengths or (lengths[0] - lengths[-1] <= 1 and lengths[0] <= max(1, most))


def test_a_buffer_is_taken_once():
    buffer = Buffer(np.dtype(np.float32))
    first = buffer.shaped(3, 4)
    assert buffer.shaped(2, 6).base is first.base
    assert buffer.shaped(0, 5).shape == (0, 5)


@examples(150)
@given(geometries())
def test_gather_takes_what_chainer_takes(geometry):
    (size, kernel, stride, pad, dilate), cover_all = geometry
    images = np.random.default_rng(0).standard_normal((2, 3, *size))
    theirs = conv_nd.im2col_nd_cpu(images, kernel, stride, pad, cover_all=cover_all, dilate=dilate)
    windows = windows_over(size, kernel, stride, pad, dilate, cover_all=cover_all)
    assert windows.out == theirs.shape[-len(size):]
    np.testing.assert_array_equal(columns_of(images, windows), theirs)


@examples(50)
@given(geometries(), st.data())
def test_rows_are_a_part_of_the_windows(geometry, data):
    (size, kernel, stride, pad, dilate), cover_all = geometry
    windows = windows_over(size, kernel, stride, pad, dilate, cover_all=cover_all)
    start = data.draw(st.integers(0, windows.out[0] - 1))
    rows = slice(start, data.draw(st.integers(start + 1, windows.out[0])))
    images = np.random.default_rng(0).standard_normal((1, 2, *size))
    whole = np.moveaxis(columns_of(images, windows), 2 + len(size), 0)[rows]
    np.testing.assert_array_equal(columns_of(images, windows.rows(rows)), np.moveaxis(whole, 0, 2 + len(size)))


@examples(50)
@given(geometries())
def test_scatter_is_the_transpose_of_gather(geometry):
    (size, kernel, stride, pad, dilate), cover_all = geometry
    windows = windows_over(size, kernel, stride, pad, dilate, cover_all=cover_all)
    random = np.random.default_rng(0)
    images = random.standard_normal((2, 2, *size))
    columns = random.standard_normal((2, 2, *kernel, *windows.out))
    added = np.zeros_like(images)
    scatter(columns, windows, added)
    there, back = (columns * columns_of(images, windows)).sum(), (added * images).sum()
    np.testing.assert_allclose(back, there, rtol=1e-10, atol=1e-10)


def test_the_windows_of_a_pointwise_kernel_are_the_image():
    assert windows_over((4, 5), (1, 1), (1, 1), (0, 0)).pointwise
    assert not windows_over((4, 5), (1, 1), (2, 1), (0, 0)).pointwise
    assert not windows_over((4, 5), (1, 1), (1, 1), (0, 1)).pointwise
    assert not Windows((4, 5), (1, 1), (1, 1), (0, 0), (1, 1), (3, 5)).pointwise


def test_an_image_without_windows_is_refused_with_its_numbers():
    with pytest.raises(AssertionError, match=r'are \(0,\) \(image \(2,\), window \(3,\).*use a larger image or pad'):
        windows_over((2,), (3,), (1,), (0,))


@pytest.mark.parametrize('workspace', [None, '1MB'])
@pytest.mark.parametrize('apply', [
    lambda image: F.convolution_2d(image, np.ones((2, 3, 7, 7), 'f')),
    lambda image: F.convolution_nd(image, np.ones((2, 3, 7, 7), 'f')),
    lambda image: F.max_pooling_2d(image, 7, cover_all=False), lambda image: F.average_pooling_2d(image, 7)])
def test_programs_that_try_sizes_see_chainers_error(workspace, apply):
    with chainer.using_config('ooc_workspace', workspace), pytest.raises(AssertionError, match='should be positive'):
        apply(np.ones((2, 3, 4, 4), 'f'))
