"""
The real Ironic, from an environment of its own: one process, SQLite, no message queue, drivers without hardware.

``make .venv-ironic/.ready`` makes the environment. Where it is missing, there is only the fake.
"""

import http.client
import json
import os
import signal
import socket
import subprocess
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import bcrypt

from simulator.closeable import Closeable
from simulator.providers.ironic.api import IronicApi, Json
from simulator.providers.kit.hardware import Hardware
from simulator.providers.kit.http_server import Reply
from simulator.providers.kit.rest import Call

VARIABLE = "IRONIC_ENVIRONMENT"
"""The environment variable with the folder of the environment in which the real service is installed."""

_OFF = {"bios", "console", "firmware", "inspect", "raid", "rescue", "vendor"}
_NOOP = {"network", "storage"}
_FAKE = {"boot", "deploy", "management", "power"}
_PATIENCE_SECONDS = 120
_PASSED_ON = ("X-OpenStack-Ironic-API-Version", "Content-Type", "Authorization")


def installed() -> Path | None:
    """Return the folder of the environment in which the real service is installed, if there is one."""
    folder = Path(os.environ.get(VARIABLE) or "/nonexistent")
    return folder if (folder / ".ready").exists() else None


class IronicService(Closeable):
    """The process, from entry to exit; a deployment takes *seconds*, whole ones."""

    def __init__(self, venv: Path, folder: Path, credential: str, *, seconds: int = 0, per_page: int = 1000) -> None:
        """Keep everything in *folder*, which is empty; requests need *credential*, ``USER:PASSWORD``."""
        self._venv, self._folder = venv, folder
        self._headers = {
            "Authorization": "Basic " + b64encode(credential.encode()).decode(),
            "Content-Type": "application/json",
        }
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        user, _, password = credential.partition(":")
        hashed = bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()
        (folder / "htpasswd").write_text(f"{user}:{hashed}\n")
        (folder / "ironic.conf").write_text(_configuration(folder, self._port, seconds, per_page))

    def __enter__(self) -> Self:
        subprocess.run(self._command("ironic-dbsync", "create_schema"), check=True, capture_output=True)
        with (self._folder / "ironic.log").open("wb") as log:
            self._process = subprocess.Popen(
                self._command("ironic"),
                stdout=log,
                stderr=log,
                start_new_session=True,
                # ``temporary_folder`` finds it by TMPDIR, which it would overwrite with its title.
                env={**os.environ, "TMPDIR": str(self._folder), "SPT_NOENV": "1"},
            )
        try:
            self._wait_until_up()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Kill it; nothing of it is kept."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def send(self, method: str, target: str, content: bytes, headers: Mapping[str, str]) -> Reply:
        """Return the answer to a request."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.request(method, target, content or None, dict(headers))
            response = connection.getresponse()
            return Reply(status=response.status, body=response.read())
        finally:
            connection.close()

    def ask(self, method: str, path: str, body: object = None, version: str = "1.61") -> Any:
        """Return the decoded answer to a request of the operator."""
        headers = {**self._headers, "X-OpenStack-Ironic-API-Version": version}
        reply = self.send(method, path, b"" if body is None else json.dumps(body).encode(), headers)
        if reply.status >= http.HTTPStatus.BAD_REQUEST:
            raise RuntimeError(f"{method} {path}: {reply.status} {reply.body!r}")
        return json.loads(reply.body) if reply.body else None

    def _command(self, program: str, *arguments: str) -> list[str]:
        return [str(self._venv / "bin" / program), "--config-file", str(self._folder / "ironic.conf"), *arguments]

    def _wait_until_up(self) -> None:
        end = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < end and self._process.poll() is None:
            with suppress(OSError):  # not yet
                if self.ask("GET", "/v1/drivers")["drivers"]:
                    return
            time.sleep(0.1)
        log = (self._folder / "ironic.log").read_text(errors="replace")
        raise RuntimeError(f"Ironic did not start:\n{log[-2000:]}")


class RealIronic(IronicApi):
    """The API in front of the process: it counts requests, and injects faults."""

    def __init__(self, hardware: Hardware, service: IronicService, **options: Any) -> None:
        super().__init__(hardware, **options)
        self._service = service

    def add(self, resource_class: str, extra: Json) -> str:
        """See ``IronicApi``."""
        # Until version 1.10 of the API, a new node was available at once.
        new = self._service.ask("POST", "/v1/nodes", {"driver": "fake-hardware", "extra": extra}, "1.10")
        node, resource = str(new["uuid"]), {"op": "add", "path": "/resource_class", "value": resource_class}
        self._service.ask("PATCH", f"/v1/nodes/{node}", [resource])
        self._service.ask("PUT", f"/v1/nodes/{node}/states/power", {"target": "power on"})
        return node

    def node(self, node_id: str) -> Json:
        """See ``IronicApi``."""
        try:
            return dict(self._service.ask("GET", f"/v1/nodes/{node_id}"))
        except RuntimeError:
            return {}

    def carry_out(self, call: Call, operation: Any, segments: Sequence[str]) -> Reply:  # noqa: ARG002 - see ``IronicApi``
        """See ``IronicApi``."""
        headers = {name: value for name in _PASSED_ON if (value := call.http.headers.get(name)) is not None}
        return self._service.send(call.http.method, call.http.target, call.http.content, headers)

    def close(self) -> None:
        """Stop, and end the instances: the service, which is used again, accepts an instance only once."""
        while not self.settled():
            time.sleep(0.01)
        super().close()
        for node in self._enrolled:
            self._service.ask("PATCH", f"/v1/nodes/{node}", [{"op": "remove", "path": "/instance_uuid"}])

    def settled(self) -> bool:
        """Return whether nothing is under way, here and in the service."""
        return super().settled() and not any(self.node(each)["reservation"] for each in self._enrolled)


def _configuration(folder: Path, port: int, seconds: int, per_page: int) -> str:
    kinds = {**dict.fromkeys(_FAKE, "fake"), **dict.fromkeys(_NOOP, "noop"), **{each: f"no-{each}" for each in _OFF}}
    interfaces = "\n".join(f"enabled_{name}_interfaces = {kind}" for name, kind in sorted(kinds.items()))
    return f"""[DEFAULT]
auth_strategy = http_basic
http_basic_auth_user_file = {folder}/htpasswd
enabled_hardware_types = fake-hardware
{interfaces}
rpc_transport = none
host = 127.0.0.1
my_ip = 127.0.0.1
state_path = {folder}
tempdir = {folder}
[database]
connection = sqlite:///{folder}/ironic.sqlite
[oslo_concurrency]
lock_path = {folder}
[api]
host_ip = 127.0.0.1
port = {port}
max_limit = {per_page}
[conductor]
automated_clean = false
node_locked_retry_attempts = 0
sync_power_state_interval = 0
[fake]
deploy_delay = {seconds}
"""
