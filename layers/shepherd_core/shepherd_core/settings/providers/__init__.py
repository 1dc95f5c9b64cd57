"""
The providers that Shepherd knows by name: those of this package, and those of other packages that are installed.

Each is a ``ProviderSpec``. Another package announces one by an entry point of the group ``GROUP``, whose name is the
provider's and whose object is the spec. Nothing but the settings of the provider in question is imported.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from typing import Annotated

from pydantic import AfterValidator

from shepherd_core.domain.errors import ConfigError
from shepherd_core.settings.providers.spec import ProviderSpec

GROUP = "shepherd.providers"
NAME = re.compile(r"[a-z][a-z0-9]{0,31}")
"""The form of a provider's name."""

BUILT_IN = (
    "cherryservers",
    "ec2",
    "equinix",
    "hetzner",
    "ironic",
    "latitude",
    "phoenixnap",
    "redfish",
    "scaleway",
    "static",
    "vultr",
)
"""The providers of this package, each with a module that has its settings and its ``SPEC``."""


@cache
def installed() -> dict[str, frozenset[str]]:
    """Return what other packages announce, by the provider's name. Looks at every installed package."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - only where no built-in provider will do

    entries = [each for each in entry_points(group=GROUP) if NAME.fullmatch(each.name) and each.name not in BUILT_IN]
    return {name: frozenset(each.value for each in entries if each.name == name) for name in {e.name for e in entries}}


def names() -> tuple[str, ...]:
    """Return the names of all providers."""
    return (*BUILT_IN, *sorted(installed()))


def known(name: str) -> bool:
    """Return whether there is a provider of that name."""
    return name in BUILT_IN or name in installed()


@cache
def find(name: str) -> ProviderSpec:
    """
    Return the provider of that name.

    Raises:
        ConfigError: there is none, or its package is broken.
    """
    if not known(name):
        wanted = f"must be {', '.join(BUILT_IN)} or the provider of another package that is installed"
        raise ConfigError([f"{wanted} ({', '.join(installed()) or 'none is'})"])
    announced = {f"{__name__}.{name}:SPEC"} if name in BUILT_IN else installed()[name]
    if len(announced) > 1:
        raise ConfigError([f"several packages announce the provider {name}: {', '.join(sorted(announced))}"])
    (place,) = announced
    module, _, attribute = place.partition(":")
    try:
        spec = getattr(import_module(module), attribute)
    except Exception as error:
        raise broken(name, place, error) from error
    if not isinstance(spec, ProviderSpec) or spec.name != name:
        raise broken(name, place, TypeError(f"it must be a ProviderSpec with the name {name!r}"))
    return spec


def broken(name: str, place: str, error: Exception) -> ConfigError:
    """Return how an operator is told that the package of a provider cannot be used: at what *place*, and why."""
    return ConfigError([f"the package of provider {name} is broken at {place}: {type(error).__name__}: {error}"])


def _name(text: str) -> str:
    try:
        return find(text).name
    except ConfigError as error:
        raise ValueError(error.faults[0]) from error


ProviderName = Annotated[str, AfterValidator(_name)]
"""The name of one of them."""
