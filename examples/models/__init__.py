"""The four networks of the main job, as ordinary Chainer chains.

They are written as any Chainer user writes a network: nothing in here knows that `chainer_ooc` exists, which is the
point of the example. Each chain is called as ``chain(images, labels)`` and returns the loss to be minimised; loss and
accuracy are reported to Chainer's reporter. `models.papers` has these and the other networks of the papers'
experiments. Left out: pretrained weights, inference helpers.
"""
from __future__ import annotations

import dataclasses

import chainer

from models.alexnet import AlexNet
from models.googlenet import GoogLeNet
from models.resnet50 import ResNet50
from models.vgg16 import VGG16


@dataclasses.dataclass(frozen=True)
class Architecture:
    """One network and the settings that its training starts from.

    Attributes:
        name: What `--arch` takes.
        title: How the literature writes it.
        chain: The class; called with the number of classes.
        batchsize: Images per iteration that make in-core training take 2 to 4 GB of memory.
        learning_rate: For momentum SGD from random weights, at that batch size.
        smallest_crop: The smallest square image, in pixels, that reaches the last layer.
    """

    name: str
    title: str
    chain: type[chainer.Chain]
    batchsize: int
    learning_rate: float
    smallest_crop: int

    def build(self, classes: int = 1000) -> chainer.Chain:
        """Makes the chain with fresh random weights, drawn from NumPy's global random stream."""
        return self.chain(classes)


ARCHITECTURES = {
    row.name: row for row in (
        Architecture('resnet50', 'ResNet50', ResNet50, 16, 0.01, 32),
        Architecture('alexnet', 'AlexNet', AlexNet, 64, 0.01, 63),
        Architecture('googlenet', 'GoogLeNet', GoogLeNet, 32, 0.01, 32),
        Architecture('vgg16', 'VGG16', VGG16, 8, 0.001, 32),
    )
}
