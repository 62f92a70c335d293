"""What one iteration did, as frozen values: the only thing that planning knows of a program."""

from chainer_ooc.trace.model import Trace, fingerprint_of
from chainer_ooc.trace.rows import ArrayForm, Call, FeatureMap, Step

__all__ = ['ArrayForm', 'Call', 'FeatureMap', 'Step', 'Trace', 'fingerprint_of']
