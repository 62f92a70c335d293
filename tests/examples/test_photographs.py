import importlib.util
import pathlib

import numpy as np
import pytest
from PIL import Image

from photographs import Photograph, RandomCrops, bundled_photographs, folder_photographs, read_pixels


def write_image(path, size=(60, 40), mode='RGB'):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.effect_noise(size, 80).convert(mode).save(path)
    return path


def test_bundled_photographs_are_there_and_their_label_is_the_photograph():
    photographs = bundled_photographs()
    assert [photograph.label for photograph in photographs] == list(range(len(photographs)))
    names = {photograph.path.name for photograph in photographs}
    assert 'china.jpg' in names
    skimage = pathlib.Path(importlib.util.find_spec('skimage').origin).parent  # newer ones download theirs
    assert ('astronaut.png' in names) == (skimage / 'data' / 'astronaut.png').exists()


def test_missing_packages_are_an_error_that_says_what_to_install(monkeypatch):
    monkeypatch.setattr('importlib.util.find_spec', lambda package: None)
    with pytest.raises(FileNotFoundError, match='pip install scikit-image scikit-learn'):
        bundled_photographs()


def test_sub_folders_are_classes(tmp_path):
    for name in ('dog/1.png', 'dog/deep/2.jpg', 'cat/1.png'):
        write_image(tmp_path / name)
    (tmp_path / 'cat' / 'notes.txt').write_text('no image')
    found = {photograph.path.name + photograph.path.parent.name: photograph.label
             for photograph in folder_photographs(tmp_path)}
    assert found == {'1.pngcat': 0, '1.pngdog': 1, '2.jpgdeep': 1}


def test_files_of_a_flat_folder_are_classes(tmp_path):
    for name in ('b.png', 'a.png'):
        write_image(tmp_path / name)
    assert [(photograph.path.name, photograph.label) for photograph in folder_photographs(tmp_path)] == [
        ('a.png', 0), ('b.png', 1)]


def test_folder_without_images_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match='no image in'):
        folder_photographs(tmp_path)


def test_crop_is_a_function_of_seed_and_index(tmp_path):
    photographs = [Photograph(write_image(tmp_path / 'a.png'), 3)]
    first, again = (RandomCrops(photographs, 24, 100, seed=1) for _ in range(2))
    other = RandomCrops(photographs, 24, 100, seed=2)
    image, label = first[7]
    assert image.shape == (3, 24, 24)
    assert image.dtype == np.float32
    assert (label, label.dtype) == (3, np.int32)
    assert image.tobytes() == again[7][0].tobytes()
    assert image.tobytes() != first[8][0].tobytes()
    assert image.tobytes() != other[7][0].tobytes()


@pytest.mark.parametrize('mode', ['L', 'P', 'RGBA'])
def test_any_image_is_read_as_rgb_and_enlarged_where_it_is_too_small(tmp_path, mode):
    pixels = read_pixels(write_image(tmp_path / 'a.png', mode=mode), smallest=80)
    assert pixels.shape == (80, 120, 3)
    assert pixels.dtype == np.uint8
