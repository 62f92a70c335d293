"""Cases of chainer.functions.array: many of these outputs are views of their input (P4)."""
import chainer.functions as F
import numpy as np

from support.conformance.conformance_cases import case, feature, labels, numbers

THREE = (feature(3, 4), feature(3, 4), feature(3, 4))
LENGTHS = (feature(4, 2), feature(3, 2), feature(1, 2))
GRID = np.stack(np.meshgrid(np.linspace(-0.9, 0.9, 4), np.linspace(-0.7, 0.8, 3)))[None].repeat(2, 0).astype(np.float32)
CHOICE = np.array([[True, False, True, True], [False, False, True, False], [True, True, False, False]])



CASES = {
    'as_strided': case(lambda x: F.as_strided(x, (3, 2), (2, 1), 1), feature(12)),
    'as_strided/overlapping': case(lambda x: F.as_strided(x, (4, 3), (1, 2), 0), feature(12)),
    'broadcast': case(lambda x, y: F.broadcast(x, y), feature(3, 1), feature(1, 4)),
    'broadcast_to': case(lambda x: F.broadcast_to(x, (2, 3, 4)), feature(3, 1)),
    'cast': case(lambda x: F.cast(x, np.float64), feature(3, 4)),
    'cast/to half': case(lambda x: F.cast(x, np.float16), feature(3, 4)),
    'cast/to the same': case(lambda x: F.cast(x, np.float32), feature(3, 4)),
    'concat': case(lambda *xs: F.concat(xs), *THREE),
    'concat/of one twice': case(lambda x: F.concat((x, x), axis=0), feature(3, 4)),
    'copy': case(lambda x: F.copy(x, -1), feature(3, 4)),
    'depth2space': case(lambda x: F.depth2space(x, 2), feature(2, 8, 3, 2)),
    'diagonal': case(lambda x: F.diagonal(x, 1), feature(3, 4)),
    'dstack': case(lambda *xs: F.dstack(xs), *THREE),
    'expand_dims': case(lambda x: F.expand_dims(x, 1), feature(3, 4)),
    'flatten': case(F.flatten, feature(3, 4)),
    'flip': case(lambda x: F.flip(x, 1), feature(3, 4)),
    'fliplr': case(F.fliplr, feature(3, 4)),
    'flipud': case(F.flipud, feature(3, 4)),
    'get_item': case(lambda x: F.get_item(x, (slice(None), slice(1, None, 2))), feature(3, 6)),
    'get_item/several of one': case(lambda x: (x[0], x[1:], x[:, ::-1], x[0]), feature(3, 6)),
    'get_item/by lists': case(lambda x: F.get_item(x, ([0, 2, 0], [1, 1, 1])), feature(3, 6)),
    'get_item/by a mask': case(lambda x: F.get_item(x, CHOICE), feature(3, 4)),
    'hstack': case(lambda *xs: F.hstack(xs), *THREE),
    'im2col': case(lambda x: F.im2col(x, 3, stride=2, pad=1), feature(2, 3, 5, 6)),
    'moveaxis': case(lambda x: F.moveaxis(x, (0, 2), (1, 0)), feature(2, 3, 4)),
    'pad': case(lambda x: F.pad(x, ((1, 2), (0, 1)), 'constant', constant_values=3), feature(3, 4)),
    'pad_sequence': case(lambda *xs: F.pad_sequence(xs, padding=-1), *LENGTHS),
    'pad_sequence/to a length': case(lambda *xs: F.pad_sequence(xs, length=6), *LENGTHS),
    'permutate': case(lambda x: F.permutate(x, numbers(2, 0, 1, dtype=np.int32)), feature(3, 4)),
    'permutate/inverse': case(
        lambda x: F.permutate(x, numbers(2, 0, 3, 1, dtype=np.int32), axis=1, inv=True), feature(3, 4)),
    'repeat': case(lambda x: F.repeat(x, (1, 3, 2), axis=0), feature(3, 4)),
    'repeat/all': case(lambda x: F.repeat(x, 2), feature(3, 4)),
    'reshape': case(lambda x: F.reshape(x, (2, -1)), feature(3, 4)),
    'reshape/to the same': case(lambda x: F.reshape(x, (3, 4)), feature(3, 4)),
    'resize_images': case(lambda x: F.resize_images(x, (7, 5)), feature(2, 3, 4, 4)),
    'resize_images/nearest': case(lambda x: F.resize_images(x, (3, 6), mode='nearest'), feature(2, 3, 4, 4)),
    'resize_images/not to the corners': case(
        lambda x: F.resize_images(x, (7, 5), align_corners=False), feature(2, 3, 4, 4)),
    'rollaxis': case(lambda x: F.rollaxis(x, 2), feature(2, 3, 4)),
    'scatter_add': case(lambda x, y: F.scatter_add(x, (slice(None), 1), y), feature(3, 4), feature(3)),
    'scatter_add/several to one place': case(
        lambda x, y: F.scatter_add(x, ([0, 0, 2],), y), feature(3, 4), feature(3, 4)),
    'select_item': case(F.select_item, feature(5, 4), labels(4, 5)),
    'separate': case(lambda x: F.separate(x, axis=1), feature(3, 4)),
    'separate/one is used': case(lambda x: F.separate(x)[1], feature(3, 4), flat=True),
    'space2depth': case(lambda x: F.space2depth(x, 2), feature(2, 3, 4, 6)),
    'spatial_transformer_grid': case(lambda x: F.spatial_transformer_grid(x, (3, 4)), feature(2, 2, 3)),
    'spatial_transformer_sampler': case(F.spatial_transformer_sampler, feature(2, 3, 5, 6), feature(2, 2, 3, 4)),
    'spatial_transformer_sampler/a fixed grid': case(F.spatial_transformer_sampler, feature(2, 3, 5, 6), GRID),
    'split_axis': case(lambda x: F.split_axis(x, 3, axis=1), feature(3, 6)),
    'split_axis/at places': case(lambda x: F.split_axis(x, (1, 4), axis=1), feature(3, 6)),
    'split_axis/the second is used': case(lambda x: F.split_axis(x, 2, axis=1)[1], feature(3, 6)),
    'squeeze': case(lambda x: F.squeeze(x, 1), feature(3, 1, 4)),
    'stack': case(lambda *xs: F.stack(xs, axis=1), *THREE),
    'swapaxes': case(lambda x: F.swapaxes(x, 0, 2), feature(2, 3, 4)),
    'tile': case(lambda x: F.tile(x, (2, 1, 3)), feature(3, 4)),
    'transpose': case(F.transpose, feature(3, 4)),
    'transpose/there and back': case(
        lambda x: F.transpose(F.sin(F.transpose(x, (2, 0, 1))), (1, 2, 0)), feature(2, 3, 4)),
    'transpose_sequence': case(lambda *xs: F.transpose_sequence(xs), *LENGTHS),
    'vstack': case(lambda *xs: F.vstack(xs), *THREE),
    'where': case(lambda x, y: F.where(CHOICE, x, y), feature(3, 4), feature(3, 4)),
    'where/of broadcast parts': case(lambda x, y: F.where(CHOICE, x, y), feature(4), feature(3, 1)),
}
