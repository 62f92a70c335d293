"""Devices that do not keep what CUDA promises: each leaves one wait out."""
from support.fake_driver import FakeDriver


class NeverWaits(FakeDriver):
    def wait_event(self, stream, event):
        pass


class WaitsIf(FakeDriver):
    """Has a stream wait for an event of another only where `holds` says so."""

    def wait_event(self, stream, event):
        if self.holds(stream.name, event.operation.stream.name):
            super().wait_event(stream, event)


class ComputeGoesOn(WaitsIf):
    """Swap-ins that are waited for are not waited for."""

    def holds(self, stream, other):
        return stream != 'compute'


class CopiesBeforeKernels(WaitsIf):
    """Copies do not wait for what compute was given before."""

    def holds(self, stream, other):
        return other != 'compute'


class OutBeforeKernels(WaitsIf):
    def holds(self, stream, other):
        return (stream, other) != ('stream 0', 'compute')


class InBeforeKernels(WaitsIf):
    def holds(self, stream, other):
        return (stream, other) != ('stream 1', 'compute')


class InBeforeItsOut(WaitsIf):
    """Swap-ins do not wait for their own swap-outs (C4)."""

    def holds(self, stream, other):
        return (stream, other) != ('stream 1', 'stream 0')


class BlocksUsedEarly(WaitsIf):
    """A swap-out does not wait for the swap-in that still reads its block."""

    def holds(self, stream, other):
        return (stream, other) != ('stream 0', 'stream 1')


class HostGoesOn(FakeDriver):
    """The host does not wait: sources are freed early, blocks unpinned in use, staging written before it is filled."""

    def synchronize(self, event):
        pass


class AlwaysPassed(FakeDriver):
    def passed(self, event):
        return True


class EndBeforeCopy(FakeDriver):
    """The event after a copy is the one before it."""

    def __init__(self, *args, **device):
        super().__init__(*args, **device)
        self._before = {}

    def record(self, stream, timed=False):
        if timed and stream.name in self._before:
            return self._before.pop(stream.name)
        event = super().record(stream, timed)
        if timed:
            self._before[stream.name] = event
        return event
