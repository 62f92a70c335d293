"""Cases of chainer.links, all in training mode."""
import chainer.links as L
import numpy as np
from chainer.initializers import LeCunNormal

from support.conformance.conformance_cases import feature, labels, link, numbers

IMAGES = feature(2, 3, 6, 5)
ROWS = feature(4, 5)
WORDS = labels(7, 4)
COUNTS = [3, 1, 4, 1, 5, 9, 2]
TREE = L.BinaryHierarchicalSoftmax.create_huffman_tree({0: 8, 1: 5, 2: 6, 3: 4, 4: 1, 5: 2, 6: 2})


def n_step(make, ways=1, cell=False):
    """Over two sequences of different lengths, from a given state or states."""
    states = [feature(ways, 2, 3) for _ in range(2 if cell else 1)]

    def call(built, *args):
        return built(*args[:len(states)], list(args[len(states):]))
    return link(lambda: make(1, 4, 3, 0.4), *states, feature(3, 4), feature(2, 4), call=call)


def unrolled(built, *xs):
    """A stateful link over a few steps; the batch gets smaller, as it does where sequences end."""
    built.reset_state()
    return [built(x) for x in xs]


def stateful(make):
    return link(make, feature(3, 5), feature(3, 5), feature(2, 5), call=unrolled)


def steady(make):
    return link(make, feature(3, 5), feature(3, 5), feature(3, 5), call=unrolled)


def tags(built, *xs):
    return built(list(xs), [labels(4, 3), labels(4, 2)])


def vgg(make):
    return link(
        lambda: make(pretrained_model=None), feature(1, 3, 224, 224),
        call=lambda built, x: built(x, layers=['pool5', 'fc8']), heavy=True)


def black_out():
    built = L.BlackOut(5, COUNTS, 3)
    built.W.array[...] = np.random.RandomState(0).uniform(-1, 1, built.W.shape)  # which it leaves to its user
    return built


CASES = {
    'BatchNormalization': link(lambda: L.BatchNormalization(3), IMAGES),
    'BatchNormalization/size from the data, renewed': link(
        lambda: L.BatchNormalization(axis=(0, 2)), feature(3, 4, 5), feature(3, 4, 5), call=lambda built, x, y: (
            built(x, finetune=True), built(y))),
    'BatchRenormalization': link(lambda: L.BatchRenormalization(3, rmax=2, dmax=1), IMAGES),
    'Bias': link(lambda: L.Bias(shape=(5,)), ROWS),
    'Bilinear': link(lambda: L.Bilinear(5, 3, 4), ROWS, feature(4, 3)),
    'BinaryHierarchicalSoftmax': link(lambda: L.BinaryHierarchicalSoftmax(5, TREE), ROWS, WORDS, quiet=(
        ('invalid value encountered in dot', 'seen a few times with finite operands, in plain Chainer too'),)),
    'BlackOut': link(black_out, ROWS, WORDS),
    'CRF1d': link(lambda: L.CRF1d(4), feature(3, 4), feature(2, 4), call=tags),
    'ChildSumTreeLSTM': link(lambda: L.ChildSumTreeLSTM(5, 3), *[feature(4, 3)] * 4, ROWS),
    'Classifier': link(lambda: L.Classifier(L.Linear(5, 7)), ROWS, WORDS),
    'Convolution1D': link(lambda: L.Convolution1D(3, 4, 3, pad=1), feature(2, 3, 7)),
    'Convolution2D': link(lambda: L.Convolution2D(3, 4, 3, stride=2, pad=1), IMAGES),
    'Convolution2D/size from the data': link(lambda: L.Convolution2D(None, 4, 3, nobias=True), IMAGES),
    'Convolution3D': link(lambda: L.Convolution3D(2, 3, 2), feature(2, 2, 4, 3, 4)),
    'ConvolutionND': link(lambda: L.ConvolutionND(2, 3, 4, 3, dilate=2, pad=2), IMAGES),
    'Deconvolution1D': link(lambda: L.Deconvolution1D(3, 4, 3), feature(2, 3, 5)),
    'Deconvolution2D': link(lambda: L.Deconvolution2D(3, 4, 3, stride=2, pad=1), IMAGES),
    'Deconvolution3D': link(lambda: L.Deconvolution3D(2, 3, 2), feature(2, 2, 3, 2, 3)),
    'DeconvolutionND': link(lambda: L.DeconvolutionND(2, 3, 4, 3), IMAGES),
    'DecorrelatedBatchNormalization': link(
        lambda: L.DecorrelatedBatchNormalization(4, groups=2), feature(6, 4, 2, 2)),
    'DeformableConvolution2D': link(
        lambda: L.DeformableConvolution2D(3, 4, 3, pad=1, deform_initialW=LeCunNormal()), IMAGES),
    'DepthwiseConvolution2D': link(lambda: L.DepthwiseConvolution2D(3, 2, 3, pad=1), IMAGES),
    'DilatedConvolution2D': link(lambda: L.DilatedConvolution2D(3, 4, 3, dilate=2, pad=2), IMAGES),
    'EmbedID': link(lambda: L.EmbedID(7, 5, ignore_label=2), ROWS, call=lambda built, x: built(WORDS) * x),
    'GRU': steady(lambda: L.GRU(5, 3)),
    'GroupNormalization': link(lambda: L.GroupNormalization(2), feature(2, 4, 3, 2)),
    'Highway': link(lambda: L.Highway(5), ROWS),
    'Inception': link(lambda: L.Inception(3, 2, 2, 3, 2, 3, 2), IMAGES),
    'InceptionBN': link(lambda: L.InceptionBN(3, 2, 2, 3, 2, 3, 'avg', 2), IMAGES),
    'InceptionBN/strided, of maxima': link(lambda: L.InceptionBN(3, 0, 2, 3, 2, 3, 'max', stride=2), IMAGES),
    'LSTM': stateful(lambda: L.LSTM(5, 3)),
    'LayerNormalization': link(lambda: L.LayerNormalization(5), ROWS),
    'Linear': link(lambda: L.Linear(5, 3), ROWS),
    'Linear/size from the data': link(lambda: L.Linear(3), feature(4, 2, 3)),
    'Linear/used twice': link(lambda: L.Linear(5, 5), ROWS, call=lambda built, x: built(built(x))),
    'LocalConvolution2D': link(lambda: L.LocalConvolution2D(3, 4, (6, 5), 3), IMAGES),
    'MLPConvolution2D': link(lambda: L.MLPConvolution2D(3, (4, 2), 3), IMAGES),
    'Maxout': link(lambda: L.Maxout(5, 3, 2), ROWS),
    'NStepBiGRU': n_step(L.NStepBiGRU, 2),
    'NStepBiLSTM': n_step(L.NStepBiLSTM, 2, cell=True),
    'NStepBiRNNReLU': n_step(L.NStepBiRNNReLU, 2),
    'NStepBiRNNTanh': n_step(L.NStepBiRNNTanh, 2),
    'NStepGRU': n_step(L.NStepGRU),
    'NStepLSTM': n_step(L.NStepLSTM, cell=True),
    'NStepRNNReLU': n_step(L.NStepRNNReLU),
    'NStepRNNTanh': n_step(L.NStepRNNTanh),
    'NaryTreeLSTM': link(lambda: L.NaryTreeLSTM(5, 3), *[feature(4, 3)] * 4, ROWS),
    'NegativeSampling': link(lambda: L.NegativeSampling(5, COUNTS, 3), ROWS, WORDS),
    'PReLU': link(lambda: L.PReLU((5,)), ROWS),
    'Parameter': link(lambda: L.Parameter(numbers(1, 2, 3, 4, 5)), ROWS, call=lambda built, x: built() * x),
    'Scale': link(lambda: L.Scale(W_shape=(5,), bias_term=True), ROWS),
    'Scale/by a feature map': link(lambda: L.Scale(bias_term=True, bias_shape=(5,)), ROWS, feature(5)),
    'SimplifiedDropconnect': link(lambda: L.SimplifiedDropconnect(5, 3), ROWS),
    'StatefulGRU': steady(lambda: L.StatefulGRU(5, 3)),
    'StatefulMGU': steady(lambda: L.StatefulMGU(5, 3)),
    'StatefulPeepholeLSTM': steady(lambda: L.StatefulPeepholeLSTM(5, 3)),
    'StatefulZoneoutLSTM': steady(lambda: L.StatefulZoneoutLSTM(5, 3)),
    'StatelessGRU': link(lambda: L.StatelessGRU(5, 3), feature(4, 3), ROWS),
    'StatelessLSTM': link(lambda: L.StatelessLSTM(5, 3), feature(4, 3), feature(4, 3), ROWS),
    'StatelessMGU': link(lambda: L.StatelessMGU(5, 3), feature(4, 3), ROWS),
    'Swish': link(lambda: L.Swish((5,)), ROWS),

    'GoogLeNet': link(
        lambda: L.GoogLeNet(pretrained_model=None), feature(1, 3, 32, 32),
        call=lambda built, x: built(x, layers=['pool3', 'inception_5b']), heavy=True),
    'ResNet50Layers': link(lambda: L.ResNet50Layers(pretrained_model=None), feature(2, 3, 32, 32), heavy=True),
    'ResNet101Layers': link(lambda: L.ResNet101Layers(pretrained_model=None), feature(2, 3, 32, 32), heavy=True),
    'ResNet152Layers': link(lambda: L.ResNet152Layers(pretrained_model=None), feature(2, 3, 32, 32), heavy=True),
    'VGG16Layers': vgg(L.VGG16Layers),
    'VGG19Layers': vgg(L.VGG19Layers),
}
