"""Other users of the computer can neither read nor change what a simulated environment holds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import boto3
import pg8000.native
import pytest
from botocore.exceptions import ClientError
from pg8000.exceptions import DatabaseError, InterfaceError

from simulator.environment.aws import REGION, Aws
from simulator.environment.postgres import Postgres
from simulator.machines.pool import MachinePool
from simulator.machines.shell import unprivileged_user
from simulator.scratch import scratch
from tests.support.agents.machine_client import Client

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
START = "from simulator.environment.postgres import Postgres; Postgres().close()"
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other users")


@pytest.fixture(scope="module")
def aws() -> Iterator[Aws]:
    """Return AWS with one secret."""
    with Aws("127.0.0.1") as aws:
        aws.client("ssm").put_parameter(Name="/ssh-key", Value="private", Type="SecureString")
        yield aws


def _secret(client: Any) -> str:
    value: str = client.get_parameter(Name="/ssh-key", WithDecryption=True)["Parameter"]["Value"]
    return value


def test_aws_gives_a_secret_only_to_the_environment(aws: Aws) -> None:
    """The SSH key lets in at every machine, as root."""
    assert _secret(aws.client("ssm")) == "private"
    stranger = boto3.session.Session("guessed", "guessed", region_name=REGION)
    with pytest.raises(ClientError, match="403"):
        _secret(stranger.client("ssm", endpoint_url=aws.url))


@pytest.mark.parametrize("path", ["/", "/moto-api/data.json", "/moto-api/reset"])
def test_aws_refuses_requests_without_a_key(aws: Aws, path: str) -> None:
    """Moto's own pages show and erase all that it holds."""
    with pytest.raises(HTTPError, match="403"):
        urlopen(Request(aws.url + path, method="POST"))
    assert _secret(aws.client("ssm")) == "private"


def _log_in(postgres: Postgres, password: str | None) -> None:
    pg8000.native.Connection("postgres", password=password, unix_sock=str(postgres.socket), ssl_context=False).close()


def test_postgres_asks_for_a_password_where_it_has_one() -> None:
    """The proxy in front of it is open to everybody on the computer, and a superuser can run programs."""
    with Postgres(password="right") as postgres:
        _log_in(postgres, "right")
        for wrong in ("wrong", ""):
            with pytest.raises((DatabaseError, InterfaceError)):
                _log_in(postgres, wrong)


def test_postgres_is_reached_by_its_owner_alone() -> None:
    """It asks nobody for a password, so that nobody else may reach its socket."""
    with Postgres() as postgres:
        _log_in(postgres, None)
        data = Path(postgres.host)
        assert data.stat().st_mode & 0o077 == 0
        assert data.parent.stat().st_mode & 0o066 == 0
        (process,) = Path("/proc").glob(f"{(data / 'postmaster.pid').read_text().split()[0]}/net/tcp")
        sockets = {link.readlink().name for link in (process.parents[1] / "fd").iterdir()}
        listening = [line.split() for line in process.read_text().splitlines()[1:] if line.split()[3] == "0A"]
        assert not [fields for fields in listening if f"socket:[{fields[9]}]" in sockets]


def test_postgres_needs_no_file_that_another_user_may_own() -> None:
    """The first user's lock file kept every other user from starting one."""
    with scratch("desk-") as folder:
        (folder / ".lockfile").mkdir()  # cannot be opened, as a file of another user
        environment = {**os.environ, "TMPDIR": str(folder)}
        environment.pop("XDG_RUNTIME_DIR", None)
        subprocess.run([sys.executable, "-c", START], cwd=ROOT, env=environment, check=True)
        assert [path.name for path in folder.iterdir()] == [".lockfile"]


@AS_ROOT
def test_two_users_may_run_postgres_at_once() -> None:
    """They share the folder for temporary files."""
    nobody: dict[str, Any] = {"user": "nobody", "group": "nogroup", "extra_groups": [], "cwd": "/"}
    environment = {"PATH": os.defpath, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    try:
        subprocess.run([sys.executable, "-c", "import simulator"], env=environment, check=True, **nobody)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("the user nobody cannot run this Python")
    with Postgres():
        subprocess.run([sys.executable, "-c", START], env=environment, check=True, **nobody)


@AS_ROOT
def test_programs_on_simulated_machines_do_not_run_as_root() -> None:
    """Whoever got onto a simulated machine had the whole computer."""
    user = unprivileged_user()
    if user is None:
        pytest.skip("no other user can run a python3")
    with scratch("disks-") as folder:
        os.chown(folder, user, user)
        with MachinePool(folder, 0, boot_seconds=0, user=user) as pool:
            client = Client(pool)
            machine = client.rack("crate")
            client.upload(machine, "/root/agent", b"#!/bin/sh\nid -u\nid -G\necho hello > file\n")
            assert client.run(machine, "/root/agent").output == f"{user}\n{user}\n".encode()
            assert (pool.disk(machine) / "root/file").stat().st_uid == user
