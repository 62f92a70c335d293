"""The file that ``chainer.config.ooc_plan`` names, while a session trains: whose plans are used, and where new ones go.

A graph whose plan is in the file needs no recorded iteration. The file has a plan for each workspace and oneDNN with
which it was recorded, as the program may change them. A plan that does not hold here is refused when its graph is about
to be followed; if the file cannot be written there is a warning, and training goes on.
"""

from __future__ import annotations

import os

from chainer_ooc.backends.base import Backend
from chainer_ooc.config import Settings
from chainer_ooc.errors import PlanFormatError
from chainer_ooc.execute import log
from chainer_ooc.execute.recording.recorder import versions
from chainer_ooc.plans.plan import Plan
from chainer_ooc.plans.saved import SavedPlan, Terms, check_plan, put_plan, read_plans, recorded, save_plan
from chainer_ooc.trace import Trace
from chainer_ooc.warning import warn


class SavedPlans:
    """The plans of a file, which need not be there.

    Raises:
        PlanFormatError: it is there, and is no file of plans.
    """

    def __init__(self, path: str, backend: Backend):
        self.path = path
        self._backend = backend
        self._loaded = {each.terms.recorded: each for each in read_plans(path)}  # the oldest first
        self._in_file = {key: each.plan for key, each in self._loaded.items()}
        self._taken: set[tuple[int | None, str, str]] = set()
        self._writable, self._refused = True, False
        if self._loaded:
            log.logger.info('%d plans loaded from %s', len(self._loaded), path)

    def take(self, terms: tuple[int | None, str, str]) -> list[SavedPlan]:
        """What the file had under these, as in `Terms.recorded`, the oldest first; the second time nothing."""
        if terms in self._taken:
            return []
        self._taken.add(terms)
        return [each for each in self._loaded.values() if each.terms.recorded[1:] == terms]

    def plan_for(self, trace: Trace, settings: Settings, budget_bytes: int) -> Plan | None:
        """The plan that was loaded with a trace, or None if that was from another file.

        Under a default budget, which is never twice the same, a plan holds that needs no more than `budget_bytes`,
        whatever it was made for.

        Raises:
            PlanMismatchError: it does not hold here.
        """
        saved = self._loaded.get(recorded(trace))
        if saved is None:
            return None
        if settings.budget_bytes is None and saved.plan.peak_bytes <= budget_bytes:
            budget_bytes = max(budget_bytes, saved.terms.budget_bytes)
        self._refused = True
        check_plan(saved, Terms(
            graph=trace.fingerprint, device=self._backend.name, machine=self._backend.machine(),
            **versions(settings, self._backend), policy=settings.policy, min_bytes=settings.min_bytes,
            workspace_bytes=settings.workspace_bytes, budget_bytes=budget_bytes), self.path)
        self._refused = False
        return saved.plan

    def is_deleted(self) -> bool:
        """Whether its last plan did not hold, and the file has been deleted for that."""
        return self._refused and not os.path.exists(self.path)

    def keep(self, trace: Trace, plan: Plan, min_bytes: int, metered: bool) -> None:
        """Writes a plan to the file, if it is not there yet."""
        if not self._writable or self._in_file.get(recorded(trace)) is plan:
            return
        self._in_file[recorded(trace)] = plan
        try:
            put_plan(self.path, save_plan(trace, plan, min_bytes, metered))
        except (OSError, PlanFormatError) as error:
            self._writable = False
            warn(f'the plan could not be written to {self.path}, and no other will be: {error}', RuntimeWarning)
