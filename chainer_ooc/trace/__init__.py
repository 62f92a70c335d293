"""What one iteration did, as frozen values: the only thing that planning knows of a program."""

from chainer_ooc.trace.model import ArrayForm, Call, FeatureMap, MemoryEvent, Step, Trace

__all__ = ['ArrayForm', 'Call', 'FeatureMap', 'MemoryEvent', 'Step', 'Trace']
