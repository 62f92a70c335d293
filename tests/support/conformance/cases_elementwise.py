"""Cases of chainer.functions.math that look at one element at a time."""
import chainer.functions as F
import numpy as np

from support.conformance.conformance_cases import case, feature

#: Where each is defined and smooth: anywhere in [-1, 1] if not said otherwise.
RANGES = {
    'absolute': {}, 'arccos': {'low': -0.9, 'high': 0.9}, 'arcsin': {'low': -0.9, 'high': 0.9}, 'arctan': {},
    'arctanh': {'low': -0.9, 'high': 0.9}, 'cos': {}, 'cosh': {}, 'digamma': {'low': 0.5, 'high': 3}, 'erf': {},
    'erfc': {}, 'erfcinv': {'low': 0.1, 'high': 1.9}, 'erfcx': {}, 'erfinv': {'low': -0.9, 'high': 0.9}, 'exp': {},
    'expm1': {}, 'lgamma': {'low': 0.5, 'high': 3}, 'log': {'low': 0.1}, 'log10': {'low': 0.1}, 'log1p': {'low': -0.9},
    'log2': {'low': 0.1}, 'log_ndtr': {}, 'ndtr': {}, 'ndtri': {'low': 0.1, 'high': 0.9}, 'rsqrt': {'low': 0.1},
    'sin': {}, 'sinh': {}, 'sqrt': {'low': 0.1}, 'square': {}, 'tan': {}}
STEPS = ('ceil', 'fix', 'floor', 'sign')
PAIR = (feature(3, 4), feature(3, 4))

CASES = {
    **{name: case(getattr(F, name), feature(3, 4, **limits)) for name, limits in RANGES.items()},
    **{name: case(getattr(F, name), feature(3, 4, low=-3, high=3), forward_only=True) for name in STEPS},
    'add': case(F.add, *PAIR),
    'add/of three': case(F.add, *PAIR, feature(3, 4)),
    'add/of one twice': case(lambda x: F.add(x, x), feature(3, 4)),
    'arctan2': case(F.arctan2, *PAIR),
    'clip': case(lambda x: F.clip(x, -0.5, 0.4), feature(3, 4)),
    'fmod': case(F.fmod, feature(3, 4, low=2, high=5), feature(3, 4, low=1, high=2)),
    'maximum': case(F.maximum, *PAIR),
    'maximum/of broadcast parts': case(F.maximum, feature(3, 1), feature(4)),
    'minimum': case(F.minimum, *PAIR),
    'polygamma': case(lambda x: F.polygamma(np.ones((3, 4), np.int32), x), feature(3, 4, low=0.5, high=3)),
    'zeta': case(lambda q: F.zeta(np.full((3, 4), 2.5, np.float32), q), feature(3, 4, low=1, high=3)),
}
