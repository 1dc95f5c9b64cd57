"""The base of all settings types."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

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


class Settings(BaseSettings):
    """The base of all settings types."""

    table: ClassVar[str | None] = None
    """The table of the settings document with the fields that this class declares; empty: its top; None: none."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_ignore_empty=True,
        frozen=True,
        extra="ignore",
        defer_build=True,  # a function uses two or three of the types
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the library passes all five
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read arguments and the environment alone: looking for files takes as long as all the rest."""
        return init_settings, env_settings


class ProviderSettings(Settings):
    """The settings of a provider. What several providers have has one name, so that one variable serves for each."""

    model_config = SettingsConfigDict(env_prefix=f"{PREFIX}PROVIDER_")


def variable(settings_type: type[Settings], name: str) -> str:
    """Return the environment variable of a setting."""
    return f"{settings_type.model_config['env_prefix']}{name}".upper()
