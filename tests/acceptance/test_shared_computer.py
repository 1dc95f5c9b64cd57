import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import boto3
import pg8000.native
import pytest
from botocore.exceptions import ClientError
from pg8000.exceptions import DatabaseError, InterfaceError

from simulator.environment.aws import REGION, Aws
from simulator.environment.environment import Environment, EnvironmentSettings
from simulator.environment.postgres import Postgres
from simulator.machines.pool import MachinePool
from simulator.machines.shell import unprivileged_user
from simulator.temporary_folder import temporary_folder
from tests.support.agents.machine_client import Client
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
START = "from simulator.environment.postgres import Postgres; Postgres().close()"
RUNNING = "from tests.acceptance.test_shared_computer import running_environment\nwith running_environment(): pass"
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other users")


@pytest.fixture(scope="module")
def aws() -> Iterator[Aws]:
    with Aws("127.0.0.1") as aws:
        aws.client("ssm").put_parameter(Name="/ssh-key", Value="private", Type="SecureString")
        yield aws


@contextmanager
def running_environment() -> Iterator[None]:
    """Run an environment whose machine reports; what an Initializer keeps is there then."""
    with Environment(EnvironmentSettings(machines=1, speed=240)) as environment:
        eventually(lambda: any(row.agent_heartbeat_at for row in environment.machines()), seconds=120)
        yield


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
    """It asks for no password, so no other user may reach its socket."""
    with Postgres() as postgres:
        _log_in(postgres, None)
        data = Path(postgres.host)
        assert (data.stat().st_mode & 0o077, data.parent.stat().st_mode & 0o066) == (0, 0)
        (process,) = Path("/proc").glob(f"{(data / 'postmaster.pid').read_text().split()[0]}/net/tcp")
        sockets = {link.readlink().name for link in (process.parents[1] / "fd").iterdir()}
        listening = [line.split() for line in process.read_text().splitlines()[1:] if line.split()[3] == "0A"]
        assert not [fields for fields in listening if f"socket:[{fields[9]}]" in sockets]


def test_postgres_needs_no_file_that_another_user_may_own() -> None:
    """The first user's lock file kept every other user from starting one."""
    with temporary_folder("desk-") as folder:
        (folder / ".lockfile").mkdir()  # cannot be opened, as a file of another user
        environment = {**os.environ, "TMPDIR": str(folder)}
        environment.pop("XDG_RUNTIME_DIR", None)
        subprocess.run([sys.executable, "-c", START], cwd=ROOT, env=environment, check=True)
        assert [path.name for path in folder.iterdir()] == [".lockfile"]


def _second_user() -> list[str]:
    """
    Return what runs a command as another user; nothing if only root could.

    The command may read root's files, such as this Python and this clone, but owns none and can change none.
    """
    if os.geteuid() != 0:
        return []
    reading = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *reading]
    try:
        subprocess.run([*other, sys.executable, "-c", "import simulator"], cwd=ROOT, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no process of another user can be started: {error}")
    return other


def test_two_users_may_run_an_environment_at_once() -> None:
    """They share the folder for temporary files: PostgreSQL, moto, machines, locks and the agent's cache are there."""
    environment = {"PATH": os.defpath, "PYTHONPATH": str(ROOT)}
    other = [*_second_user(), sys.executable, "-c", RUNNING]
    with running_environment():
        subprocess.run(other, cwd=ROOT, env=environment, check=True, timeout=300)


@AS_ROOT
def test_programs_on_simulated_machines_do_not_run_as_root() -> None:
    user = unprivileged_user()
    if user is None:
        pytest.skip("no other user can run a python3")
    with temporary_folder("disks-") as folder:
        os.chown(folder, user, user)
        with MachinePool(folder, 0, boot_seconds=0, user=user) as pool:
            client = Client(pool)
            machine = client.rack("crate")
            client.upload(machine, "/root/agent", b"#!/bin/sh\nid -u\nid -G\necho hello > file\n")
            assert client.run(machine, "/root/agent").output == f"{user}\n{user}\n".encode()
            assert (pool.disk(machine) / "root/file").stat().st_uid == user
