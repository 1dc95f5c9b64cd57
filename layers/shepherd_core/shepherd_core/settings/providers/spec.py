"""The description of a provider that each module of this package has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shepherd_core.domain.provider import Capability
    from shepherd_core.settings.base import ProviderSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSpec:
    """
    A provider.

    The page of one that Shepherd brings is ``docs/providers/NAME.md``; the table there has its capabilities in these
    words.
    """

    name: str
    module: str
    """The module whose ``build`` returns the adapter, from these settings and a ProviderContext."""
    settings: type[ProviderSettings]
    given: frozenset[str] = frozenset()
    """The settings without a default that a deployment gives to the functions that need them, and to no other."""
    always: frozenset[Capability]
    """Its capabilities."""
    sometimes: Mapping[Capability, str] = field(default_factory=dict)
    """Capabilities that depend on settings or machines, with the condition."""

    def __post_init__(self) -> None:
        """Refuse settings that the document has no place for."""
        if self.settings.table != f"provider.{self.name}":
            message = f"{self.settings.__name__}.table must be 'provider.{self.name}', not {self.settings.table!r}"
            raise ValueError(message)
