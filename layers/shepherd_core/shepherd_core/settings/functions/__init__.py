"""
The settings: one type for each function, composed of small ones.

A field has its default here and nowhere else, and a description with unit,
meaning and range. ``sources`` says where values come from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shepherd_core.settings.functions.loops import (
    InitializerSettings,
    ProvisionerSettings,
    RecovererSettings,
    UpdaterSettings,
)
from shepherd_core.settings.functions.services import AgentApiSettings, MigratorSettings

if TYPE_CHECKING:
    from shepherd_core.settings.base import Settings

FUNCTIONS: dict[str, type[Settings]] = {
    "provisioner": ProvisionerSettings,
    "initializer": InitializerSettings,
    "recoverer": RecovererSettings,
    "updater": UpdaterSettings,
    "agent_api": AgentApiSettings,
    "migrator": MigratorSettings,
}
"""The settings of each function by its name, which is also the name of its table in the document."""
