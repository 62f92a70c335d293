"""Cases of chainer.functions.connection."""
import chainer.functions as F

from support.conformance.conformance_cases import case, feature, labels, weight

CASES = {
    'bilinear': case(F.bilinear, feature(4, 3), feature(4, 2), weight(3, 2, 5), weight(3, 5), weight(2, 5), weight(5)),
    'bilinear/weight alone': case(F.bilinear, feature(4, 3), feature(4, 2), weight(3, 2, 5)),
    'convolution_1d': case(lambda *args: F.convolution_1d(*args, pad=1), feature(2, 3, 7), weight(4, 3, 3), weight(4)),
    'convolution_2d': case(
        lambda *args: F.convolution_2d(*args, pad=1), feature(2, 3, 6, 5), weight(4, 3, 3, 3), weight(4)),
    'convolution_2d/strided, no bias': case(
        lambda *args: F.convolution_2d(*args, stride=2), feature(2, 3, 6, 5), weight(4, 3, 3, 3)),
    'convolution_2d/covers all': case(
        lambda *args: F.convolution_2d(*args, stride=2, cover_all=True), feature(2, 3, 6, 5), weight(4, 3, 3, 3)),
    'convolution_2d/dilated groups': case(
        lambda *args: F.convolution_2d(*args, dilate=2, pad=2, groups=2), feature(2, 4, 6, 5), weight(4, 2, 3, 3),
        weight(4)),
    'convolution_2d/weights are a feature map': case(
        lambda *args: F.convolution_2d(*args, pad=1), feature(2, 3, 6, 5), feature(4, 3, 3, 3)),
    'convolution_3d': case(F.convolution_3d, feature(2, 2, 4, 5, 4), weight(3, 2, 2, 3, 2), weight(3)),
    'convolution_nd': case(
        lambda *args: F.convolution_nd(*args, stride=2, pad=1, groups=2), feature(2, 4, 5, 6), weight(4, 2, 3, 2),
        weight(4)),
    'deconvolution_1d': case(F.deconvolution_1d, feature(2, 3, 5), weight(3, 4, 3), weight(4)),
    'deconvolution_2d': case(
        lambda *args: F.deconvolution_2d(*args, stride=2, pad=1), feature(2, 3, 4, 3), weight(3, 4, 3, 3), weight(4)),
    'deconvolution_2d/groups of a given size': case(
        lambda *args: F.deconvolution_2d(*args, stride=2, pad=1, outsize=(8, 6), groups=2), feature(2, 4, 4, 3),
        weight(4, 2, 3, 3)),
    'deconvolution_3d': case(F.deconvolution_3d, feature(2, 2, 3, 2, 3), weight(2, 3, 2, 2, 2), weight(3)),
    'deconvolution_nd': case(
        lambda *args: F.deconvolution_nd(*args, stride=2), feature(2, 3, 4, 3), weight(3, 4, 3, 2), weight(4)),
    'deformable_convolution_2d_sampler': case(
        F.deformable_convolution_2d_sampler, feature(2, 3, 5, 6), feature(2, 8, 4, 5), weight(4, 3, 2, 2), weight(4)),
    'depthwise_convolution_2d': case(
        F.depthwise_convolution_2d, feature(2, 3, 5, 6), weight(2, 3, 3, 3), weight(6)),
    'dilated_convolution_2d': case(
        lambda *args: F.dilated_convolution_2d(*args, dilate=2, pad=1), feature(2, 3, 6, 7), weight(4, 3, 3, 3),
        weight(4)),
    'embed_id': case(lambda w, t: F.embed_id(t, F.tanh(w)), feature(7, 3), labels(7, 4, 2)),
    'embed_id/of a parameter': case(
        lambda x, w: F.embed_id(labels(7, 4), w, ignore_label=2) * x, feature(4, 3), weight(7, 3)),
    'linear': case(F.linear, feature(4, 5), weight(3, 5), weight(3)),
    'linear/no bias, of images': case(F.linear, feature(4, 2, 3), weight(3, 6)),
    'linear/of a sequence': case(
        lambda *args: F.linear(*args, n_batch_axes=2), feature(4, 2, 3), weight(5, 3), weight(5)),
    'local_convolution_2d': case(
        F.local_convolution_2d, feature(2, 3, 5, 4), weight(4, 3, 2, 3, 3, 3), weight(4, 3, 2)),
    'shift': case(F.shift, feature(2, 10, 4, 5)),
}
