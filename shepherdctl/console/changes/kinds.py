"""The kinds of change that the console offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shepherdctl.console.changes import plans, repairs
from shepherdctl.console.forms import FormInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shepherdctl.console.changes.plans import Asked, ChangePlan


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of change, as the console offers it."""

    name: str
    title: str
    text: str
    """What the change does, for operators."""
    plan: Callable[[Asked], ChangePlan]
    subject: str
    """The field that says what is changed."""
    fields: tuple[str, ...] = ()
    """The other fields of its form."""


KINDS = {
    kind.name: kind
    for kind in (
        Kind("pause", "Pause", "The loops claim no new work on it.", plans.pause, "machine", ("reason", "loop", "for")),
        Kind(
            "pause-fleet",
            "Pause machines",
            "Pauses a provider, a loop, both or, if neither is chosen, everything.",
            plans.pause,
            "",
            ("reason", "provider", "loop", "for"),
        ),
        Kind("resume", "Resume", "Ends a pause.", plans.resume, "pause"),
        Kind(
            "retry",
            "Retry",
            "Ends its backoffs: loops try again now.",
            plans.retry,
            "machine",
            ("reason", "loop"),
        ),
        Kind(
            "unquarantine",
            "Take out of quarantine",
            "The Initializer then starts a new agent on it.",
            plans.unquarantine,
            "machine",
            ("reason",),
        ),
        Kind(
            "adopt",
            "Adopt",
            "Adds a machine that is in use at the provider to the BMDB.",
            repairs.adopt,
            "provider_id",
            ("class",),
        ),
        Kind(
            "forget",
            "Forget",
            "Removes from the BMDB a machine that the provider no longer has. Its history stays.",
            repairs.forget,
            "machine",
            ("reason",),
        ),
        Kind(
            "release",
            "Release",
            "Gives a machine back to the provider. All data on it is lost.",
            repairs.release,
            "machine",
            ("reason", "despite_heartbeat"),
        ),
        Kind(
            "cancel-release",
            "Cancel the release of",
            "Cancels a requested release that has not happened.",
            repairs.cancel_release,
            "machine",
            ("reason",),
        ),
    )
}
"""By the name in the address."""


def kind_of(form: Mapping[str, str]) -> Kind:
    """
    Return the kind of change that a form or an address names.

    Raises:
        FormInvalid: there is no such kind.
    """
    kind = KINDS.get(form.get("kind", ""))
    if kind is None:
        message = f"kind must be one of {', '.join(KINDS)}, not {form.get('kind')!r}"
        raise FormInvalid(message)
    return kind
