"""The networks of the programme by name, with a batch that lies on the device already."""
from __future__ import annotations

import re
from typing import Any

import here  # noqa: F401  chainer_ooc before chainer, and the examples on the path

# isort: split
import chainer
import numpy as np

from models.papers import IMAGENET, PAPER_NETWORKS
from models.resnet import ResNet, units_of

SEED = 0
NARROW_WIDTH = 4
_DEPTH = re.compile(r'resnet-(\d+)(-narrow)?')


def build(network: str, batch: Any, image_side: int | None, device: Any) -> tuple[chainer.Chain, tuple[Any, Any]]:
    """Makes a network and its batch on a device.

    Args:
        network: A name in `models.papers.PAPER_NETWORKS`, or ``resnet-UNITS`` and ``resnet-UNITS-narrow`` for residual
            networks of so many units.
        batch: Number of images, or the (height, width, frames) of a video.
        image_side: Height and width of an image in pixels; None takes the network's own.
        device: A `near.Host` or `near.Cuda`.

    Returns:
        tuple: The chain and its arguments, images (float32) and labels (int32).
    """
    np.random.seed(SEED)
    depth = _DEPTH.fullmatch(network)
    if depth:
        model = ResNet(units_of(int(depth[1])), **({'width': NARROW_WIDTH} if depth[2] else {}))
        shape, label = (int(batch), 3, 224, 224), IMAGENET
    else:
        row = PAPER_NETWORKS[network]
        model, label = row.build(), row.labels
        shape = row.batch_shape(batch if isinstance(batch, int) else tuple(batch))
    if image_side is not None:
        shape = (*shape[:2], image_side, image_side)
    images = np.random.default_rng(SEED).random(shape, np.float32)
    where = device.chainer_device()
    model.to_device(where)
    where.use()
    return model, (where.send(images), where.send(label(images)))


def images_of(batch: Any) -> int:
    """How many images an iteration takes; a video is one."""
    return batch if isinstance(batch, int) else 1


