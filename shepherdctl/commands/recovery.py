"""The commands that let the Recoverer go on where it holds back, for some machines and a time."""

from typing import Annotated

import typer
from shepherd_core.bmdb.machines import queries
from shepherd_core.bmdb.recovery import overrides, suspension
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.rules.circuit_breaker import WHOLE_PROVIDER, where

from shepherdctl.database import bmdb
from shepherdctl.formats import duration, span
from shepherdctl.options import PROVIDERS, OwnerOption, ReasonOption, user
from shepherdctl.output import Form, Output, counted, document, facts, note, one_of

_LONGEST_DAYS = 7
_MOST_MACHINES = 1000

_ProviderOption = Annotated[
    str,
    typer.Option(
        parser=one_of(*PROVIDERS), metavar=f"<{'|'.join(PROVIDERS)}>", help="The provider.", show_default=False
    ),
]
_LocationOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="One of its locations.", show_default="wherever the machines are"),
]


def _seconds(text: str) -> float:
    """Return a duration that an override may have."""
    seconds = duration(text)
    if seconds > _LONGEST_DAYS * 86_400:
        message = f"{text!r} is too long: at most {_LONGEST_DAYS}d was wanted."
        raise typer.BadParameter(message)
    return seconds


def override(
    *,
    provider: _ProviderOption,
    reason: ReasonOption,
    seconds: Annotated[
        float,
        typer.Option(
            "--for",
            parser=_seconds,
            metavar="TIME",
            help=f"End by itself after this time: 15m, 2h, 1d; at most {_LONGEST_DAYS}d.",
            show_default=False,
        ),
    ],
    machines: Annotated[
        int,
        typer.Option(
            min=1, max=_MOST_MACHINES, metavar="COUNT", help="Machines that may be taken at most.", show_default=False
        ),
    ],
    location: _LocationOption = None,
    owner: OwnerOption = None,
    output: Output = Form.TABLE,
) -> None:
    r"""
    Let the Recoverer take some machines although it suspends recovery there.

    For machines that are really down, when too many are silent at once for the
    Recoverer to believe it. Look at them with run recoverer --dry-run first. It
    takes those that are silent longest, at most so many in all, whoever dies or
    runs twice; each of them until the override ends, step by step as ever. Then
    recovery is suspended again. Who did it and why is kept in their history.

    Examples:
      shepherdctl run recoverer --dry-run
      shepherdctl recovery override --provider ec2 --for 2h --machines 5 \
        --reason "power cut"
      shepherdctl recovery override --provider redfish --location rack3 \
        --for 1h --machines 20 --reason "switch replaced"
    """
    owner = owner or user()
    with bmdb() as connection:
        _known(queries.inventory(connection, provider=provider), provider, location)
        made = overrides.override(
            connection,
            provider=provider,
            location=location or WHOLE_PROVIDER,
            machines=machines,
            owner=owner,
            reason=reason,
            seconds=seconds,
        )
        held = [
            hold
            for hold in suspension.suspensions(connection)
            if hold["provider"] == provider and hold["ended_at"] is None
        ]
    if made is None:
        message = (
            f"there is an override already for {_place(provider, location)}: see shepherdctl status, and end it with "
        )
        raise ShepherdError(message + "shepherdctl recovery withdraw")
    if output is Form.JSON:
        document(
            {"provider": provider, "location": location, "machines": machines, "owner": owner, "reason": reason, **made}
        )
        return
    facts([("covers", _place(provider, location)), ("machines", machines), ("holds", f"for {span(seconds)}")])
    if not any(location is None or hold["location"] in (WHOLE_PROVIDER, location) for hold in held):
        note("recovery is not suspended there now: the override is used when it is")


def withdraw(*, provider: _ProviderOption, location: _LocationOption = None, output: Output = Form.TABLE) -> None:
    """
    End an override: recovery is suspended again where the Recoverer says so.

    Work that is under way goes on.

    Examples:
      shepherdctl recovery withdraw --provider redfish
      shepherdctl recovery withdraw --provider ec2 --location eu-central-1a
    """
    with bmdb() as connection:
        was = overrides.withdraw(connection, provider, location or WHOLE_PROVIDER)
    if was is None:
        message = f"no override is in force for {_place(provider, location)}: see shepherdctl status"
        raise ShepherdError(message)
    if output is Form.JSON:
        document({"provider": provider, "location": location, **was})
        return
    facts(
        [("covered", _place(provider, location)), ("taken", f"{was['used']} of {counted(was['machines'], 'machine')}")]
    )


def _place(provider: str, location: str | None) -> str:
    return f"{provider}, {where(location or WHOLE_PROVIDER)}"


def _known(inventory: list[dict[str, object]], provider: str, location: str | None) -> None:
    """
    See that a location is one where machines are.

    Raises:
        ShepherdError: it is none; a mistyped one would let nothing through while its operator waits.
    """
    known = sorted(str(record["location"]) for record in inventory if record["location"])
    if location is not None and location not in known:
        places = ", ".join(known) or "no location that has a name"
        message = f"no machine of {provider} is at {location!r}; its machines are at: {places}"
        raise ShepherdError(message)
