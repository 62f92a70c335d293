"""The host device: near memory is the process's private memory, far memory a spill file."""

from chainer_ooc.backends.host.backend import HostBackend

__all__ = ['HostBackend']
