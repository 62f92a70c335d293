"""Cases of chainer.functions.activation and noise."""
import chainer.functions as F

from support.conformance.conformance_cases import case, feature, weight

CASES = {
    'clipped_relu': case(lambda x: F.clipped_relu(x, 0.5), feature(4, 5)),
    'crelu': case(F.crelu, feature(4, 5)),
    'elu': case(F.elu, feature(4, 5)),
    'hard_sigmoid': case(F.hard_sigmoid, feature(4, 5, low=-4, high=4)),
    'leaky_relu': case(F.leaky_relu, feature(4, 5)),
    'leaky_relu/negative slope': case(lambda x: F.leaky_relu(x, -0.3), feature(4, 5)),
    'log_softmax': case(F.log_softmax, feature(4, 5)),
    'log_softmax/axis 0': case(lambda x: F.log_softmax(x, axis=0), feature(4, 5)),
    'maxout': case(lambda x: F.maxout(x, 3), feature(4, 6)),
    'prelu': case(F.prelu, feature(4, 5), weight(5)),
    'prelu/one slope': case(F.prelu, feature(4, 5), weight()),
    'relu': case(F.relu, feature(4, 5)),
    'relu6': case(F.relu6, feature(4, 5, low=-10, high=10)),
    'rrelu': case(F.rrelu, feature(4, 5)),
    'rrelu/slopes returned': case(lambda x: F.rrelu(x, return_r=True), feature(4, 5)),
    'selu': case(F.selu, feature(4, 5)),
    'sigmoid': case(F.sigmoid, feature(4, 5)),
    'softmax': case(F.softmax, feature(4, 5)),
    'softmax/of images': case(F.softmax, feature(2, 3, 4, 2)),
    'softplus': case(F.softplus, feature(4, 5)),
    'swish': case(F.swish, feature(4, 5), weight(5)),
    'tanh': case(F.tanh, feature(4, 5)),

    'dropout': case(F.dropout, feature(4, 5)),
    'dropout/mask returned': case(lambda x: F.dropout(x, 0.3, return_mask=True), feature(4, 5)),
    'dropout/twice': case(lambda x: F.dropout(F.tanh(F.dropout(x))), feature(4, 5)),
    'gaussian': case(F.gaussian, feature(4, 5), feature(4, 5)),
    'gaussian/noise returned': case(lambda mean, var: F.gaussian(mean, var, return_eps=True), feature(3), feature(3)),
    'gumbel_softmax': case(F.gumbel_softmax, feature(4, 5)),
    'simplified_dropconnect': case(F.simplified_dropconnect, feature(4, 5), weight(3, 5), weight(3)),
    'simplified_dropconnect/one mask': case(
        lambda x, w: F.simplified_dropconnect(x, w, use_batchwise_mask=False), feature(4, 5), weight(3, 5)),
    'zoneout': case(F.zoneout, feature(4, 5), feature(4, 5)),
}
