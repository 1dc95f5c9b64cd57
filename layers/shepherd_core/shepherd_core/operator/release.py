"""
The operator actions release and cancel release.

A release is recorded before the provider is asked, and the machine is paused
from then on. When the provider has accepted and does not have the machine any
more, the machine is decommissioned: here if that happens at once, else by the
Provisioner. Until then it counts as a machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shepherd_core.bmdb.listings import decommissioning
from shepherd_core.domain.errors.provider import NotSupported, ProviderRefused
from shepherd_core.domain.machine import ProviderId
from shepherd_core.operator.adopt_forget import (
    ActionOutcome,
    ActionResult,
    Removal,
    machine_id_of,
    not_managed,
)
from shepherd_core.rules.drift import YOUNG_SECONDS, alive

if TYPE_CHECKING:
    from uuid import UUID

    from shepherd_core.bmdb.session import Session
    from shepherd_core.domain.clock import Deadline
    from shepherd_core.domain.provider import Provider
    from shepherd_core.rules.drift import Comparison

RELEASE_SECONDS = 60.0
"""How long one release at the provider may take."""


@dataclass(frozen=True, slots=True)
class Release(Removal):
    """Return machines to the provider; everything on them is lost."""

    def _evaluate(self, machine_id: UUID, comparison: Comparison) -> ActionOutcome:
        provided = comparison.machine(machine_id)
        if provided is None:
            return not_managed(machine_id, comparison)
        name = provided.provider_id
        outcome = ActionOutcome(ActionResult.REFUSED, "", name, machine_id)
        if provided.released_seconds is not None and not comparison.has(name):
            return outcome.with_result(ActionResult.BEGUN, "released")
        if not comparison.has(name) and provided.asked_seconds is None:
            return outcome.with_result(ActionResult.REFUSED, "the provider does not have it in use; forget removes it")
        if alive(provided) and not self.order.despite_heartbeat:
            text = f"its agent reported {provided.heartbeat_seconds:.0f} s ago"
            return outcome.with_result(ActionResult.REFUSED, text)
        return outcome.with_result(ActionResult.READY, "will be released")

    def apply(
        self, session: Session, provider: Provider, outcome: ActionOutcome, comparison: Comparison, deadline: Deadline
    ) -> ActionOutcome:
        """See ``OperatorAction``. The record comes first, so that the reason is on record when the machine is gone."""
        del comparison
        machine_id, name = machine_id_of(outcome), outcome.provider_id or ProviderId("")
        new = decommissioning.request_release(session, provider.name, machine_id, self.order)
        limit = deadline.within(RELEASE_SECONDS, session.seconds_left)
        try:
            limit.check()
            session.run_renewing(lambda: provider.release(name, limit))
        except (ProviderRefused, NotSupported):
            # This call did nothing, but an earlier one whose answer was lost may have.
            if new:
                decommissioning.cancel_release(session, provider.name, machine_id)
            raise
        decommissioning.accept_release(session, machine_id)
        return outcome.with_result(
            ActionResult.BEGUN, "accepted; it counts as a machine until the provider does not list it any more"
        )

    def finish(
        self, session: Session, provider: Provider, outcome: ActionOutcome, comparison: Comparison
    ) -> ActionOutcome:
        """See ``OperatorAction``. The Provisioner completes releases of machines that are still listed."""
        name = outcome.provider_id
        if outcome.result is not ActionResult.BEGUN or name is None or comparison.has(name):
            return outcome
        removed = decommissioning.remove_released(session, provider.name, machine_id_of(outcome))
        return outcome.with_result(ActionResult.DONE, "released") if removed else outcome


@dataclass(frozen=True, slots=True)
class CancelRelease(Removal):
    """Cancel the release of machines whose release was requested and did not happen."""

    def _evaluate(self, machine_id: UUID, comparison: Comparison) -> ActionOutcome:
        provided = comparison.machine(machine_id)
        if provided is None:
            return not_managed(machine_id, comparison, gone=ActionResult.REFUSED)
        outcome = ActionOutcome(ActionResult.REFUSED, "", provided.provider_id, machine_id)
        if provided.asked_seconds is None:
            return outcome.with_result(ActionResult.DONE, "its release is not requested")
        if provided.released_seconds is not None:
            return outcome.with_result(ActionResult.REFUSED, "the provider accepted its release")
        if not comparison.has(provided.provider_id):
            return outcome.with_result(ActionResult.REFUSED, "the provider does not have it in use")
        if provided.asked_seconds <= YOUNG_SECONDS:
            text = f"its release was requested {provided.asked_seconds:.0f} s ago and may still take effect"
            return outcome.with_result(ActionResult.REFUSED, text)
        return outcome.with_result(ActionResult.READY, "will be kept")

    def apply(
        self, session: Session, provider: Provider, outcome: ActionOutcome, comparison: Comparison, deadline: Deadline
    ) -> ActionOutcome:
        """See ``OperatorAction``."""
        del comparison, deadline
        decommissioning.cancel_release(session, provider.name, machine_id_of(outcome), self.order)
        return outcome.with_result(ActionResult.DONE, "kept")
