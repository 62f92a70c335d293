"""The package's version, for those below ``chainer_ooc`` itself, which imports them."""

__version__ = '0.1.0.dev0'
