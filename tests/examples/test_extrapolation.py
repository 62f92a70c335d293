"""Recordings of real networks at two small sizes give a third recording, to the last byte."""
import functools

import chainer_ooc  # noqa: F401, before chainer

# isort: split
import pytest

from chainer_ooc.cli import tables
from chainer_ooc.papers.extrapolation import extrapolate, structure
from models.densenet import DenseNet
from models.googlenet import GoogLeNet
from models.papers import PAPER_NETWORKS, PaperNetwork
from models.resnet import ResNet
from models.resnext3d import ResNeXt3D

IMAGENET = PAPER_NETWORKS['resnet50'].labels
THIN = {
    'googlenet': (GoogLeNet, (3, 32, 32), IMAGENET),
    'resnet': (functools.partial(ResNet, (1, 1, 2, 1), width=8), (3, 32, 32), IMAGENET),
    'densenet': (functools.partial(DenseNet, (2, 2, 2, 2), growth=8), (3, 32, 32), IMAGENET),
    'resnext3d': (functools.partial(ResNeXt3D, (1, 1, 1, 1), width=16), (3, 16, 32, 32),
                  PAPER_NETWORKS['resnext3d'].labels),
}


@pytest.fixture
def record(monkeypatch):
    """Records a thin copy as the tables record a network."""
    thin = {name: PaperNetwork(name, name, build, shape, labels) for name, (build, shape, labels) in THIN.items()}
    monkeypatch.setattr('models.papers.PAPER_NETWORKS', thin)
    return tables.record


@pytest.mark.parametrize('name', THIN)
def test_two_batches_give_a_third(record, name):
    two, three, five = (record(name, batch) for batch in (2, 3, 5))
    assert extrapolate(two, three, 2, 3, 5) == structure(five)
    assert extrapolate(two, five, 2, 5, 3) == structure(three)


def test_height_and_frames_one_after_the_other(record):
    def along_frames(height):
        return extrapolate(*(record('resnext3d', (height, 32, frames)) for frames in (16, 32)), 16, 32, 48)

    found = extrapolate(along_frames(32), along_frames(64), 32, 64, 96)
    assert found == structure(record('resnext3d', (96, 32, 48)))


@pytest.mark.long
def test_resnet50_has_the_maps_and_bytes_that_its_paper_classifies():
    two, three = (tables.record('resnet50', batch) for batch in (2, 3))
    trace = extrapolate(two, three, 2, 3, 640)
    scores_bytes = 640 * 4000
    kept = [each for each in trace.maps if each.retained and not each.hidden and each.nbytes > scores_bytes]
    assert len(kept) == 105
    assert sum(each.nbytes for each in kept) / 640 / 1e6 == pytest.approx(80.1, abs=0.05)
    assert sum(each.nbytes for each in kept) == pytest.approx(51e9, rel=0.01)
