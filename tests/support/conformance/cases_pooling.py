"""Cases of chainer.functions.pooling; the indexes of a maximum are hidden on the function (P5)."""
import chainer.functions as F
import numpy as np

from support.conformance.conformance_cases import case, feature, numbers

LINE, IMAGE, VOLUME = feature(2, 3, 7), feature(2, 3, 6, 5), feature(2, 2, 4, 5, 4)
REGIONS = numbers([0, 0, 3, 4], [1, 1, 5, 5], [2, 0, 4, 3])
OWNERS = numbers(0, 1, 0, dtype=np.int32)
OLD_REGIONS = numbers([0, 0, 0, 3, 3], [1, 1, 1, 4, 4])


def upsample(x):
    y, indexes = F.max_pooling_2d(x, 2, return_indices=True)
    return F.upsampling_2d(F.tanh(y), indexes, 2, outsize=x.shape[2:])


def regions(call, **attributes):
    return case(lambda x: call(x, REGIONS, OWNERS, (2, 3), 1.0, **attributes), feature(2, 3, 7, 8))


CASES = {
    'average_pooling_1d': case(lambda x: F.average_pooling_1d(x, 3, pad=1), LINE),
    'average_pooling_2d': case(lambda x: F.average_pooling_2d(x, 3, stride=2, pad=1), IMAGE),
    'average_pooling_3d': case(lambda x: F.average_pooling_3d(x, 2), VOLUME),
    'average_pooling_nd': case(lambda x: F.average_pooling_nd(x, 2, pad=1, pad_value=None), IMAGE),
    'max_pooling_1d': case(lambda x: F.max_pooling_1d(x, 3, stride=2), LINE),
    'max_pooling_2d': case(lambda x: F.max_pooling_2d(x, 3, stride=2, pad=1), IMAGE),
    'max_pooling_2d/indexes returned': case(lambda x: F.max_pooling_2d(x, 2, return_indices=True), IMAGE),
    'max_pooling_3d': case(lambda x: F.max_pooling_3d(x, 2, cover_all=False), VOLUME),
    'max_pooling_nd': case(lambda x: F.max_pooling_nd(x, 2, stride=1, return_indices=True), IMAGE),
    'roi_average_align_2d': regions(F.roi_average_align_2d, sampling_ratio=2),
    'roi_average_pooling_2d': regions(F.roi_average_pooling_2d),
    'roi_max_align_2d': regions(F.roi_max_align_2d),
    'roi_max_pooling_2d': regions(F.roi_max_pooling_2d),
    'roi_pooling_2d': case(lambda x: F.roi_pooling_2d(x, OLD_REGIONS, 2, 2, 1.0), feature(2, 3, 6, 6)),
    'spatial_pyramid_pooling_2d': case(lambda x: F.spatial_pyramid_pooling_2d(x, 2, 'max'), IMAGE),
    'unpooling_1d': case(lambda x: F.unpooling_1d(x, 2), LINE),
    'unpooling_2d': case(lambda x: F.unpooling_2d(x, 3, stride=2, pad=1), IMAGE),
    'unpooling_3d': case(lambda x: F.unpooling_3d(x, 2, cover_all=False), VOLUME),
    'unpooling_nd': case(lambda x: F.unpooling_nd(x, 2, stride=1), IMAGE),
    'upsampling_2d': case(upsample, IMAGE),
}
