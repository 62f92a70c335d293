"""What `chainer_ooc.kernels.cudnn.launch` reaches behind the stand-in of `fake_cudnn`, and what it asserts of it."""
import ctypes

from chainer_ooc.kernels.cudnn.launch import SIGNATURE

#: Of the first plan in the native list, which is another than the graph's.
FIRST_NATIVE = 10


class Handle(str):
    """A handle's name, with the number that native calls know it by."""

    @property
    def backend_handle(self):
        return int(self.split()[1]) + 1000


class Lowered:
    """The native graph behind one."""

    def __init__(self, graph):
        self.graph = graph

    def _get_variant_pack_uids_sorted(self):
        return sorted(tensor.uid for tensor in self.graph.tensors)

    def _execute_with_raw_ptrs(self, user_ptrs_array, n_user, workspace, handle, plan_index=-1):
        graph, uids = self.graph, self._get_variant_pack_uids_sorted()
        assert graph.executed, 'what `execute` prepares is not there'
        assert n_user == len(uids)
        assert handle == graph.handle.backend_handle
        assert graph.suggested[plan_index - FIRST_NATIVE] is graph.engine, 'another plan than the selected one'
        pack = dict(zip(uids, (ctypes.c_uint64 * n_user).from_address(user_ptrs_array), strict=True))
        graph._queue(pack, workspace)

    _execute_with_raw_ptrs.__doc__ = SIGNATURE
