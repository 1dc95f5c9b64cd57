"""Ironic for tests: the fake, or the real service where ``IRONIC_ENVIRONMENT`` names one (``make test-ironic``)."""

import atexit
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any
from uuid import uuid4

import requests
from shepherd_core.providers.ironic.adapter import IronicProvider
from shepherd_core.providers.ironic.calls import VERSION
from shepherd_core.providers.kit.auth import Basic
from shepherd_core.settings.providers.ironic import IronicSettings

from simulator.providers.ironic.api import IronicApi
from simulator.providers.ironic.fake import FakeIronic
from simulator.providers.ironic.service import IronicService, RealIronic, installed
from simulator.providers.kit.hardware import NoHardware
from simulator.providers.kit.machines import Options
from simulator.temporary_folder import temporary_folder
from tests.conftest import ManualClock

CREDENTIAL = "shepherd:a-password-that-nobody-may-see"
PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHb1Jc7TZl0g8cFz7h5oVb5Gg2c0J5s0n1p6c9w3Qk7d shepherd"
FLEET = "made-up"
PER_PAGE = 4

needs_the_fake = installed() is not None
"""Whether the tests run against the real service, which cannot do what only some drivers do."""


@cache
def _service() -> IronicService | None:
    if (environment := installed()) is None:
        return None
    stack = ExitStack()
    atexit.register(stack.close)
    folder = stack.enter_context(temporary_folder("ironic-"))
    return stack.enter_context(IronicService(environment, folder, CREDENTIAL, per_page=PER_PAGE))


@contextmanager
def ironic_api(hardware: NoHardware) -> Iterator[IronicApi]:
    service, options = _service(), Options(per_page_cap=PER_PAGE)
    api: IronicApi = (
        FakeIronic(hardware, secret=CREDENTIAL, options=options)
        if service is None
        else RealIronic(hardware, service, secret=CREDENTIAL, options=options)
    )
    with api:
        yield api


def ironic_provider(api: IronicApi, clock: ManualClock, **settings: Any) -> IronicProvider:
    given = {"fleet": FLEET, "machine_type": f"metal-{uuid4().hex[:8]}", **settings}
    chosen = IronicSettings(api_url=api.url, credential_parameter="/unused", image="http://192.0.2.1/image", **given)
    return IronicProvider(chosen, Basic(lambda: CREDENTIAL), lambda: PUBLIC_KEY, clock)


def operate(api: IronicApi, method: str, path: str, body: Any = None) -> requests.Response:
    """Return the answer to a request of an operator; *path* below ``/v1/nodes/``."""
    headers = {"X-OpenStack-Ironic-API-Version": VERSION}
    login = tuple(CREDENTIAL.split(":"))
    return requests.request(method, f"{api.url}/v1/nodes/{path}", json=body, headers=headers, auth=login, timeout=30)  # type: ignore[arg-type]
