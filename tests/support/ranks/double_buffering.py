"""Stands for `pure_nccl` on the host: ChainerMN's double buffering, which takes no other communicator.

The exchange runs in a thread, as NCCL's kernels run on a stream of their own, and is waited for before the next one.
"""
import threading

import chainer
import mpi4py.MPI
from chainermn.communicators import naive_communicator, pure_nccl_communicator


class _Thread:
    """What a stream of CUDA's is to the optimizer.

    Attributes:
        work: the thread of the exchange that is under way, or None.
    """

    null = None

    def __init__(self, non_blocking=False):
        self.work = None

    def synchronize(self):
        if self.work is not None:
            self.work.join()
            self.work = None


_Thread.null = _Thread()


class Beside(naive_communicator.NaiveCommunicator):
    """`naive`, in a thread where it is asked for."""

    def _multi_node_mean_grad_async(self, model, zero_fill, stream):
        assert stream.work is None
        stream.work = threading.Thread(target=self.multi_node_mean_grad, args=(model, zero_fill))
        stream.work.start()


def communicator():
    """A communicator that ChainerMN's double buffering takes."""
    pure_nccl_communicator.PureNcclCommunicator = Beside
    chainer.cuda.Stream = _Thread
    return Beside(mpi4py.MPI.COMM_WORLD)
