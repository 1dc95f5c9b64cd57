"""Simulated providers, one for each vendor. Environments can have those with a module ``source``."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from simulator.environment.machine_source import MachineSource

    SimulatedProvider = str
else:
    SimulatedProvider = Literal[tuple(sorted(path.parent.name for path in Path(__file__).parent.glob("*/source.py")))]
"""The providers with a machine source. Not ``static``, which cannot reboot, nor ``ec2``, whose simulation has none."""


def machine_source(provider: SimulatedProvider) -> type[MachineSource]:
    """Return the machine source that simulates *provider*. Imports its module."""
    source: type[MachineSource] = import_module(f"simulator.providers.{provider}.source").Source
    return source
