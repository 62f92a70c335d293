"""Cases of chainer.functions.normalization; running statistics must be updated once, whatever is recomputed (P7)."""
import chainer.functions as F
import numpy as np

from support.conformance.conformance_cases import case, feature, statistic, weight

IMAGES = feature(3, 4, 2, 3)
COLUMN = (weight(4, low=0.5), weight(4))
RUNNING = (statistic(4), statistic(4, value=1))
FIXED = (np.linspace(-0.2, 0.2, 4).astype(np.float32), np.linspace(0.5, 2, 4).astype(np.float32))
WHITENING = (FIXED[0].reshape(2, 2), np.linspace(-1, 1, 8).astype(np.float32).reshape(2, 2, 2))


def normalize(x, gamma, beta, mean, var, **attributes):
    return F.batch_normalization(x, gamma, beta, running_mean=mean, running_var=var, **attributes)


def renormalize(x, gamma, beta, mean, var, update=True):
    return F.batch_renormalization(
        x, gamma, beta, 2, 1, running_mean=mean, running_var=var, update_statistics=update)


def decorrelate(x, mean, projection):
    return F.decorrelated_batch_normalization(x, groups=2, running_mean=mean, running_projection=projection)


CASES = {
    'batch_normalization': case(normalize, IMAGES, *COLUMN, *RUNNING),
    'batch_normalization/twice on one': case(
        lambda x, *others: normalize(F.relu(normalize(x, *others)), *others), IMAGES, *COLUMN, *RUNNING),
    'batch_normalization/no statistics': case(F.batch_normalization, feature(5, 4), *COLUMN),
    'batch_normalization/over other axes': case(
        lambda *args: normalize(*args, axis=(0, 1), decay=0.5), feature(3, 2, 4), *COLUMN, *RUNNING),
    'batch_renormalization': case(renormalize, IMAGES, *COLUMN, *RUNNING),
    'batch_renormalization/no update': case(
        lambda *args: renormalize(*args, update=False), feature(5, 4), *COLUMN, *RUNNING),
    'decorrelated_batch_normalization': case(
        decorrelate, feature(6, 4, 2, 2), statistic(2, 2), statistic(2, 2, 2, value=0.5)),
    'fixed_batch_normalization': case(F.fixed_batch_normalization, IMAGES, *COLUMN, *FIXED),
    'fixed_batch_normalization/by feature maps': case(
        F.fixed_batch_normalization, IMAGES, *COLUMN, feature(4), feature(4, low=0.5)),
    'fixed_batch_renormalization': case(F.fixed_batch_renormalization, IMAGES, *COLUMN, *FIXED, quiet=(
        ('fixed_batch_renormalization is deprecated', 'it has a newer name'),)),
    'fixed_decorrelated_batch_normalization': case(
        lambda x: F.fixed_decorrelated_batch_normalization(x, *WHITENING, groups=2), feature(6, 4, 2, 2)),
    'group_normalization': case(lambda x, *args: F.group_normalization(x, 2, *args), IMAGES, *COLUMN),
    'layer_normalization': case(F.layer_normalization, feature(3, 4), *COLUMN),
    'local_response_normalization': case(
        lambda x: F.local_response_normalization(x, n=3, alpha=0.5), feature(2, 6, 3, 2)),
    'normalize': case(F.normalize, feature(3, 4)),
    'normalize/over images': case(lambda x: F.normalize(x, axis=(1, 2)), feature(3, 4, 2)),
}
