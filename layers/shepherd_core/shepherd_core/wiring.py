"""
What a function reaches outside, built from its settings: the BMDB, the provider, secrets and documents.

Libraries that only one provider, or only one way to keep a secret, needs are
imported when that one is built.
"""

from __future__ import annotations

import ssl
import threading
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from shepherd_core.adapters.secrets import SsmSecretStore
from shepherd_core.bmdb.connection import ATTEMPTS, Connection
from shepherd_core.domain.clock import SystemClock
from shepherd_core.domain.errors import ConfigError
from shepherd_core.settings import functions, providers

if TYPE_CHECKING:
    from collections.abc import Callable

    from shepherd_core.adapters.ssh import SshConnection, SshDialer
    from shepherd_core.domain.clock import Deadline
    from shepherd_core.domain.provider import Provider

LIST_SECONDS = 30.0
"""How old a static list may be."""

CLOCK = SystemClock()
"""The clock of every function."""


@cache
def secrets() -> SsmSecretStore:
    """Return the store that remembers secrets between invocations."""
    return SsmSecretStore()


def read(source: str) -> bytes:
    """Return the document at *source*, as ``object_source.read``."""
    from shepherd_core.adapters import documents  # noqa: PLC0415 - see the module's docstring

    return documents.read(source)


def certificate(source: str) -> bytes:
    """
    Return the one PEM certificate at *source* as DER.

    Raises:
        ConfigError: it holds something else.
        SourceError: as ``read``.
    """
    try:
        return ssl.PEM_cert_to_DER_cert(read(source).decode("ascii").strip())
    except ValueError as error:
        raise ConfigError([f"{source} does not hold one PEM certificate: {error}"]) from error


def bmdb(settings: functions.BmdbSettings, attempts: int = ATTEMPTS) -> Connection:
    """Return a connection to the BMDB; connects, and reads what that takes, when it is first used."""
    source = settings.bmdb_ca_source
    authorities = None if source is None else cache(partial(read, source))
    return Connection(settings, _password(settings), CLOCK, authorities, attempts)


def _password(settings: functions.BmdbSettings) -> Callable[[], str] | None:
    if settings.bmdb_auth == "iam":
        from shepherd_core.adapters.database_token import DatabaseTokens  # noqa: PLC0415 - see the module's docstring

        return DatabaseTokens(settings).make
    parameter = settings.bmdb_password_parameter
    return None if parameter is None else partial(secrets().get, parameter)


class LazyDialer:
    """A ``takeover.Dialer`` whose key is read, or made, when it is needed: not for a dry run, nor if nothing is due."""

    def __init__(self, settings: functions.InitializerSettings) -> None:
        self._settings = settings
        self._dialer: SshDialer | None = None

    def make(self) -> SshDialer:
        """
        Return the real one.

        Raises:
            SecretError: the key cannot be had.
            ConfigError: it is no key.
        """
        if self._dialer is None:
            from shepherd_core.adapters import ssh_keys  # noqa: PLC0415 - see the module's docstring
            from shepherd_core.adapters.ssh import SshDialer  # noqa: PLC0415

            settings = self._settings
            seconds = settings.agent_heartbeat_seconds
            self._dialer = SshDialer(
                secrets().create_once(settings.ssh_key_parameter, ssh_keys.generate),
                settings.ssh_user,
                settings.ssh_port,
                settings.ssh_connect_timeout_seconds,
                {} if seconds is None else {"SHEPHERD_AGENT_HEARTBEAT_SECONDS": f"{seconds:g}"},
            )
        return self._dialer

    def dial(self, address: str, pinned_host_key: str | None, deadline: Deadline) -> SshConnection:
        """See ``takeover.Dialer``."""
        return self.make().dial(address, pinned_host_key, deadline)


def load(settings_type: type[Any]) -> tuple[Any, Provider]:
    """
    Return the settings of a function and the provider that they choose.

    Raises:
        ConfigError: holds the faults of both at once.
    """
    try:
        choice = functions.load(functions.ProviderChoice)[0].provider
    except ConfigError:
        functions.load(settings_type)  # raises this fault with all the others
        raise
    provider_type, build = _PROVIDERS[choice]
    settings, provider_settings = functions.load(settings_type, provider_type)
    return settings, build(settings, provider_settings)


def _static(_: Any, settings: providers.StaticSettings) -> Provider:
    from shepherd_core.providers.static import StaticProvider  # noqa: PLC0415 - see the module's docstring

    return StaticProvider(_remembering(partial(read, settings.static_list)))


def _redfish(_: Any, settings: providers.RedfishSettings) -> Provider:
    from shepherd_core.providers.redfish.adapter import RedfishProvider  # noqa: PLC0415 - see the module's docstring

    source = settings.redfish_ca_source
    return RedfishProvider(
        settings,
        _remembering(partial(read, settings.redfish_list)),
        CLOCK,
        read_secret=secrets().get,
        forget_secret=secrets().forget,
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
    """Return the line that machines know us by."""
    from shepherd_core.adapters import ssh_keys  # noqa: PLC0415 - only to create and to reinstall machines

    return ssh_keys.public_line(secrets().create_once(settings.ssh_key_parameter, ssh_keys.generate))


_PROVIDERS: dict[str, tuple[type[functions.Settings], Callable[[Any, Any], Provider]]] = {
    "static": (providers.StaticSettings, _static),
    "redfish": (providers.RedfishSettings, _redfish),
    "equinix": (providers.EquinixSettings, _equinix),
    "ec2": (providers.Ec2Settings, _ec2),
    "hetzner": (providers.HetznerSettings, _hetzner),
}


def _remembering(read: Callable[[], bytes]) -> Callable[[], bytes]:
    """Return *read* with a memory of ``LIST_SECONDS``, so that a batch of machines does not fetch the list for each."""
    lock = threading.Lock()
    kept: list[tuple[float, bytes]] = []

    def remembered() -> bytes:
        with lock:
            if not kept or CLOCK.monotonic() - kept[0][0] > LIST_SECONDS:
                kept[:] = [(CLOCK.monotonic(), read())]
            return kept[0][1]

    return remembered
