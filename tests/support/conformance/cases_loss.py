"""Cases of chainer.functions.loss and evaluation."""
import chainer.functions as F
import numpy as np
from chainer.utils import WalkerAlias

from support.conformance.conformance_cases import case, feature, labels, numbers, weight

PAIR = (feature(4, 5), feature(4, 5))
CHAIN = (weight(3, 3), feature(3, 3), feature(3, 3), feature(2, 3), feature(1, 3))
CHAIN_LABELS = [labels(3, 3), labels(3, 3, seed=1), labels(3, 2), labels(3, 1)]
SAMPLER = WalkerAlias([3, 1, 4, 1, 5, 9, 2])
SIGNS = labels(2, 4, 5)
INSTANCES = numbers([[[0, 0, 1], [1, 0, 1]], [[1, 1, 1], [0, 0, 0]]], dtype=np.int32)[0][None].repeat(2, 0)
SCORES = (feature(6, 4), labels(4, 6))
TWO_CLASSES = (feature(12, 2), labels(2, 12))


def cluster(x):
    return F.discriminative_margin_based_clustering_loss(x, INSTANCES, 0.1, 0.8, 2)


def ctc(reduce):
    def call(*xs):
        return F.connectionist_temporal_classification(list(xs), labels(3, 2, 2) + 1, 0, reduce=reduce)
    return call


CASES = {
    'absolute_error': case(F.absolute_error, *PAIR),
    'bernoulli_nll': case(lambda x, y: F.bernoulli_nll(F.sigmoid(x), y, reduce='no'), *PAIR),
    'bernoulli_nll/of data': case(lambda y: F.bernoulli_nll(SIGNS.astype(np.float32), y), feature(4, 5)),
    'black_out': case(
        lambda x, w: F.black_out(x, labels(7, 4), w, labels(7, 4, 2, seed=1)), feature(4, 3), weight(7, 3)),
    'connectionist_temporal_classification': case(ctc('mean'), *[feature(2, 4) for _ in range(5)]),
    'connectionist_temporal_classification/each': case(ctc('no'), *[feature(2, 4) for _ in range(5)]),
    'contrastive': case(lambda x, y: F.contrastive(x, y, numbers(0, 1, 1, 0, dtype=np.int32), margin=4), *PAIR),
    'crf1d': case(lambda cost, *xs: F.crf1d(cost, list(xs), CHAIN_LABELS), *CHAIN),
    'crf1d/each': case(lambda cost, *xs: F.crf1d(cost, list(xs), CHAIN_LABELS, reduce='no'), *CHAIN),
    'argmax_crf1d': case(lambda cost, *xs: F.argmax_crf1d(cost, list(xs)), *CHAIN, forward_only=True),
    'cross_covariance': case(F.cross_covariance, *PAIR),
    'cross_covariance/each': case(lambda x, y: F.cross_covariance(x, y, reduce='no'), *PAIR),
    'decov': case(F.decov, feature(4, 5)),
    'discriminative_margin_based_clustering_loss': case(cluster, feature(2, 2, 2, 3, low=-3, high=3)),
    'gaussian_kl_divergence': case(F.gaussian_kl_divergence, *PAIR),
    'gaussian_nll': case(F.gaussian_nll, *PAIR, feature(4, 5)),
    'hinge': case(F.hinge, *SCORES),
    'hinge/squared, each': case(lambda x, t: F.hinge(x, t, norm='L2', reduce='no'), *SCORES),
    'huber_loss': case(lambda x, y: F.huber_loss(x, y, 0.5), *PAIR),
    'mean_absolute_error': case(F.mean_absolute_error, *PAIR),
    'mean_squared_error': case(F.mean_squared_error, *PAIR),
    'negative_sampling': case(
        lambda x, w: F.negative_sampling(x, labels(7, 4), w, SAMPLER.sample, 3), feature(4, 3), weight(7, 3)),
    'negative_sampling/samples returned': case(
        lambda x, w: F.negative_sampling(x, labels(7, 4), w, SAMPLER.sample, 3, reduce='no', return_samples=True),
        feature(4, 3), weight(7, 3)),
    'sigmoid_cross_entropy': case(F.sigmoid_cross_entropy, feature(4, 5), SIGNS),
    'sigmoid_cross_entropy/each': case(lambda x: F.sigmoid_cross_entropy(x, SIGNS, reduce='no'), feature(4, 5)),
    'softmax_cross_entropy': case(F.softmax_cross_entropy, *SCORES),
    'softmax_cross_entropy/each, nothing cached': case(
        lambda x, t: F.softmax_cross_entropy(x, t, reduce='no', cache_score=False, ignore_label=1), *SCORES),
    'softmax_cross_entropy/differentiable twice, weighted': case(
        lambda x, t: F.softmax_cross_entropy(
            x, t, class_weight=numbers(1, 2, 3, 4), enable_double_backprop=True), *SCORES),
    'softmax_cross_entropy/soft targets': case(lambda x, y: F.softmax_cross_entropy(x, F.softmax(y)), *PAIR, flat=True),
    'squared_difference': case(F.squared_difference, *PAIR),
    'squared_error': case(F.squared_error, *PAIR),
    'triplet': case(F.triplet, *PAIR, feature(4, 5)),

    'accuracy': case(F.accuracy, *SCORES, forward_only=True),
    'accuracy/a label ignored': case(lambda x, t: F.accuracy(x, t, ignore_label=2), *SCORES, forward_only=True),
    'binary_accuracy': case(F.binary_accuracy, feature(4, 5), SIGNS, forward_only=True),
    'classification_summary': case(F.classification_summary, *TWO_CLASSES, forward_only=True),
    'f1_score': case(F.f1_score, *TWO_CLASSES, forward_only=True),
    'precision': case(F.precision, *TWO_CLASSES, forward_only=True),
    'r2_score': case(F.r2_score, *PAIR, forward_only=True),
    'recall': case(F.recall, *TWO_CLASSES, forward_only=True),
}
