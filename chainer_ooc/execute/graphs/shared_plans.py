"""The plans that a session's ranks have in common: whose decision is followed, and what this rank offers the others.

A plan that differs from rank to rank has all of them wait for the slowest. So where graphs and settings are equal the
decision of one rank is laid out by each: on its own recording, beside what stands here, within its own budget. A
decision that does not hold here is not followed, and the rank has a plan of its own, as before it was told of any::

    orders_for  --plan made here-->  offer  --messages-->  told, iterations later  --laid out here-->  orders_for

Left out: estimates, which no other rank need have; plans from a file, which each rank has read by itself.
"""

from __future__ import annotations

from chainer_ooc.config import Settings
from chainer_ooc.plans.plan import Plan
from chainer_ooc.plans.saved import recorded
from chainer_ooc.problem import Standing
from chainer_ooc.ranks.agreement import Agreement, Offer, agreement
from chainer_ooc.trace import Trace
from chainer_ooc.version import __version__


class SharedPlans:
    """What a session has to do with the agreement of its ranks."""

    def __init__(self, agreement: Agreement):
        self._agreement = agreement

    def told(self, trace: Trace, settings: Settings) -> Offer | None:
        """The offer that holds for all ranks, the same object until there is another; None where none was told of."""
        return self._agreement.told(_key(trace, settings))

    def is_own(self, told: Offer) -> bool:
        """Whether it is this rank's, which plans anew when its times say so."""
        return told.rank == self._agreement.rank

    def offer(self, trace: Trace, settings: Settings, plan: Plan, standing: Standing) -> None:
        """Offers a plan that was made here."""
        standing_bytes = max(standing.forward_bytes, standing.backward_bytes)
        self._agreement.offer(_key(trace, settings), plan.budget_bytes - standing_bytes, plan.decision())


def current() -> SharedPlans | None:
    """Those of this process, which takes what others have sent; None where there are no others."""
    found = agreement()
    if found is None:
        return None
    found.look()
    return SharedPlans(found)


def _key(trace: Trace, settings: Settings) -> str:
    """What ranks have to have in common."""
    return repr((__version__, trace.whole_fingerprint, trace.device, *recorded(trace)[1:], settings.policy,
                 settings.budget_bytes, settings.min_bytes))
