"""The type of a rule between settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

Broken: TypeAlias = Callable[..., str | None]
"""Returns, for the values of settings, what goes wrong and what to do about it; None: nothing."""


@dataclass(frozen=True, slots=True)
class SettingsRule:
    """A rule between settings."""

    keys: tuple[str, ...]
    """The settings, each as ``function.name``."""
    broken: Broken
    facts: tuple[str, ...] = ()
    """Values that are not set, which ``broken`` gets last: ``provider.capabilities``, ``deployment.enabled``."""
