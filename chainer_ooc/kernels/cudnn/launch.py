"""The last step of a graph's ``execute`` without those before it, which take far longer than the launch.

``execute`` takes addresses, but treats each as an array to look at: in Python, at every call, it writes down the
extents and strides that the graph has for it, and then hands C++ the bare addresses in the order of their numbers
(uids). With three of them that takes twice as long as all else that a convolution's call does in Python. Its other
public form, buffers in the order of ``tensor_uids``, does the same; only objects with ``__dlpack_c_exchange_api__`` are
looked at in C++, and CuPy's arrays are none.

So a plan's first run is by ``execute``, and later ones call what that ended with. It is not public: where it is missing
or takes something else than in `SIGNATURE`, every run is by ``execute``. Either way C++ checks the number of addresses,
the scratch and the plan.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from chainer_ooc.kernels.cudnn.operations import Port

#: Of the native call, as versions 1.32 and later have it.
SIGNATURE = ('_execute_with_raw_ptrs(self, user_ptrs_array: int, n_user: int, workspace: int, handle: int, '
             'plan_index: int = -1) -> None')


class Launch:
    """Queues the plan that a graph has selected; for one thread at a time, as its handle is.

    Args:
        native: the call with `SIGNATURE`.
        index: of the plan, in the native list.
        uids: numbers of all tensors, in rising order.
        constants: addresses of those that stay, by number; each run is given the others.
    """

    def __init__(self, native: Any, index: int, uids: Sequence[int], constants: Mapping[int, int]) -> None:
        self._native = native
        self._index = index
        self._slots = {uid: slot for slot, uid in enumerate(uids) if uid not in constants}
        self._pointers = array('Q', [constants.get(uid, 0) for uid in uids])
        self._begin = self._pointers.buffer_info()[0]

    def run(self, addresses: Mapping[Port, int], workspace: int | None, handle: Any) -> None:
        """Queues the kernels on the handle's stream.

        Args:
            addresses: of all tensors but the constant ones.
            workspace: address of the scratch.
            handle: cuDNN's.

        Raises:
            RuntimeError: cuDNN refuses, or the device failed.
        """
        pointers, slots = self._pointers, self._slots
        assert len(addresses) == len(slots), 'an address of the run before would be used'
        for port, address in addresses.items():
            pointers[slots[port]] = address
        self._native(self._begin, len(pointers), workspace or 0, handle.backend_handle or 0, self._index)


def direct(graph: Any, handle: Any, uids: Sequence[int], constants: Mapping[int, int]) -> Launch | None:
    """Returns a launch of the plan that `graph` has selected, or None where only ``execute`` can do it.

    Args:
        graph: one that ``execute`` has run with these tensors.
        handle: cuDNN's.
        uids: see `Launch`.
        constants: see `Launch`.
    """
    try:
        lowered, index = graph._lowered_graph, graph._plans[graph._plan_index].cpp_index
        native, order = lowered._execute_with_raw_ptrs, lowered._get_variant_pack_uids_sorted()
        is_known = (native.__doc__ or '').strip() == SIGNATURE and graph.selected_engine is None
        numbers = index, handle.backend_handle
    except (AttributeError, IndexError, TypeError):  # another version has other names
        return None
    if is_known and list(order) == list(uids) and all(type(number) is int for number in numbers):
        return Launch(native, index, uids, constants)
    return None
