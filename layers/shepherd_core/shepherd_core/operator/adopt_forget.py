"""
What can be done about a machine on which the sides disagree: adopt it, or forget it. ``releases`` has the rest.

Whether that may be is decided by ``judge``, a pure function of two looks; a dry
run stops there. ``do`` does it for one machine, in a session that holds the
provider's lock. Each may run twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from shepherd_core.bmdb.listings import departures, provisioning
from shepherd_core.domain.machine import ProviderId
from shepherd_core.rules.drift import DriftKind, alive

if TYPE_CHECKING:
    from uuid import UUID

    from shepherd_core.bmdb.listings.departures import Order
    from shepherd_core.bmdb.session import Session
    from shepherd_core.domain.clock import Deadline
    from shepherd_core.domain.provider import Provider
    from shepherd_core.rules.drift import Comparison, Drift

_RECENT = "nothing is missing there: the provider may not list it yet"


class Result(StrEnum):
    """What becomes of a machine that was named."""

    READY = "ready"
    """It may be done."""
    BEGUN = "begun"
    """The provider accepted it, and shows no effect yet."""
    DONE = "done"
    """It is so, by now or since before."""
    REFUSED = "refused"
    """It may not be done, or failed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What becomes of one machine."""

    result: Result
    words: str
    provider_id: ProviderId | None = None
    machine_id: UUID | None = None

    def now(self, result: Result, words: str) -> Outcome:
        """Return what has become of it since."""
        return replace(self, result=result, words=words)

    @property
    def told(self) -> dict[str, object]:
        """Return it for people and programs."""
        return {
            "provider_id": self.provider_id,
            "machine_id": self.machine_id,
            "result": self.result,
            "words": self.words,
        }


class OperatorAction(Protocol):
    """One thing that is to be done about some machines."""

    def judge(self, first: Comparison, second: Comparison) -> list[Outcome]:
        """Return for each machine, in the order in which they were named, whether it may be done."""

    def do(
        self, session: Session, provider: Provider, verdict: Outcome, look: Comparison, deadline: Deadline
    ) -> Outcome:
        """
        Do it for a machine that is ready by the *look* taken just now.

        Raises:
            WorkConflict, ProviderError, TimeLimitExceeded: it was not done, or not certainly; ask again.
            SessionExpired, BmdbError: likewise, and nothing more can be done in this session.
        """

    def finish(self, session: Session, provider: Provider, verdict: Outcome, look: Comparison) -> Outcome:
        """Bring to its end what was begun, if a later *look* shows the effect."""


class OnePhase:
    """What ends with ``do``."""

    def finish(self, session: Session, provider: Provider, verdict: Outcome, look: Comparison) -> Outcome:
        """See ``OperatorAction``."""
        del session, provider, look
        return verdict


@dataclass(frozen=True, slots=True)
class Adopt(OnePhase):
    """Take machines of one class, in use at the provider, into the BMDB."""

    provider_ids: tuple[ProviderId, ...]
    kind: DriftKind
    max_machines: int
    """0: no limit."""

    def judge(self, first: Comparison, second: Comparison) -> list[Outcome]:
        """See ``OperatorAction``."""
        managed = len(second.ledger.provided) + len(second.ledger.intents)
        known = {provided.provider_id: provided.machine_id for provided in second.ledger.provided}
        begun = {intent.machine_id for intent in second.ledger.intents}
        verdicts: list[Outcome] = []
        for name in self.provider_ids:
            then, now = first.differences.get(name), second.differences.get(name)
            if name in known:
                verdicts.append(Outcome(Result.DONE, "is in the BMDB", name, known[name]))
                continue
            if now is None or now != then:
                words = _disagreement(then, now) if then or now else "it is no difference"
                verdicts.append(Outcome(Result.REFUSED, words, name))
                continue
            # Of several with one token, the first is the creation that was begun, which counts already.
            token = second.used[name].token
            intended = token if token in begun else None
            if now.kind is not self.kind:
                words = f"it is {now.kind}, and {self.kind} machines were to be adopted: {now.words}"
                verdicts.append(Outcome(Result.REFUSED, words, name))
            elif intended is None and self.max_machines and managed >= self.max_machines:
                verdicts.append(Outcome(Result.REFUSED, f"{managed} machines are managed, which is the limit", name))
            else:
                managed += intended is None
                begun -= {token}
                verdicts.append(Outcome(Result.READY, now.words, name, intended))
        return verdicts

    def do(
        self, session: Session, provider: Provider, verdict: Outcome, look: Comparison, deadline: Deadline
    ) -> Outcome:
        """See ``OperatorAction``."""
        del deadline
        machine = look.used[verdict.provider_id or ProviderId("")]
        machine_id = provisioning.take_in(session, provider.name, machine, verdict.machine_id, heed_pauses=False)
        return replace(verdict, result=Result.DONE, words="adopted", machine_id=machine_id)


@dataclass(frozen=True, slots=True)
class Forget(OnePhase):
    """Take machines out of the BMDB's care that the provider has no more."""

    machine_ids: tuple[UUID, ...]
    order: Order

    def judge(self, first: Comparison, second: Comparison) -> list[Outcome]:
        """See ``OperatorAction``."""
        return [self._judge(machine_id, first, second) for machine_id in self.machine_ids]

    def _judge(self, machine_id: UUID, first: Comparison, second: Comparison) -> Outcome:
        provided = second.machine(machine_id)
        if provided is None:
            return absent(machine_id, second)
        name = provided.provider_id
        verdict = Outcome(Result.REFUSED, "", name, machine_id)
        then, now = first.differences.get(name), second.differences.get(name)
        if first.has(name) or second.has(name):
            return verdict.now(Result.REFUSED, "the provider has it in use; release gives it back")
        if then != now or now is None:
            return verdict.now(Result.REFUSED, _disagreement(then, now) if then or now else _RECENT)
        ready = now.kind in (DriftKind.VANISHED, DriftKind.STRANDED) and not alive(provided)
        return verdict.now(Result.READY if ready else Result.REFUSED, now.words)

    def do(
        self, session: Session, provider: Provider, verdict: Outcome, look: Comparison, deadline: Deadline
    ) -> Outcome:
        """See ``OperatorAction``."""
        del look, deadline
        departures.forget(session, provider.name, machine_id_of(verdict), self.order)
        return verdict.now(Result.DONE, "forgotten")


def _disagreement(first: Drift | None, second: Drift | None) -> str:
    then, now = (each.kind.value if each else "no difference" for each in (first, second))
    return f"the two looks do not agree: {then}, then {now}"


def absent(machine_id: UUID, look: Comparison, *, gone: Result = Result.DONE) -> Outcome:
    """Return what is to be said of a machine that is none of the provider's, where *gone* is for one that left."""
    for departed in look.ledger.departed:
        if departed.machine_id == machine_id:
            words = "released" if departed.released else "forgotten"
            return Outcome(gone, words, departed.provider_id, machine_id)
    begun = any(intent.machine_id == machine_id for intent in look.ledger.intents)
    words = "its creation is under way; the Provisioner ends it" if begun else "it is none of this provider's machines"
    return Outcome(Result.REFUSED, words, None, machine_id)


def machine_id_of(verdict: Outcome) -> UUID:
    """Return the machine of a verdict about one that is in the BMDB."""
    assert verdict.machine_id is not None
    return verdict.machine_id
