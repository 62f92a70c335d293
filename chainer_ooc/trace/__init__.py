"""What one iteration did, as frozen values: the only thing that planning knows of a program.

    rows          its calls, steps and feature maps
    model         all of them
    invariants    what holds in each, checked where one is read
    tables        their form in a file, which plans have too
    scaling       an estimate for inputs of another size
"""

from chainer_ooc.trace.model import Trace, fingerprint_of
from chainer_ooc.trace.rows import ArrayForm, Call, FeatureMap, Step

__all__ = ['ArrayForm', 'Call', 'FeatureMap', 'Step', 'Trace', 'fingerprint_of']
