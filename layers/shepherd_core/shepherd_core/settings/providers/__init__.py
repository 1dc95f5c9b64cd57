"""
The providers that Shepherd knows: one module for each, with its settings and its ``SPEC``, and the one table of them.

Only the settings of the chosen provider are read, and only its adapter is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from shepherd_core.settings.providers import (
    ec2,
    equinix,
    hetzner,
    ironic,
    latitude,
    phoenixnap,
    redfish,
    scaleway,
    static,
)

SPECS = tuple(
    each.SPEC
    for each in (
        ec2,
        equinix,
        hetzner,
        ironic,
        latitude,
        phoenixnap,
        redfish,
        scaleway,
        static,
    )
)
"""All providers."""

PROVIDERS = {spec.name: spec.settings for spec in SPECS}
"""The settings of each provider."""

if TYPE_CHECKING:
    ProviderName = str
else:
    ProviderName = Literal[tuple(PROVIDERS)]
"""The name of one of them."""
