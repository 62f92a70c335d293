"""What the tests of oneDNN share; chainer_ooc comes before them, as they import chainer."""
import pytest

from chainer_ooc.kernels.onednn import library

needs_library = pytest.mark.skipif(library.load() is None, reason='oneDNN is not installed (extra cpu)')
AUTO, NEVER = {'use_ideep': 'auto'}, {'use_ideep': 'never'}
