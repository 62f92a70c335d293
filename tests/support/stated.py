"""All figures that the papers state."""
from chainer_ooc.papers import reported
from chainer_ooc.papers.comparison import Reported


def all_stated():
    """Every figure of `reported`."""
    return tuple(each for name, value in vars(reported).items() if name.isupper() for each in _figures(value))


def _figures(value):
    if isinstance(value, Reported):
        yield value
    elif isinstance(value, dict):
        yield from _figures(tuple(value.values()))
    elif isinstance(value, tuple):
        for each in value:
            yield from _figures(each)
