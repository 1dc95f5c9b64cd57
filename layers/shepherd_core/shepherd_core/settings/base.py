"""What all settings types have in common."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "SHEPHERD_"

Seconds = Annotated[float, Field(gt=0, le=86_400)]
Count = Annotated[int, Field(ge=1, le=1_000)]


class Settings(BaseSettings):
    """The base of all settings types."""

    table: ClassVar[str] = ""
    """The table of the settings document that these are read from first; an empty name: its top."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_ignore_empty=True,
        frozen=True,
        extra="ignore",
        defer_build=True,  # a function uses two or three of the types
    )
