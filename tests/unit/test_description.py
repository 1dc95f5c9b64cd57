"""The descriptions of APIs refuse requests that they do not have."""

import json
from email.message import Message
from typing import Any

import pytest

from simulator.providers.kit.http_server import HttpRequest
from tests.support.providers.description import Description, UndescribedError

SERVERS = "/baremetal/v1/zones/fr-par-2/servers"
INSTALL = {"os_id": "1", "hostname": "a", "ssh_key_ids": ["2"]}


def check(method: str, path: str, body: Any = None, **query: str) -> None:
    content = b"" if body is None else json.dumps(body).encode()
    request = HttpRequest(
        method=method, target=path, path=path, query=query, headers=Message(), content=content, client="127.0.0.1"
    )
    Description("scaleway").check(request)


@pytest.mark.parametrize(
    ("method", "path", "body", "query"),
    [
        ("GET", f"{SERVERS}/1/2", None, {}),
        ("PUT", SERVERS, None, {}),
        ("GET", SERVERS, None, {"per_page": "2"}),
        ("GET", SERVERS, None, {"page": "x"}),
        ("DELETE", f"{SERVERS}/1", {"reason": "a"}, {}),
        ("POST", f"{SERVERS}/1/reboot", {"boot_type": "soft"}, {}),
        ("POST", f"{SERVERS}/1/install", {**INSTALL, "ssh_key_ids": "2"}, {}),
        ("POST", f"{SERVERS}/1/install", {**INSTALL, "ssh_key_ids": [2]}, {}),
        ("POST", f"{SERVERS}/1/install", {**INSTALL, "os": "1"}, {}),
        ("POST", f"{SERVERS}/1/install", {"os_id": "1", "hostname": "a"}, {}),
        ("POST", SERVERS, {"offer_id": "1", "name": "a", "description": "", "install": {}}, {}),
        ("POST", SERVERS, ["offer_id"], {}),
    ],
)
def test_a_request_that_is_not_described_is_refused(method: str, path: str, body: Any, query: dict[str, str]) -> None:
    check("GET", SERVERS, page="2", project_id="a")
    check("POST", f"{SERVERS}/1/install", INSTALL)
    with pytest.raises(UndescribedError):
        check(method, path, body, **query)
