"""The end that networks which classify share: loss and accuracy go to Chainer's reporter."""
from __future__ import annotations

import chainer
import chainer.functions as F


def reported(chain, loss, scores, labels):
    """Reports the loss of a batch, and the accuracy of its scores.

    Args:
        chain (chainer.Chain): The network; the reported names get its prefix (``main/loss``, ``main/accuracy``).
        loss (chainer.Variable): What is minimised, float32, shape ``()``.
        scores (chainer.Variable): Unnormalised scores, float32, shape ``(batch, classes)``, or
            ``(batch, classes, height, width)`` where each pixel is classified.
        labels (numpy.ndarray): Right classes, int32, shape ``(batch,)`` or ``(batch, height, width)``.

    Returns:
        chainer.Variable: The loss.
    """
    chainer.report({'loss': loss, 'accuracy': F.accuracy(scores, labels)}, chain)
    return loss
