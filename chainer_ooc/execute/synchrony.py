"""Waiting for copies at the end of each call and step, for policies that synchronise there.

    compute    [ call l ]            [ call l+1 ]        [step l+1]..[step l ]
    copy-out             [ map of l ]                                                . waits for the swap-in
    copy-in                                              [ map of l ]

What a call lets go of is gone before the next call begins. A swap-in that begins with a step is waited for when that
step has ended, whichever later step reads the map.

Source: OOC-Paleo 2.1 and 3.4 (vDNN). What differs: there a layer's swap-out runs beside the layer itself, which only
reads the map; here no copy begins before the map's last use in forward has ended.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from chainer_ooc.execute.residency import Residency
from chainer_ooc.execute.storage import State, Storage


def wait_for_copies(residency: Residency, maps: Iterable[weakref.ref[Storage]]) -> None:
    """Waits until what is leaving has left, and what is coming has come.

    Args:
        residency: where it happens.
        maps: those whose swap-ins are waited for.

    Raises:
        SpillError: a swap-out failed; that map is resident.
    """
    residency.settle()
    for ref in maps:
        storage = ref()
        if storage is not None and storage.state is State.ARRIVING:
            residency.fetch(storage, exposed=False)
