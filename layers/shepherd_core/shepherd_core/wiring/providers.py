"""The provider that the settings choose. Each provider's module is imported only when that provider is chosen."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from shepherd_core.domain.errors import ConfigError, ShepherdError
from shepherd_core.domain.provider import Provider
from shepherd_core.providers.kit.context import ProviderContext
from shepherd_core.settings.functions.shared import ProviderChoice, SshKeySettings
from shepherd_core.settings.providers import broken, find
from shepherd_core.wiring.adapters import CLOCK, read, secrets
from shepherd_core.wiring.settings import load as load_settings

if TYPE_CHECKING:
    from shepherd_core.settings.base import Settings
    from shepherd_core.settings.providers.spec import ProviderSpec


def load(settings_type: type[Any]) -> tuple[Any, Provider]:
    """
    Return the settings of a function and the provider that they choose.

    Raises:
        ConfigError: settings of the function or the provider are wrong; lists all faults.
    """
    try:
        choice = load_settings(ProviderChoice)[0].provider
    except ConfigError:
        load_settings(settings_type)  # raises this fault with all the others
        raise
    spec = find(choice)
    settings, provider_settings = load_settings(settings_type, spec.settings)
    context = ProviderContext(
        clock=CLOCK,
        read=read,
        read_secret=secrets().get,
        invalidate_secret=secrets().invalidate,
        public_key=partial(_public_key, settings),
    )
    return settings, build(spec, provider_settings, context)


def build(spec: ProviderSpec, settings: Settings, context: ProviderContext) -> Provider:
    """
    Return the adapter of a provider. Imports its module.

    Raises:
        ConfigError: its package is broken.
    """
    try:
        provider = import_module(spec.module).build(settings, context)
    except ShepherdError:
        raise
    except Exception as error:
        raise broken(spec.name, spec.module, error) from error
    if Provider not in type(provider).__mro__ or provider.name != spec.name:
        raise broken(spec.name, spec.module, TypeError(f"build() must return a Provider with the name {spec.name!r}"))
    built: Provider = provider
    return built


def _public_key(settings: SshKeySettings) -> str:
    """Return our public key as a line for ``authorized_keys``."""
    from shepherd_core.adapters import ssh_keys  # noqa: PLC0415 - only to create and to reinstall machines

    return secrets().get(ssh_keys.public_parameter(settings.ssh_key_parameter)).strip()
