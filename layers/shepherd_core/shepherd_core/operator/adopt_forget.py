"""
The operator actions adopt, rebind and forget, which repair drift; ``operator.release`` has the others.

``evaluate``, a pure function of a comparison, decides which machines may be
repaired; a dry run stops there. ``apply`` repairs one machine, in a session
that holds the provider's lock. Each may run twice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from shepherd_core.bmdb.listings import decommissioning, provisioning
from shepherd_core.domain.machine import Availability, ProviderId
from shepherd_core.rules.drift import DriftKind, alive

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from shepherd_core.bmdb.listings.decommissioning import RemovalRequest
    from shepherd_core.bmdb.session import Session
    from shepherd_core.domain.clock import Deadline
    from shepherd_core.domain.provider import Provider
    from shepherd_core.domain.records import Provided
    from shepherd_core.rules.drift import Comparison


class ActionResult(StrEnum):
    """The result of an action for one machine."""

    READY = "ready"
    """The action is allowed."""
    BEGUN = "begun"
    """The provider accepted the action; its listing shows no effect yet."""
    DONE = "done"
    """The action is complete, by this command or an earlier one."""
    REFUSED = "refused"
    """The action is not allowed, or failed."""


@dataclass(frozen=True, slots=True)
class ActionOutcome:
    """The outcome of an action for one machine."""

    result: ActionResult
    text: str
    """Why; human-readable."""
    provider_id: ProviderId | None = None
    machine_id: UUID | None = None

    def with_result(self, result: ActionResult, text: str) -> ActionOutcome:
        """Return the same machine's outcome with another result."""
        return replace(self, result=result, text=text)

    @property
    def record(self) -> dict[str, object]:
        """The outcome as a record for logs and JSON output."""
        return {
            "provider_id": self.provider_id,
            "machine_id": self.machine_id,
            "result": self.result,
            "text": self.text,
        }


class OperatorAction(ABC):
    """One action of an operator on some machines."""

    @abstractmethod
    def evaluate(self, comparison: Comparison) -> list[ActionOutcome]:
        """Return for each machine, in the order of the command, whether the action is allowed."""

    @abstractmethod
    def apply(
        self, session: Session, provider: Provider, outcome: ActionOutcome, comparison: Comparison, deadline: Deadline
    ) -> ActionOutcome:
        """
        Apply the action to a machine that is ready by the *comparison* made just now.

        Raises:
            WorkConflict, ProviderError, TimeLimitExceeded: it was not applied, or that is unknown; run it again.
            SessionExpired, BmdbError: likewise, and the session cannot be used any more.
        """

    def finish(
        self, session: Session, provider: Provider, outcome: ActionOutcome, comparison: Comparison
    ) -> ActionOutcome:
        """Complete a started action if a later *comparison* shows its effect; most are complete after ``apply``."""
        del session, provider, comparison
        return outcome


@dataclass(frozen=True, slots=True)
class Removal(OperatorAction):
    """An action on machines of the BMDB that removes them, or cancels that."""

    machine_ids: tuple[UUID, ...]
    order: RemovalRequest

    def evaluate(self, comparison: Comparison) -> list[ActionOutcome]:
        """See ``OperatorAction``."""
        return [self._evaluate(machine_id, comparison) for machine_id in self.machine_ids]

    @abstractmethod
    def _evaluate(self, machine_id: UUID, comparison: Comparison) -> ActionOutcome:
        """Return whether the action on this machine is allowed."""


@dataclass(frozen=True, slots=True)
class Adopt(OperatorAction):
    """Take machines of one class, in use at the provider, into the BMDB."""

    provider_ids: tuple[ProviderId, ...]
    kind: DriftKind
    max_machines: int
    """0: no limit."""
    owner: str

    def evaluate(self, comparison: Comparison) -> list[ActionOutcome]:
        """See ``OperatorAction``."""
        managed = len(comparison.ledger.provided) + len(comparison.ledger.intents)
        known = {provided.provider_id: provided.machine_id for provided in comparison.ledger.provided}
        begun = {intent.machine_id for intent in comparison.ledger.intents}
        old_ids = {new: old for old, new in comparison.moved.items()}
        outcomes: list[ActionOutcome] = []
        for name in self.provider_ids:
            drift = comparison.drift.get(name)
            if name in known:
                outcomes.append(ActionOutcome(ActionResult.DONE, "is in the BMDB", name, known[name]))
                continue
            if drift is None:
                outcomes.append(ActionOutcome(ActionResult.REFUSED, "it has not drifted", name))
                continue
            # Of several machines with one token, the first is the interrupted creation, which *managed* counts already.
            token = comparison.used[name].token
            intended = token if token in begun else None
            if drift.kind is not self.kind:
                text = f"it is {drift.kind}, and {self.kind} machines were to be adopted: {drift.text}"
                outcomes.append(ActionOutcome(ActionResult.REFUSED, text, name))
            elif name in old_ids:
                text = f"it has the hardware, host key or address of {old_ids[name]}: rebind or forget that first"
                outcomes.append(ActionOutcome(ActionResult.REFUSED, text, name))
            elif intended is None and self.max_machines and managed >= self.max_machines:
                outcomes.append(
                    ActionOutcome(ActionResult.REFUSED, f"the limit of {self.max_machines} machines is reached", name)
                )
            else:
                managed += intended is None
                begun -= {token}
                outcomes.append(ActionOutcome(ActionResult.READY, drift.text, name, intended))
        return outcomes

    def apply(
        self, session: Session, provider: Provider, outcome: ActionOutcome, comparison: Comparison, deadline: Deadline
    ) -> ActionOutcome:
        """See ``OperatorAction``."""
        del deadline
        machine = comparison.used[outcome.provider_id or ProviderId("")]
        machine_id = provisioning.adopt(session, provider.name, machine, outcome.machine_id, operator=self.owner)
        return replace(outcome, result=ActionResult.DONE, text="adopted", machine_id=machine_id)


@dataclass(frozen=True, slots=True)
class Rebind(OperatorAction):
    """Record that a machine of the BMDB has another id at the provider now."""

    machine_id: UUID
    provider_id: ProviderId
    """The new one."""
    owner: str

    def evaluate(self, comparison: Comparison) -> list[ActionOutcome]:
        """See ``OperatorAction``."""
        provided = comparison.machine(self.machine_id)
        if provided is None:
            return [not_managed(self.machine_id, comparison, gone=ActionResult.REFUSED)]
        old, new = provided.provider_id, self.provider_id
        outcome = ActionOutcome(ActionResult.REFUSED, "", new, self.machine_id)
        if old == new:
            return [outcome.with_result(ActionResult.DONE, "has this id")]
        if objection := next(self._objections(provided, comparison), None):
            return [outcome.with_result(ActionResult.REFUSED, objection)]
        same = "has its hardware, host key or address" if comparison.moved.get(old) == new else "shows nothing of it"
        return [outcome.with_result(ActionResult.READY, f"machine {self.machine_id} was {old}; {new} {same}")]

    def _objections(self, provided: Provided, comparison: Comparison) -> Iterator[str]:
        """Yield what speaks against the new id."""
        ledger, listed = comparison.ledger, comparison.listed(self.provider_id)
        if other := ledger.known.get(self.provider_id):
            yield f"this is machine {other.machine_id}"
        if comparison.has(provided.provider_id):
            yield f"the provider still has {provided.provider_id} in use"
        if provided.asked_seconds is not None:
            yield f"the release of {provided.provider_id} was requested"
        if listed is None or listed.availability is Availability.KNOWN_UNUSED:
            yield "the provider does not list such a machine"
        elif listed.token in {each.machine_id for each in ledger.intents} | {
            each.machine_id for each in ledger.provided if each != provided
        }:
            yield f"it was created as machine {listed.token}"

    def apply(
        self, session: Session, provider: Provider, outcome: ActionOutcome, comparison: Comparison, deadline: Deadline
    ) -> ActionOutcome:
        """See ``OperatorAction``."""
        del deadline
        provided, listed = comparison.machine(self.machine_id), comparison.listed(self.provider_id)
        assert provided is not None
        assert listed is not None
        reason = f"{self.owner}: {provided.provider_id} is now {listed.provider_id}"
        provisioning.rebind(session, provider.name, self.machine_id, listed, reason)
        return outcome.with_result(ActionResult.DONE, f"was {provided.provider_id}")


@dataclass(frozen=True, slots=True)
class Forget(Removal):
    """Remove machines from the BMDB that the provider does not have any more."""

    def _evaluate(self, machine_id: UUID, comparison: Comparison) -> ActionOutcome:
        provided = comparison.machine(machine_id)
        if provided is None:
            return not_managed(machine_id, comparison)
        name = provided.provider_id
        outcome = ActionOutcome(ActionResult.REFUSED, "", name, machine_id)
        if comparison.has(name):
            return outcome.with_result(ActionResult.REFUSED, "the provider has it in use; release gives it back")
        drift = comparison.drift.get(name)
        if drift is None:
            return outcome.with_result(ActionResult.REFUSED, "it is not missing yet: the provider may list it later")
        ready = drift.kind in (DriftKind.VANISHED, DriftKind.STRANDED) and not alive(provided)
        return outcome.with_result(ActionResult.READY if ready else ActionResult.REFUSED, drift.text)

    def apply(
        self, session: Session, provider: Provider, outcome: ActionOutcome, comparison: Comparison, deadline: Deadline
    ) -> ActionOutcome:
        """See ``OperatorAction``."""
        del comparison, deadline
        decommissioning.forget(session, provider.name, machine_id_of(outcome), self.order)
        return outcome.with_result(ActionResult.DONE, "forgotten")


def not_managed(machine_id: UUID, comparison: Comparison, *, gone: ActionResult = ActionResult.DONE) -> ActionOutcome:
    """Return the outcome for a machine without a record; *gone* is the result if the machine was removed."""
    for tombstone in comparison.ledger.tombstones:
        if tombstone.machine_id == machine_id:
            text = "released" if tombstone.released else "forgotten"
            return ActionOutcome(gone, text, tombstone.provider_id, machine_id)
    begun = any(intent.machine_id == machine_id for intent in comparison.ledger.intents)
    text = (
        "its creation is in progress; the Provisioner completes it" if begun else "it is not a machine of this provider"
    )
    return ActionOutcome(ActionResult.REFUSED, text, None, machine_id)


def machine_id_of(outcome: ActionOutcome) -> UUID:
    """Return the machine id of an outcome for a machine that is in the BMDB."""
    assert outcome.machine_id is not None
    return outcome.machine_id
