"""The chaos device, for tests: CUDA's rules about memory and copies in flight, without a GPU."""

from support.chaos.backend import ChaosBackend

__all__ = ['ChaosBackend']
