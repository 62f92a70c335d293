"""Cases of chainer.functions.rnn and util: functions of many calls and many outputs."""
from dataclasses import replace

import chainer.functions as F

from support.conformance.conformance_cases import case, feature, weight

BATCH, IN, OUT, LAYERS = 2, 2, 3, 2
LENGTHS = (2, 1)


def n_step(call, products, *, both_ways=False, cell=False, **attributes):
    """A stacked network over sequences of several lengths; of a layer's matrices `products` multiply its input."""
    ways = 2 if both_ways else 1
    states = [feature(LAYERS * ways, BATCH, OUT) for _ in range(2 if cell else 1)]
    weights = []
    for layer in range(LAYERS):
        width = IN if layer == 0 else OUT * ways
        weights += ([weight(OUT, width)] * products + [weight(OUT, OUT)] * products) * ways
    biases = [weight(OUT)] * len(weights)
    sequences = [feature(length, IN) for length in LENGTHS]

    def run(*args):
        given = list(args)
        state, ws, bs, xs = (_take(given, len(each)) for each in (states, weights, biases, sequences))
        size = 2 * products
        return call(LAYERS, 0.4, *state, _parts(ws, size), _parts(bs, size), xs, **attributes)
    return case(run, *states, *weights, *biases, *sequences)


def _take(given, count):
    taken, given[:] = given[:count], given[count:]
    return taken


def _parts(values, size):
    return [values[start:start + size] for start in range(0, len(values), size)]


CASES = {
    'lstm': case(F.lstm, feature(3, 2), feature(3, 8)),
    'lstm/state alone': case(lambda c, x: F.lstm(c, x)[0], feature(3, 2), feature(3, 8)),
    'lstm/output alone': case(lambda c, x: F.lstm(c, x)[1], feature(3, 2), feature(3, 8)),
    'lstm/smaller batch': case(F.lstm, feature(3, 2), feature(2, 8)),
    'lstm/in a loop': case(
        lambda c, x, y: F.lstm(F.lstm(c, x)[0], F.tanh(y)), feature(3, 2),
        feature(3, 8), feature(3, 8)),
    'n_step_bigru': n_step(F.n_step_bigru, 3, both_ways=True),
    'n_step_bilstm': n_step(F.n_step_bilstm, 4, both_ways=True, cell=True),
    'n_step_birnn': n_step(F.n_step_birnn, 1, both_ways=True),
    'n_step_gru': n_step(F.n_step_gru, 3),
    'n_step_lstm': n_step(F.n_step_lstm, 4, cell=True),
    'n_step_rnn': n_step(F.n_step_rnn, 1),
    'n_step_rnn/relu': replace(n_step(F.n_step_rnn, 1, activation='relu'), flat=True),
    'slstm': case(F.slstm, feature(3, 2), feature(3, 2), feature(3, 8), feature(3, 8)),
    'tree_lstm': case(F.tree_lstm, feature(3, 2), feature(3, 2), feature(3, 10)),

    'forget': case(lambda x, w: F.forget(lambda x, w: F.tanh(F.sin(x) * w), x, w), feature(3, 4), weight(4)),
    'forget/several outputs': case(
        lambda x, y: F.forget(lambda x, y: (F.sin(x) * y, F.exp(y)), x, y), feature(3, 4), feature(3, 4)),
    'forget/within another': case(
        lambda x: F.forget(lambda y: F.sin(F.forget(lambda z: F.exp(F.sin(z)), y)), x), feature(3, 4)),
}
