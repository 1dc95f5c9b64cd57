"""A client of simulated machines, as independent of Shepherd's own as can be: plain paramiko."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import paramiko

from simulator.machines.pool import MachinePool
from tests.support.waiting import WAIT_SECONDS, eventually


class Result(NamedTuple):
    status: int
    output: bytes
    errors: bytes


class Client:
    def __init__(self, pool: MachinePool) -> None:
        self.pool = pool
        self.key = paramiko.ECDSAKey.generate()
        self.authorized_key = f"{self.key.get_name()} {self.key.get_base64()}"

    def rack(self, name: str, provision_seconds: float = 0) -> str:
        self.pool.rack(name, self.authorized_key, provision_seconds)
        self.wait_until_up(name)
        return name

    def wait_until_up(self, name: str) -> None:
        eventually(lambda: self.pool.state(name) == "Up")

    @contextmanager
    def login(self, name: str, *, user: str = "root", key: paramiko.PKey | None = None) -> Iterator[paramiko.SSHClient]:
        with paramiko.SSHClient() as ssh:
            ssh.set_missing_host_key_policy(paramiko.AutoAddPolicy())
            ssh.connect(
                self.pool.address(name),
                self.pool.port,
                user,
                pkey=key or self.key,
                timeout=WAIT_SECONDS,
                banner_timeout=WAIT_SECONDS,
                auth_timeout=WAIT_SECONDS,
                allow_agent=False,
                look_for_keys=False,
            )
            yield ssh

    def host_key(self, name: str) -> bytes:
        with self.login(name) as ssh:
            transport = ssh.get_transport()
            assert transport is not None
            return transport.get_remote_server_key().asbytes()

    def upload(self, name: str, path: str, content: bytes) -> None:
        with self.login(name) as ssh, ssh.open_sftp() as sftp:
            with sftp.open(path, "wb") as file:
                file.write(content)
            sftp.chmod(path, 0o755)

    def run(self, name: str, command: str, stdin: bytes = b"") -> Result:
        with self.login(name) as ssh:
            feed, output, errors = ssh.exec_command(command, timeout=WAIT_SECONDS)
            feed.write(stdin)
            feed.channel.shutdown_write()
            written, complained = output.read(), errors.read()
            assert output.channel.status_event.wait(WAIT_SECONDS), "the session does not end"
            return Result(output.channel.recv_exit_status(), written, complained)
