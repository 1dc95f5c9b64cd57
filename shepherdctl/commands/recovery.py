"""The commands on overrides, by which some machines are recovered although recovery is suspended."""

from typing import Annotated

import typer
from shepherd_core.bmdb.agents import hardware
from shepherd_core.bmdb.recovery import overrides, suspension
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.health import WHOLE_PROVIDER, where

from shepherdctl.database import bmdb
from shepherdctl.options import PROVIDERS, OwnerOption, ReasonOption, current_user
from shepherdctl.output.formats import duration, span
from shepherdctl.output.printing import Form, Output, counted, document, facts, note, one_of

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
    typer.Option(metavar="NAME", help="One of its locations.", show_default="the whole provider"),
]


def _seconds(text: str) -> float:
    """Return the duration of an override in seconds."""
    seconds = duration(text)
    if seconds > _LONGEST_DAYS * 86_400:
        message = f"{text!r} is too long: it must be at most {_LONGEST_DAYS}d."
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
            help=f"The override ends by itself after this time: 15m, 2h, 1d; at most {_LONGEST_DAYS}d.",
            show_default=False,
        ),
    ],
    machines: Annotated[
        int,
        typer.Option(
            min=1, max=_MOST_MACHINES, metavar="COUNT", help="Machines to recover at most.", show_default=False
        ),
    ],
    location: _LocationOption = None,
    owner: OwnerOption = None,
    output: Output = Form.TABLE,
) -> None:
    r"""
    Recover some machines although recovery is suspended.

    For machines that are really down, when so many are unhealthy at once that
    recovery is suspended. Check them first with run recoverer --dry-run. The
    Recoverer chooses at most --machines machines, those unhealthy for longest,
    and takes its steps on them until the override ends; then recovery is
    suspended for them too. Owner and reason are stored in their history.

    Examples:
      shepherdctl run recoverer --dry-run
      shepherdctl recovery override --provider ec2 --for 2h --machines 5 \
        --reason "power cut"
      shepherdctl recovery override --provider redfish --location rack3 \
        --for 1h --machines 20 --reason "switch replaced"
    """
    owner = owner or current_user()
    with bmdb() as connection:
        _check_location(hardware.read_inventory(connection, provider=provider), provider, location)
        created = overrides.override(
            connection,
            provider=provider,
            location=location or WHOLE_PROVIDER,
            machines=machines,
            owner=owner,
            reason=reason,
            seconds=seconds,
        )
        suspended = [
            one["location"]
            for one in suspension.suspensions(connection)
            if one["provider"] == provider and one["ended_at"] is None
        ]
    if created is None:
        message = (
            f"there is already an override for {_scope(provider, location)}: see shepherdctl status, and end it with "
        )
        raise ShepherdError(message + "shepherdctl recovery withdraw")
    if output is Form.JSON:
        document(
            {
                "provider": provider,
                "location": location,
                "machines": machines,
                "owner": owner,
                "reason": reason,
                **created,
            }
        )
        return
    facts([("scope", _scope(provider, location)), ("machines", machines), ("lasts", f"for {span(seconds)}")])
    if not any(location is None or place in (WHOLE_PROVIDER, location) for place in suspended):
        note("recovery is not suspended there now: the override takes effect when it is")


def withdraw(*, provider: _ProviderOption, location: _LocationOption = None, output: Output = Form.TABLE) -> None:
    """
    End an override; recovery is suspended again for the machines that it covered.

    Work that has begun continues.

    Examples:
      shepherdctl recovery withdraw --provider redfish
      shepherdctl recovery withdraw --provider ec2 --location eu-central-1a
    """
    with bmdb() as connection:
        ended = overrides.withdraw(connection, provider, location or WHOLE_PROVIDER)
    if ended is None:
        message = f"no override is in force for {_scope(provider, location)}: see shepherdctl status"
        raise ShepherdError(message)
    if output is Form.JSON:
        document({"provider": provider, "location": location, **ended})
        return
    facts(
        [
            ("scope", _scope(provider, location)),
            ("used", f"{ended['used']} of {counted(ended['machines'], 'machine')}"),
        ]
    )


def _scope(provider: str, location: str | None) -> str:
    return f"{provider}, {where(location or WHOLE_PROVIDER)}"


def _check_location(inventory: list[dict[str, object]], provider: str, location: str | None) -> None:
    """
    Check that the provider has machines at *location*.

    Raises:
        ShepherdError: it has none there; an override for a mistyped location would have no effect.
    """
    known = sorted(str(record["location"]) for record in inventory if record["location"])
    if location is not None and location not in known:
        locations = ", ".join(known) or "no named location"
        message = f"{provider} has no machine at {location!r}; its machines are at: {locations}"
        raise ShepherdError(message)
