"""Settings that several functions have."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from shepherd_core.settings.base import Count, Settings
from shepherd_core.settings.providers import BUILT_IN, ProviderName


def is_loopback(url: str) -> bool:
    """Return whether *url* is of this computer itself; false for what is no URL at all."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _encrypted(endpoint: str) -> str:
    url = urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}")
    if url.scheme not in {"https", "http"} or not url.hostname or "@" in url.netloc or url.query or url.fragment:
        message = "must be HOST:PORT or an https URL, without a user, query or fragment"
        raise ValueError(message)
    if url.scheme == "http" and not is_loopback(endpoint):
        message = "must be an https URL: http carries heartbeats and installation requests unencrypted"
        raise ValueError(message)
    return endpoint


EndpointUrl = Annotated[str, AfterValidator(_encrypted)]
"""Of the agent API: https, or http on the machine itself."""


class ProviderChoice(Settings):
    """The choice of the provider."""

    provider: ProviderName = Field(
        description=f"Provider whose machines the function works on: {', '.join(BUILT_IN)}, or that of another package."
    )


class ConcurrencySettings(Settings):
    """How many machines one invocation works on at once, and how long it keeps their history."""

    table = ""

    concurrency: Count = Field(
        10, description="Maximum number of machines that one invocation works on at the same time."
    )
    history_days: int = Field(
        0, ge=0, le=36_500, description="Days for which the history of machines is kept; 0: without limit."
    )


class SshKeySettings(Settings):
    """Shepherd's SSH key."""

    table = ""

    ssh_key_parameter: str = Field(
        "/shepherd/ssh-key",
        description="Name of the SSM parameter that holds the SSH key; the parameter with its public half has this "
        "name and .pub.",
    )


class SshSettings(SshKeySettings):
    """How to log in to the machines, and where their agent is."""

    table = ""

    agent_path: str = Field("/root/agent", pattern="^/[^\\s'\"]+$", description="Path of the agent on the machines.")
    ssh_user: str = Field("root", description="User to log in as on the machines.")
    ssh_port: int = Field(22, ge=1, le=65_535, description="SSH port of the machines.")
