"""Makes plans: one at once, and a better one in a thread of its own while training goes on.

    training | search, FIRST_SECONDS | iteration | iteration | recorded iteration | iteration under the better plan
    planner  |                       | the same search, from the beginning | rests | and to its end |

A search that ends by itself within that time has found all that it can find. Another one is begun again, with the time
limit of a problem, and without a look at what was found: so its plan does not depend on how fast the machine was just
then. On a very large graph training begins with what `swap_all.decide_at_once` decides, if that fits.

The thread runs at a lower priority, where the system has one for threads: computations of a training use all cores,
and wait for each other. It rests while an iteration is recorded, as its allocations would be measured. What it has
found is taken by who asks, so that nothing but the search itself happens in it.

Left out: a search that is half done when the program forks goes on in the parent alone.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import deque
from dataclasses import replace

from chainer_ooc.backends.base import OWN_THREADS
from chainer_ooc.backends.spill.starting import start_beside
from chainer_ooc.classify.policies import swap_all
from chainer_ooc.classify.policies.policy import Policy
from chainer_ooc.classify.search import SearchStoppedError, searching_beside
from chainer_ooc.errors import InfeasibleBudgetError
from chainer_ooc.locks import make_lock
from chainer_ooc.plans.making import make_plan, plan_within
from chainer_ooc.plans.plan import Plan
from chainer_ooc.problem import Problem

#: A training waits for so long for the search for its first plan.
FIRST_SECONDS = 0.25
#: With more positions than this, what searches begin with takes as long.
LARGE_POSITIONS = 3000
#: For so long a training waits for the thread to rest, or to end; it looks up some thousand times a second.
LONGEST_WAIT_SECONDS = 0.2
#: For so long whoever closes it waits: a solver looks up when it has solved.
LONGEST_END_SECONDS = 2.0
#: A thread that has not begun after so long has no memory to begin with.
LONGEST_START_SECONDS = 2.0
STACK_BYTES = 1 << 20
#: On a busy machine a thread of the lowest priority waits for a processor with Python's lock in its hand, and training
#: with it, for a second and more. At this one it gets a tenth of what others get.
NICER = 10


class BackgroundSearch:
    """A search in the thread.

    Attributes:
        plan: what it has found, or None.
        error: that ended it, or None.
        seconds: how long it took, from its beginning to its end.
        is_over: it has ended, or was stopped.
        is_awaited: its plan, whatever its time, is the policy's, and the one that was found at once is not.
    """

    def __init__(self, policy: Policy, problem: Problem, is_awaited: bool):
        self.is_awaited = is_awaited
        self.plan: Plan | None = None
        self.error: Exception | None = None
        self.seconds = 0.0
        self.is_over = False
        self._policy, self._problem = policy, problem

    def stop(self) -> None:
        """Has it end soon, without a plan."""
        self.is_over = True

    def run(self) -> None:
        """Searches; an error is kept for who asks."""
        began = time.monotonic()
        try:
            plan = plan_within(self._policy, self._problem)
            if not self.is_over:
                self.plan = plan
        except SearchStoppedError:
            pass
        except Exception as error:  # nobody sees it in this thread
            self.error = error
        self.seconds = time.monotonic() - began
        self.is_over = True


#: Threads of closed planners that may still allocate, which is measured with what an iteration does.
_left: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


class Planner:
    """The thread of one session, which is there while it has something to search for."""

    def __init__(self) -> None:
        self._waiting: deque[BackgroundSearch] = deque()
        self._current: BackgroundSearch | None = None
        self._lock = make_lock()
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._runs = self._rests = self._is_at_rest = self._is_stuck = self._closed = False

    def plan(self, policy: Policy, problem: Problem) -> tuple[Plan, BackgroundSearch | None]:
        """Gives a plan, and the search for a better one if that goes on.

        Raises:
            InfeasibleBudgetError: as `plan_within`.
        """
        if policy.takes_long and problem.trace.positions > LARGE_POSITIONS:
            with contextlib.suppress(InfeasibleBudgetError):  # the policy may do with less
                plan = make_plan(replace(policy, decide=swap_all.decide_at_once), problem)
                search = self._search(BackgroundSearch(policy, problem, is_awaited=True))
                if search is not None:
                    return plan, search
        began = time.monotonic()
        plan = plan_at_once(policy, problem)
        is_complete = not policy.searches or time.monotonic() - began < FIRST_SECONDS
        return plan, None if is_complete else self._search(BackgroundSearch(policy, problem, is_awaited=False))

    def _search(self, search: BackgroundSearch) -> BackgroundSearch | None:
        """Has the thread search too; None if there can be no thread."""
        with self._lock:
            self._waiting.append(search)
            if not self._runs and not self._start():
                self._waiting.clear()
                return None
        return search

    def _start(self) -> bool:
        """Starts the thread; False if there can be none, or if it once did not begin: it may still do so."""
        if self._is_stuck:
            return False
        self._runs = True
        try:
            self._is_stuck = not start_beside(self._launch, STACK_BYTES, LONGEST_START_SECONDS)
            self._runs = not self._is_stuck
        except (MemoryError, RuntimeError):
            self._runs = False
        return self._runs

    def rest(self, rests: bool) -> bool:
        """Has the thread rest, or go on; whether it does. Those of closed planners cannot: they have to be over."""
        if rests and any(each.is_alive() for each in list(_left)):
            return False
        with self._lock:
            self._rests = rests
            self._changed.notify_all()
            return not rests or self._changed.wait_for(
                lambda: self._is_at_rest or not self._runs, LONGEST_WAIT_SECONDS)

    def close(self) -> None:
        """Stops all searches, and waits for the thread to end."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._runs, LONGEST_WAIT_SECONDS)
        if (thread := self._thread) is not None:
            _left.add(thread)
            thread.join(LONGEST_END_SECONDS)

    # --- in the thread ---------------------------------------------------------------------------------------------

    def _launch(self) -> None:
        try:
            thread = threading.Thread(target=self._run, name=f'{OWN_THREADS}planner', daemon=True)
            thread.start()
            self._thread = thread
        except (MemoryError, RuntimeError):
            self._runs = False  # here too, as nobody may wait any more
            raise

    def _run(self) -> None:
        _let_others_go_first()
        with searching_beside(self._look_up):
            while self._take_next():
                assert self._current is not None
                self._current.run()

    def _take_next(self) -> bool:
        with self._lock:
            self._current = self._waiting.popleft() if self._waiting and not self._closed else None
            self._runs = self._current is not None
            self._changed.notify_all()
            return self._runs

    def _look_up(self) -> None:
        """Rests while it has to.

        Raises:
            SearchStoppedError: nobody waits for the search any more.
        """
        if self._rests:
            with self._lock:
                self._is_at_rest = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: not self._rests or self._is_stopped())
                self._is_at_rest = False
        if self._is_stopped():
            raise SearchStoppedError

    def _is_stopped(self) -> bool:
        return self._closed or (self._current is not None and self._current.is_over)


def plan_at_once(policy: Policy, problem: Problem) -> Plan:
    """The best plan that is found while a training waits for it.

    Raises:
        InfeasibleBudgetError: as `plan_within`.
    """
    return plan_within(policy, replace(problem, limit_seconds=min(FIRST_SECONDS, problem.limit_seconds)))


def _let_others_go_first() -> None:
    """Gives the calling thread a lower priority; Linux has one for each thread."""
    with contextlib.suppress(OSError):
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, min(19, os.getpriority(os.PRIO_PROCESS, thread) + NICER))
