"""The base of all settings types."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

PREFIX = "SHEPHERD_"
PLACEHOLDER = "FIXME"
"""Stands in a new document for what its operator must fill in; refused in every value."""

Seconds = Annotated[float, Field(gt=0, le=86_400)]
Count = Annotated[int, Field(ge=1, le=1_000)]


def _filled_in(value: object) -> object:
    """Refuse a placeholder: with a wrong prefix, Shepherd would change machines that are not ours."""
    if isinstance(value, str) and PLACEHOLDER in value:
        msg = "fill it in"
        raise ValueError(msg)
    return value


FILLED_IN = BeforeValidator(_filled_in)
FilledIn = Annotated[str, Field(min_length=1), FILLED_IN]

LONGEST_SLOT = 5
"""Digits of a slot's number that have room in a server's name."""
Slots = Annotated[int, Field(ge=1, lt=10**LONGEST_SLOT)]
FleetName = Annotated[FilledIn, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,19}$")]
"""With a slot and a UUID it fills a host name, which has 63 characters."""


class Settings(BaseModel):
    """The base of all settings types. ``sources`` reads their values."""

    table: ClassVar[str | None] = None
    """The table of the settings document with the fields that this class declares; empty: its top; None: none."""
    prefix: ClassVar[str] = PREFIX
    """The beginning of their environment variables."""

    model_config = ConfigDict(
        frozen=True,
        validate_default=True,
        defer_build=True,  # a function uses two or three of the types
    )


class ProviderSettings(Settings):
    """The settings of a provider. What several providers have has one name, so that one variable serves for each."""

    prefix = f"{PREFIX}PROVIDER_"


def variable(settings_type: type[Settings], name: str) -> str:
    """Return the environment variable of a setting."""
    return f"{settings_type.prefix}{name}".upper()
