"""The progress bar of a search."""

from __future__ import annotations

import threading

import tqdm


class Bar(tqdm.tqdm):  # type: ignore[misc]  # it has no types
    """One that starts no thread: tqdm's monitor would outlive the search (P9), and its allocations would be metered."""

    monitor_interval = 0


Bar.set_lock(threading.RLock())  # tqdm's own would leave a semaphore, in shared memory, for other processes
