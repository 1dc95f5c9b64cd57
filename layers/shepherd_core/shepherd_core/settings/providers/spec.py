"""The description of a provider that each module of this package has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shepherd_core.domain.provider import Capability
    from shepherd_core.settings.base import Settings


def _filled_in(value: str) -> str:
    """Refuse a placeholder: with a wrong prefix, Shepherd would change machines that are not ours."""
    if "FIXME" in value:
        msg = "still contains FIXME"
        raise ValueError(msg)
    return value


FilledIn = Annotated[str, Field(min_length=1), AfterValidator(_filled_in)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSpec:
    """A provider. Its page is ``docs/providers/NAME.md``; the table there has its capabilities in these words."""

    name: str
    module: str
    """The module in ``providers`` whose ``build`` returns the adapter, from these settings and a ProviderContext."""
    settings: type[Settings]
    secrets: tuple[str, ...] = ()
    """The settings that hold the name of a secret."""
    always: frozenset[Capability]
    """What it can do."""
    sometimes: Mapping[Capability, str] = field(default_factory=dict)
    """What it can do with some settings or machines, and with which."""
