"""The networks of the papers' experiments by name, with the batches that they take there.

Those of `ARCHITECTURES` are among them, in the same form as the others, so that a table of experiments can
build any of them.
"""
from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import chainer
import numpy as np

from models.alexnet import AlexNet
from models.deeplab import DeepLab
from models.densenet import LAYERS, DenseNet
from models.googlenet import GoogLeNet
from models.googlenet_bn import GoogLeNetBN
from models.inception4 import InceptionV4
from models.pix2pixhd import Pix2PixHD
from models.resnet import ResNet, units_of
from models.resnet50 import ResNet50
from models.resnext3d import ResNeXt3D
from models.vgg16 import VGG16


@dataclasses.dataclass(frozen=True)
class PaperNetwork:
    """One network and the batches of its experiments.

    Attributes:
        name: What tables of experiments call it.
        title: How the literature writes it.
        build: Makes the chain with fresh random weights; called as ``chain(images, labels)`` it returns the loss.
        image_shape: Shape of one image, channels first. That of a video is (3, frames, height, width).
        labels: Makes some labels for an array of images, of the shape and dtype that the chain's loss takes.
        smallest_batch: Images that an iteration needs at least.
        dtype: Of images and parameters.
    """

    name: str
    title: str
    build: Callable[[], chainer.Chain]
    image_shape: tuple[int, ...]
    labels: Callable[[np.ndarray], np.ndarray]
    smallest_batch: int = 1
    dtype: type[np.floating] = np.float32

    def batch(self, size, seed=0):
        """Makes random images and labels for them.

        Args:
            size: number of images; or the (height, width, frames) of a video, or (height, width) of an image, of which
                as many are made as an iteration needs at least.
            seed: of the random numbers.

        Returns:
            tuple[numpy.ndarray, numpy.ndarray]: Images of `dtype`, the batch first, and labels.
        """
        images = np.random.RandomState(seed).standard_normal(self.batch_shape(size)).astype(self.dtype)
        return images, self.labels(images)

    def batch_shape(self, size):
        """Returns the shape of an array of images of this `size`, see `batch`."""
        if isinstance(size, int):
            return (size, *self.image_shape)
        height, width, *frames = size
        return (self.smallest_batch, self.image_shape[0], *frames, height, width)


def class_of_image(images, classes):
    """Gives each image a class; int32, shape ``(batch,)``."""
    return np.arange(len(images), dtype=np.int32) % classes


def class_of_pixel(images, classes):
    """Gives each pixel a class; int32, shape ``(batch, height, width)``."""
    return np.resize(np.arange(classes, dtype=np.int32), (len(images), *images.shape[2:]))


def photographs(images):
    """Gives each map of labels a grey photograph; shape ``(batch, 3, height, width)``, dtype of the maps."""
    return np.zeros((len(images), 3, *images.shape[2:]), images.dtype)


IMAGENET = partial(class_of_image, classes=1000)
KINETICS = partial(class_of_image, classes=400)
PASCAL_VOC = partial(class_of_pixel, classes=21)

PAPER_NETWORKS = {
    row.name: row for row in (
        PaperNetwork('resnet50', 'ResNet50', ResNet50, (3, 224, 224), IMAGENET),
        PaperNetwork('resnet101', 'ResNet101', partial(ResNet, units_of(33)), (3, 224, 224), IMAGENET),
        PaperNetwork('resnet152', 'ResNet152', partial(ResNet, units_of(50)), (3, 224, 224), IMAGENET),
        PaperNetwork('alexnet', 'AlexNet', AlexNet, (3, 224, 224), IMAGENET),
        PaperNetwork('googlenet', 'GoogLeNet', GoogLeNet, (3, 224, 224), IMAGENET),
        PaperNetwork('googlenet_bn', 'GoogLeNet', GoogLeNetBN, (3, 224, 224), IMAGENET),
        PaperNetwork('vgg16', 'VGG16', VGG16, (3, 224, 224), IMAGENET),
        PaperNetwork('inception4', 'Inception v4', InceptionV4, (3, 299, 299), IMAGENET),
        PaperNetwork('resnext3d', 'ResNeXt101 (3D)', ResNeXt3D, (3, 128, 224, 224), KINETICS),
        PaperNetwork('densenet', 'DenseNet121', partial(DenseNet, LAYERS[121]), (3, 224, 224), IMAGENET),
        PaperNetwork('deeplab', 'DeepLabv3+', DeepLab, (3, 513, 513), PASCAL_VOC, smallest_batch=2),
        # At this size the paper of pix2pixHD trains its global generator; the enhancer is for twice the size.
        PaperNetwork('pix2pixhd', 'pix2pixHD', partial(Pix2PixHD, enhancer=False), (36, 512, 1024), photographs),
    )
}
