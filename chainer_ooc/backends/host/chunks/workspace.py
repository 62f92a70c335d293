"""The setting under which all of this runs."""

from chainer_ooc import config


def workspace_bytes() -> int:
    """Returns chainer.config.ooc_workspace of the calling thread in bytes; the seams only come here when it is set."""
    size = config.current().workspace_bytes
    assert size is not None
    return size
