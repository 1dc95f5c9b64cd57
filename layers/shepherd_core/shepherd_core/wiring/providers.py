"""The provider that the settings choose. Each provider's library is imported only when that provider is chosen."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from shepherd_core.domain.errors import ConfigError
from shepherd_core.settings import functions, providers
from shepherd_core.wiring.adapters import CLOCK, read, secrets
from shepherd_core.wiring.settings import load as load_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from shepherd_core.domain.provider import Provider

LIST_SECONDS = 30.0
"""How old a list of machines may be."""


def load(settings_type: type[Any]) -> tuple[Any, Provider]:
    """
    Return the settings of a function and the provider that they choose.

    Raises:
        ConfigError: settings of the function or the provider are wrong; lists all faults.
    """
    try:
        choice = load_settings(functions.ProviderChoice)[0].provider
    except ConfigError:
        load_settings(settings_type)  # raises this fault with all the others
        raise
    provider_type, build = _PROVIDERS[choice]
    settings, provider_settings = load_settings(settings_type, provider_type)
    return settings, build(settings, provider_settings)


def _static(_: Any, settings: providers.StaticSettings) -> Provider:
    from shepherd_core.providers.static import StaticProvider  # noqa: PLC0415 - see the module's docstring

    return StaticProvider(_cached(partial(read, settings.static_list)))


def _redfish(_: Any, settings: providers.RedfishSettings) -> Provider:
    from shepherd_core.providers.redfish.adapter import RedfishProvider  # noqa: PLC0415 - see the module's docstring

    source = settings.redfish_ca_source
    return RedfishProvider(
        settings,
        _cached(partial(read, settings.redfish_list)),
        CLOCK,
        read_secret=secrets().get,
        invalidate_secret=secrets().invalidate,
        read_ca=None if source is None else partial(read, source),
    )


def _equinix(common: functions.SshKeySettings, settings: providers.EquinixSettings) -> Provider:
    from shepherd_core.providers.equinix.adapter import EquinixProvider  # noqa: PLC0415 - see the module's docstring

    api_key = partial(secrets().get, settings.equinix_api_key_parameter)
    return EquinixProvider(settings, api_key, partial(_public_key, common), CLOCK)


def _ec2(common: functions.SshKeySettings, settings: providers.Ec2Settings) -> Provider:
    from shepherd_core.providers.ec2.adapter import Ec2Provider  # noqa: PLC0415 - see the module's docstring

    return Ec2Provider(settings, partial(_public_key, common), CLOCK)


def _hetzner(common: functions.SshKeySettings, settings: providers.HetznerSettings) -> Provider:
    from shepherd_core.providers.hetzner.adapter import HetznerProvider  # noqa: PLC0415 - see the module's docstring

    credential = partial(secrets().get, settings.hetzner_credential_parameter)
    return HetznerProvider(settings, credential, partial(_public_key, common), CLOCK)


def _public_key(settings: functions.SshKeySettings) -> str:
    """Return our public key as a line for ``authorized_keys``."""
    from shepherd_core.adapters import ssh_keys  # noqa: PLC0415 - only to create and to reinstall machines

    return ssh_keys.public_line(secrets().create_once(settings.ssh_key_parameter, ssh_keys.generate))


_PROVIDERS: dict[str, tuple[type[functions.Settings], Callable[[Any, Any], Provider]]] = {
    "static": (providers.StaticSettings, _static),
    "redfish": (providers.RedfishSettings, _redfish),
    "equinix": (providers.EquinixSettings, _equinix),
    "ec2": (providers.Ec2Settings, _ec2),
    "hetzner": (providers.HetznerSettings, _hetzner),
}


def _cached(read: Callable[[], bytes]) -> Callable[[], bytes]:
    """Return *read* with its result cached for ``LIST_SECONDS``, so that a batch of machines fetches the list once."""
    lock = threading.Lock()
    cached: list[tuple[float, bytes]] = []

    def read_cached() -> bytes:
        with lock:
            if not cached or CLOCK.monotonic() - cached[0][0] > LIST_SECONDS:
                cached[:] = [(CLOCK.monotonic(), read())]
            return cached[0][1]

    return read_cached
