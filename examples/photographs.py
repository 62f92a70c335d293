"""Random crops of real photographs, the same for the same seed whatever runs them.

A crop is a pure function of the seed and its index, so that an in-core and an out-of-core run, or a resumed one, see
the same images in the same order. By default the photographs are those that the wheels of scikit-image and scikit-learn
carry (read from their folders: nothing is downloaded, and neither package is imported); the label is the photograph.
Left out: augmentation beyond crop and flip, and caching of a large folder.
"""
from __future__ import annotations

import importlib.util
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import chainer
import numpy

BUNDLED = {
    'skimage': ('data', ('astronaut.png', 'chelsea.png', 'coffee.png', 'hubble_deep_field.jpg', 'ihc.png',
                         'motorcycle_left.png', 'retina.jpg', 'rocket.jpg')),
    'sklearn': ('datasets/images', ('china.jpg', 'flower.jpg')),
}
SUFFIXES = ('.bmp', '.jpeg', '.jpg', '.png', '.ppm', '.tif', '.tiff', '.webp')

# The usual mean and spread of natural images, on the scale 0 to 255, as RGB.
MEAN = numpy.array([123.7, 116.3, 103.5], dtype=numpy.float32)[:, None, None]
SPREAD = numpy.array([58.4, 57.1, 57.4], dtype=numpy.float32)[:, None, None]


class Photograph(NamedTuple):
    """A file and its class."""

    path: pathlib.Path
    label: int


def bundled_photographs() -> list[Photograph]:
    """Finds the photographs inside the installed scikit-image and scikit-learn.

    Raises:
        FileNotFoundError: Fewer than two of them are there.
    """
    found = []
    for package, (folder, names) in BUNDLED.items():
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            home = pathlib.Path(spec.origin).parent / folder
            found += [home / name for name in names if (home / name).is_file()]
    if len(found) < 2:
        raise FileNotFoundError(
            f'found {len(found)} of the photographs that scikit-image and scikit-learn carry, and training needs 2; '
            'run `pip install scikit-image scikit-learn`, or give a folder of your own with --images')
    return [Photograph(path, label) for label, path in enumerate(found)]


def folder_photographs(folder: pathlib.Path) -> list[Photograph]:
    """Finds the images of a folder; the label is the sub-folder, or the file itself where there are no sub-folders.

    Raises:
        FileNotFoundError: The folder is missing or holds no image.
    """
    paths = sorted(path for path in folder.rglob('*') if path.suffix.lower() in SUFFIXES and path.is_file())
    if not paths:
        raise FileNotFoundError(
            f'no image in {folder} (looked for {", ".join(SUFFIXES)}, sub-folders included); '
            'give a folder of photographs with --images, or leave it out')
    names = [path.relative_to(folder).parts[0] for path in paths]
    labels = {name: label for label, name in enumerate(sorted(set(names)))}
    return [Photograph(path, labels[name]) for path, name in zip(paths, names, strict=True)]


class RandomCrops(chainer.dataset.DatasetMixin):
    """A long row of square crops, each drawn at random from a random photograph and mirrored half of the time.

    Args:
        photographs: What to crop.
        crop: Width and height of a crop in pixels; a photograph that is smaller is enlarged.
        length: Number of crops in the row, which Chainer takes as one epoch.
        seed: Chooses photograph, place and mirroring of every crop.
    """

    def __init__(self, photographs: Sequence[Photograph], crop: int, length: int, seed: int) -> None:
        self._photographs = photographs
        self._crop = crop
        self._length = length
        self._seed = seed
        self._pixels: dict[pathlib.Path, numpy.ndarray] = {}

    def __len__(self) -> int:
        return self._length

    def get_example(self, i: int) -> tuple[numpy.ndarray, numpy.int32]:
        """Returns crop `i`: image, float32, shape ``(3, crop, crop)``, RGB about 0; and its label."""
        random = numpy.random.RandomState([self._seed, i])
        photograph = self._photographs[random.randint(len(self._photographs))]
        pixels = self._read(photograph.path)
        top = random.randint(pixels.shape[0] - self._crop + 1)
        left = random.randint(pixels.shape[1] - self._crop + 1)
        window = pixels[top:top + self._crop, left:left + self._crop]
        if random.randint(2):
            window = window[:, ::-1]
        image = (window.transpose(2, 0, 1).astype(numpy.float32) - MEAN) / SPREAD
        return numpy.ascontiguousarray(image), numpy.int32(photograph.label)

    def _read(self, path: pathlib.Path) -> numpy.ndarray:
        """Reads a photograph as uint8, shape ``(height, width, 3)``; keeps it when there are only a few."""
        pixels = self._pixels.get(path)
        if pixels is None:
            pixels = read_pixels(path, self._crop)
            if len(self._photographs) <= 32:
                self._pixels[path] = pixels
        return pixels


def read_pixels(path: pathlib.Path, smallest: int) -> numpy.ndarray:
    """Reads an image file as RGB.

    Args:
        path: The file.
        smallest: Pixels that both sides must have at least; a smaller image is enlarged.

    Returns:
        numpy.ndarray: uint8, shape ``(height, width, 3)``.
    """
    from PIL import Image  # Pillow is needed only where a file is read

    with Image.open(path) as file:
        image = file.convert('RGB')
    short = min(image.size)
    if short < smallest:
        size = tuple(max(smallest, round(side * smallest / short)) for side in image.size)
        image = image.resize(size, Image.Resampling.BILINEAR)
    return numpy.asarray(image)
